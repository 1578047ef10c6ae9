"""Every option of a run, its default and its meaning: one tree of dataclasses.

command_line.py sets values, checks.py refuses those that cannot work. `None` in the `algorithm` section means the value that
the estimator requires.
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from minirl import advantages, losses
from minirl.advantages import option, parts_of
from minirl.utils.errors import ends_the_run

EMBEDDED_TASKS = ("rules", "arithmetic")  # those with an embedded model, embedded-TASK; the first is the default
TASKS = (*EMBEDDED_TASKS, "fewshot", "dataset")
LOSS_AGG_MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL_ESTIMATORS = ("k1", "k2", "k3")
ROLLOUT_IS = ("none", "truncate", "mask", "sequence_truncate", "sequence_mask", "sequence_reject")
KEEP = ("accuracy", "reward")
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")


def items(default: list | dict, text: str) -> Any:
    """An option whose default is a list or a mapping."""
    return field(default_factory=lambda: type(default)(default), metadata={"help": text})


@dataclass
class LoraConfig:
    r: int = option(0, "rank of the LoRA adapters that are trained in place of the weights; 0 trains all weights", minimum=0)
    lora_alpha: int = option(32, "an adapter's output is scaled by lora_alpha / r", minimum=1)
    target_modules: list[str] = items(
        ["all-linear"], "linear layers with an adapter, such as [q_proj, v_proj]; all-linear: all but the output layer"
    )


@dataclass
class ModelConfig:
    path: str = option(
        "embedded", "Hugging Face folder or Hub name; embedded: the tiny model of data.task that comes with the package"
    )
    revision: str | None = option(None, "Hub revision of the model")
    dtype: str = option("float32", "compute precision; the master weights are always float32", choices=("float32", "bfloat16"))
    attention: str = option(
        "packed", "packed: sequences end to end, no padding; sdpa, eager, flash_attention_2 ...: transformers' own, padded rows"
    )
    compile: bool = option(True, "on a GPU, compile the computation of log-probs from logits")
    compile_layers: bool = option(False, "compile the model's layers for the update; not under ZeRO-3")
    gradient_checkpointing: bool | None = option(
        False, "recompute activations in the backward pass: less memory, more time; auto (null): where the memory plan needs it"
    )
    trust_remote_code: bool = option(False, "run the Python code that a model folder or Hub model brings along")
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass
class DataConfig:
    task: str = option(
        EMBEDDED_TASKS[0],
        f"dataset: read problems; {', '.join(EMBEDDED_TASKS)}, fewshot: generated ones; or file.py:function(split), which "
        "returns problems of the splits train and test: Problems, or rows with prompt_column and answer_column",
    )
    train: str = option("", "task=dataset: .jsonl or .parquet file, or Hub name")
    test: str = option("", "task=dataset: held-out problems, in these formats; empty: test_size problems are held out of train")
    subset: str | None = option(None, "Hub configuration name, such as main")
    train_split: str = option("train", "split of a Hub data set to train on")
    test_split: str = option("test", "split of a Hub data set to evaluate on")
    test_size: int | None = option(None, "problems held out of train when test is empty; null: a tenth, at most 128", minimum=1)
    prompt_column: str = option("problem", "column with the problem as text or as a list of messages; a.b is key b of column a")
    answer_column: str = option("answer", "column with the gold answer; empty if the verifier needs only extra_info (code)")
    answer_pattern: str | None = option(None, "regular expression; its first group is the gold answer in the answer column")
    extra_info_columns: list[str] = items(
        [], "further columns that the verifier needs, such as tests or entry_point; name=column renames"
    )
    template: str = option("{problem}", "the user message, or the last one of a conversation; {problem} is the problem's text")
    template_date: str | None = option(None, "the date in chat templates that print it, such as 2026-01-31; null: today")
    system: str | None = option(None, "system message; a conversation keeps its own")
    chat: bool = option(True, "wrap the message in the tokenizer's chat template")
    chat_arguments: dict[str, Any] = items({}, "arguments of the chat template, such as {enable_thinking: false}")
    max_prompt_tokens: int = option(2048, "longer prompts are dropped", minimum=1)


@dataclass
class VerifierConfig:
    name: str = option("math", "math, code, or file.py:function for a custom reward function")
    grader: str = option(
        "exact",
        "name=math: how answers are compared; mathruler is the paper's grader",
        choices=("exact", "mathruler", "math_verify"),
    )
    answer: str = option(
        "boxed", "name=math: the answer is the last \\boxed{}, or the whole response", choices=("boxed", "whole")
    )
    after: str | None = option("</think>", "name=math: the answer is searched after the last occurrence of this text")
    ordered: bool = option(
        False, "name=math, grader=exact: the order of a list counts; a problem's extra column ordered decides"
    )
    workers: int = option(1, "verifier processes of each rank", minimum=1)
    timeout: float = option(5.0, "seconds after which the verification of a response times out", above=0)
    memory_mb: int = option(2048, "name=code: memory limit of a program, MiB of address space", minimum=64)
    rewards: list[Any] = items(
        [], "[[file.py:function, weight], ...], added to the verifier's reward; right and wrong stay the verifier's"
    )
    labeller: str | None = option(
        None,
        "file.py:function(problem, responses, verdicts) -> labels: error classes of a whole group, in place of the verifier's; "
        "it runs in the trainer's process",
    )

    def pool(self) -> tuple[str, dict[str, Any]]:
        """(name, options) for VerifierPool."""
        options: dict[str, Any] = {}
        if self.name == "math":
            options = {"grader": self.grader, "answer": self.answer, "after": self.after}
            options |= {"ordered": True} if self.ordered else {}
        elif self.name == "code":
            options = {"timeout": self.timeout, "memory_mb": self.memory_mb}
        if not self.rewards:
            return self.name, options
        return "combine", {"rewards": [[self.name, 1.0, options], *self.rewards]}


@dataclass
class VllmConfig:
    tensor_parallel: int = option(1, "ranks that share one engine; must divide the number of ranks", minimum=1)
    gpu_memory_utilization: float = option(
        0.4, "share of the GPU's memory for the engine's weights and KV cache", above=0, maximum=1
    )
    sleep: bool = option(True, "free the engine's GPU memory during updates, where supported")
    enforce_eager: bool = option(False, "no CUDA graphs: faster start, slower sampling")


@dataclass
class RolloutConfig:
    engine: str = option("transformers", "what samples responses", choices=("transformers", "vllm"))
    prompts: int = option(32, "prompts (groups) in one training batch, over all ranks", minimum=1)
    group_size: int = option(10, "responses sampled for each prompt", minimum=1)
    temperature: float = option(1.0, "sampling temperature, which the trainer's log-probs use too", above=0)
    max_response_tokens: int = option(24, "length limit of a response, which is cut there and counts as truncated", minimum=1)
    stop: list[str] = items([], "texts that end a response, at the first token that contains one, besides the model's own")
    max_sequences: int = option(512, "sequences that an engine decodes at once", minimum=1)
    oversample: float = option(1.0, "dynamic sampling: size of the first generation batch, as a multiple of prompts", minimum=1)
    abort_longest: float = option(
        0.0,
        "share of the groups being sampled that is aborted when the others are finished; more prompts are drawn to make up for "
        "it: faster, but biased towards short responses (docs/algorithms/README.md)",
        minimum=0,
        maximum=0.5,
    )
    max_generation_batches: int = option(20, "dynamic sampling: maximum generation batches for one training batch", minimum=1)
    when_exhausted: str = option(
        "smaller",
        "dynamic sampling, if max_generation_batches do not fill the batch: train on fewer groups, or end the run",
        choices=("smaller", "error"),
    )
    max_empty_steps: int = option(
        25, "end the run after so many batches in a row in which no group has rewards that differ; 0: never", minimum=0
    )
    logprob_diff_warn: float = option(
        0.05, "warn when log-probs of sampler and trainer differ by more than this on average, nats", minimum=0
    )
    logprob_diff_stop: float = option(
        0.5, "end the run when log-probs of sampler and trainer differ by more than this on average, nats", minimum=0
    )
    vllm: VllmConfig = field(default_factory=VllmConfig)
    carry_over: bool = option(False, "use surplus groups, at most half a batch, in the next batch instead of dropping them")

    continuous: bool = option(
        False,
        "keep the engines full: groups are begun in the order drawn as there is room, and a batch is the first of them that "
        "are kept, in that order; else whole generation batches, each to its last token",
    )
    ahead: float = option(
        0.0,
        "continuous: groups that may be begun beyond the batch, as a multiple of prompts; they are continued at the next "
        "policy version (partial rollouts); 0: what was begun in vain is discarded",
        minimum=0,
    )

    def draws(self, groups: int) -> int:
        """Prompts to draw so that `groups` are left after `abort_longest` of them are aborted."""
        return math.ceil(groups / (1 - self.abort_longest) - 1e-9)  # 21 / 0.7 is 30.000000000000004


@dataclass
class AlgorithmConfig:
    estimator: str = option("dapo+edas", f"a base, then wrappers, as in dapo+edas+entropy; {advantages.known_names()}")
    loss: str | None = option(
        None,
        f"policy loss; null: the one that the estimator is made for; known are {', '.join(losses.LOSSES)}, or file.py:Class",
    )
    mini_batch_prompts: int = option(16, "prompts (groups) in one optimizer step; must divide rollout.prompts", minimum=1)
    epochs: int = option(1, "passes over each rollout batch", minimum=1)
    dynamic_sampling: bool | None = option(None, "sample until every group of the batch can teach, by `keep`")
    keep: str = option(
        "accuracy",
        "dynamic sampling keeps a group whose responses are right and wrong, or as the estimator says; or one whose rewards, "
        "before shaping by length, differ",
        choices=KEEP,
    )
    clip_low: float | None = option(None, "the ratio is clipped below 1 - clip_low; 1 is no bound", minimum=0, maximum=1)
    clip_high: float | None = option(None, "the ratio is clipped above 1 + clip_high", minimum=0)
    dual_clip: float | None = option(3.0, "bound on the loss of negative advantages; null turns it off", above=1)
    loss_agg_mode: str | None = option(
        None,
        "how token losses are averaged; seq-mean-token-sum-norm divides by max_response_tokens (Dr. GRPO)",
        choices=LOSS_AGG_MODES,
    )
    old_logprobs: str = option(
        "trainer", "denominator of the ratio: log-probs of the trainer, or of the rollout", choices=("trainer", "rollout")
    )
    rollout_is: str = option(
        "none",
        "importance weights for the difference between sampler and trainer, of tokens or of whole sequences",
        choices=ROLLOUT_IS,
    )
    rollout_is_low: float = option(0.5, "rollout_is=mask and the like: lower ratios are left out of the loss")
    rollout_is_high: float = option(2.0, "rollout_is=truncate and the like: cap of the ratio; mask: higher ones are left out")
    kl_coef: float = option(0.0, "weight of the KL to the starting model; 0 loads no reference model", minimum=0)
    kl_estimator: str = option("k3", "how the KL to the starting model is estimated", choices=KL_ESTIMATORS)
    kl_reward_coef: float = option(
        0.0,
        "weight of the KL to the starting model in the reward: log pi / pi_ref of the whole response is taken off",
        minimum=0,
    )
    entropy_coef: float = option(0.0, "weight of an entropy bonus", minimum=0)
    overlong_buffer: int = option(0, "tokens before the limit over which DAPO's soft penalty grows to -1; 0 is off", minimum=0)
    mask_truncated: bool = option(False, "leave truncated responses out of the loss; they stay in the group's statistics")

    @property
    def requirements(self) -> advantages.Requirements:
        """The estimator's requirements with the config's overrides, as `load` has resolved them."""
        values = (self.dynamic_sampling, self.clip_low, self.clip_high, self.loss_agg_mode, self.loss)
        if None in values:
            raise ValueError(f"an algorithm section that was not resolved: {values}")
        return advantages.Requirements(*values[:4], loss=self.loss)  # type: ignore[arg-type]


@dataclass
class OptimizerConfig:
    lr: float = option(4e-4, "AdamW learning rate", minimum=0)
    betas: list[float] = items([0.9, 0.999], "AdamW betas")
    weight_decay: float = option(0.01, "AdamW weight decay", minimum=0)
    max_grad_norm: float = option(1.0, "gradients are clipped to this norm", above=0)
    schedule: str = option(
        "constant", "learning rate after warm-up; the others decay to 0 at run.steps", choices=("constant", "linear", "cosine")
    )
    warmup_steps: int = option(10, "steps over which the learning rate grows to lr", minimum=0)
    max_nonfinite: int = option(
        10, "end the run after so many optimizer steps in a row that were skipped for a non-finite loss or gradient", minimum=1
    )
    micro_batch_tokens: int | None = option(
        16384,
        "maximum tokens of a forward and backward pass, padding included; auto (null): the most that the memory plan allows",
        minimum=1,
    )
    name: str = option(
        "adamw",
        "adamw_8bit keeps AdamW's two moments in 8 bits (bitsandbytes); not under DeepSpeed",
        choices=("adamw", "adamw_8bit"),
    )


@dataclass
class EvalConfig:
    every: int = option(20, "steps between evaluations; 0: only before and after the run", minimum=0)
    problems: int = option(256, "held-out problems evaluated before and after the run", minimum=1)
    samples: int = option(16, "responses sampled for each held-out problem", minimum=1)
    k: int = option(8, "the k of pass@k, at most samples", minimum=1)
    before: str | None = option(
        None, "RUN/evaluations/step000000.json of a run of the same model, seed and eval options, in place of evaluating again"
    )
    during_problems: int = option(128, "held-out problems evaluated during the run", minimum=1)
    temperature: float = option(1.0, "sampling temperature; 0 is greedy", minimum=0)
    top_p: float = option(1.0, "nucleus sampling", above=0, maximum=1)
    top_k: int = option(0, "sample from the k most likely tokens; 0 is off", minimum=0)
    max_response_tokens: int | None = option(None, "length limit of a response; null: rollout.max_response_tokens", minimum=1)


@dataclass
class RunConfig:
    dir: str | None = option(None, "run folder; --run-dir DIR is the same")
    resume: str = option(
        "auto",
        "auto: resume an existing run folder from its newest checkpoint; never: refuse it; RUN/checkpoints/stepN: resume from "
        "that one; --resume is the same",
    )
    seed: int = option(0, "seed of all random choices", minimum=0)
    deterministic: bool = option(False, "use deterministic kernels: slower on a GPU (docs/determinism.md)")
    steps: int = option(60, "training steps, one rollout batch each", minimum=1)
    epochs: float | None = option(None, "end the run earlier, after so many passes over the training problems", minimum=0)
    tokens: int | None = option(None, "end the run earlier, after the step that reaches so many generated tokens", minimum=1)
    seconds: float | None = option(
        None, "end the run earlier, after the step that reaches so much training time, evaluations not counted", above=0
    )
    save_rollouts: int = option(
        3, "groups of each step written to rollouts/ as JSON: the one shaped most, an unselected one, a dropped one ...",
        minimum=0,
    )  # fmt: skip
    trackers: list[str] = items(
        [], f"experiment trackers, offline unless the environment says otherwise: {', '.join(TRACKERS)}, or file.py:Class"
    )
    save_every: int = option(10, "steps between checkpoints; 0: only at the end, when stopped, and of a new best", minimum=0)
    keep: int = option(2, "newest checkpoints kept, besides the best by held-out pass@1", minimum=1)
    save_batches: int = option(
        2, "newest batches kept for --replay, besides those after checkpoints; 0: only one that ended the run", minimum=0
    )
    save_in_background: bool = option(False, "write checkpoints while the next batch is sampled; takes host memory")
    on_save_error: str = option("continue", "when a checkpoint cannot be written", choices=("continue", "stop"))
    stop_after: str | None = option(None, "stop, saved, after the step that exceeds this time: 2h50m; --stop-after is the same")


@dataclass
class PlanConfig:
    gpus: int = option(8, "--dry-run: number of ranks", minimum=1)
    gpu_gib: float = option(141.0, "--dry-run: memory of a GPU", minimum=1)
    zero: int | None = option(3, "--dry-run: ZeRO stage; null is DDP", minimum=0)


def sections(title: str, classes: Mapping[str, Any], custom: str) -> Any:
    """A dataclass with one sub-section a registered class, made of its `option` fields, and one for the user's own."""
    columns = [(name, cls, field(default_factory=cls)) for name, cls in classes.items()]
    return dataclasses.make_dataclass(title, [*columns, ("custom", dict[str, Any], items({}, custom))])


EstimatorConfig: Any = sections(
    "EstimatorConfig", advantages.WITH_OPTIONS, "options of estimators of your own (file.py:Class), such as {floor: 0.2}"
)
LossConfig: Any = sections("LossConfig", losses.LOSSES_WITH_OPTIONS, "options of a loss of your own (file.py:Class)")


@dataclass
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)  # type: ignore[valid-type]
    loss: LossConfig = field(default_factory=LossConfig)  # type: ignore[valid-type]
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    run: RunConfig = field(default_factory=RunConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    dry_run: bool = False
    replay: str | None = None
    estimators: dict[str, Any] = field(default_factory=dict)  # of --estimators: the config of each, or why it cannot have one

    def build_estimator(self) -> advantages.Estimator:
        """The advantage estimator that `algorithm.estimator` names, with the options of `estimator`."""
        return advantages.build(self.algorithm.estimator, self.estimator)

    def keeps(self, progress: float) -> Callable[[advantages.Group], bool]:
        """The rule by which dynamic sampling keeps a group, as `algorithm.keep` says. progress: of the run, which the estimator
        sees with the run's seed. RunError when a rule of the user's own fails."""
        if self.algorithm.keep == "reward":
            return advantages.has_signal
        estimator = self.build_estimator()

        def keeps(group: advantages.Group) -> bool:
            with ends_the_run():
                seen = dataclasses.replace(group, progress=progress, seed=self.run.seed)
                return advantages.kept(self.algorithm.estimator, estimator, seen)

        return keeps

    def build_loss(self) -> losses.PolicyLoss:
        """The policy loss that `algorithm.loss`, or else the estimator, names, with the options of `loss`."""
        return losses.build_loss(self.algorithm.loss or self.build_estimator().requirements.loss, self.loss)

    @property
    def needs_reference(self) -> bool:
        """Whether the starting model is kept for its log-probs."""
        a = self.algorithm
        return a.kl_coef > 0 or a.kl_reward_coef > 0 or self.build_estimator().requirements.needs_ref_logprobs

    @property
    def own_code(self) -> list[str]:
        """The names, file.py:name, of the user's own code that the run's numbers depend on, rewards excepted."""
        names = [*parts_of(self.algorithm.estimator), self.algorithm.loss, self.verifier.labeller, self.data.task]
        return [name for name in names if name and ".py:" in name]


def every_option(node: Any = None, path: str = "") -> list[tuple[str, Any, Mapping[str, Any]]]:
    """(key, value, {"help": ..., "type": ..., limits}) of every option of a config (None: the defaults), in order."""
    rows: list[tuple[str, Any, Mapping[str, Any]]] = []
    node = Config() if node is None else node
    types = typing.get_type_hints(type(node))
    for f in fields(node):
        value = getattr(node, f.name)
        if "help" in f.metadata:
            rows.append((path + f.name, value, {"type": types[f.name], **f.metadata}))
        elif is_dataclass(value) and f.name != "base":
            rows += every_option(value, f"{path}{f.name}.")
    return rows


def as_tree(config: Config) -> dict[str, Any]:
    """The config as nested plain values, ready for YAML; `load` reads it back to the same config."""
    tree: dict[str, Any] = {}
    for key, value, _ in every_option(config):
        node = tree
        *sections, last = key.split(".")
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = value
    return tree
