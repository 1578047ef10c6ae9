"""The trainable model: log-probs, backward, optimizer step, weights out. One process, DDP or DeepSpeed ZeRO; nothing else in
the code asks which."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from minirl.config.options import Config, OptimizerConfig
from minirl.policy.attention import Padded, Varlen
from minirl.policy.logprobs import LogprobHead, why_not_packed
from minirl.policy.micro_batches import MicroBatch, packed_micro_batch, padded_micro_batch
from minirl.policy.model import compile_layers, load_model, model_plan, with_exact_frequencies
from minirl.policy.packing import packed_micro_batches, padded_micro_batches
from minirl.rollout.types import Rollout
from minirl.utils.console import say
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError, RunError
from minirl.utils.memory import memory_suffices

# Weights that are gathered at once for the sampling engine or for export: a bound of its extra memory.
BUCKET_BYTES = 512 * 2**20


class Policy:
    """The model being trained, its optimizer, and the frozen starting model where a KL to it is asked for."""

    def __init__(self, config: Config, ranks: Ranks, vocabulary: int) -> None:
        """vocabulary: ids below it belong to the tokenizer; the model's further rows are padding and get no probability.

        RunError, with the arithmetic of the plan, when memory does not suffice.
        """
        if ranks.zero == 3 and config.rollout.engine == "transformers":
            raise ConfigError(
                "rollout.engine=transformers cannot sample from weights that ZeRO-3 has sharded: set rollout.engine=vllm or "
                "use ZeRO-2"
            )
        if ranks.zero == 3 and config.model.compile_layers:
            raise ConfigError(
                "model.compile_layers=true cannot compile across the hooks by which ZeRO-3 gathers the weights of a layer: set "
                "it to false or use ZeRO-2"
            )
        with memory_suffices(lambda: "loading the model", lambda: " | ".join(model_plan(config, ranks))):
            self._load(config, ranks, vocabulary)

    def _load(self, config: Config, ranks: Ranks, vocabulary: int) -> None:
        self.config, self.ranks = config, ranks
        self.version = 0  # optimizer steps so far
        self.nonfinite = 0  # optimizer steps in a row that were skipped because their gradient was not finite
        self.micro: MicroBatch | None = None  # the one in work, for the message when memory does not suffice
        if ranks.zero is None and config.model.dtype == "bfloat16":
            self.autocast = lambda: torch.autocast(ranks.device.type, dtype=torch.bfloat16)
        else:
            self.autocast = contextlib.nullcontext  # type: ignore[assignment]  # DeepSpeed holds bfloat16 copies itself
        if config.run.deterministic:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read at the first matrix product
            os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"  # read by transformers
            torch.backends.cudnn.deterministic = True
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # no one reads it
        self.model = load_model(config.model)
        self.vocabulary = vocabulary = min(vocabulary, self.model.config.vocab_size)
        if config.model.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        compiled = config.model.compile and ranks.device.type == "cuda"
        bonus = config.algorithm.entropy_coef > 0
        head = LogprobHead(self.model, config.rollout.temperature, vocabulary, bonus, compiled)
        o = config.optimizer
        if ranks.zero is None:
            head.to(ranks.device)
        betas = (o.betas[0], o.betas[1])
        optimizer = torch.optim.AdamW(head.parameters(), lr=o.lr, betas=betas, weight_decay=o.weight_decay, fused=True)
        if ranks.zero is None:
            self.head, self.optimizer = ranks.accelerator.prepare_model(head), optimizer
        else:
            ranks.accelerator.state.deepspeed_plugin.deepspeed_config.update(
                train_micro_batch_size_per_gpu=1,  # micro-batches and their weights are counted here, not there
                gradient_clipping=o.max_grad_norm,
                zero_allow_untested_optimizer=True,
                zero_force_ds_cpu_optimizer=False,  # torch's AdamW needs no compiler
                # Sums over many micro-batches in bfloat16 would lose the small ones; stages 0 and 1 refuse or change optimizer.
                **({"data_types": {"grad_accum_dtype": "fp32"}} if ranks.zero >= 2 else {}),
                steps_per_print=10**9,
            )
            self.head, self.optimizer = ranks.accelerator.prepare(head, optimizer)
        c = self.model.config
        width = c.num_attention_heads * (getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads)
        parameters = sum(getattr(p, "ds_numel", p.numel()) for p in self.model.parameters())
        self.pair_cost = 2 * c.num_hidden_layers * width / parameters  # 4 operations a pair and layer, 2 a token and parameter
        self.packs = config.model.attention == "packed"
        if self.packs and (reason := self._why_not_packed()):
            self.packs = False
            self.model.set_attn_implementation("sdpa")
            if ranks.main:
                say(f"{type(self.model).__name__} cannot be packed ({reason}): its micro-batches are padded instead")
        if config.model.compile_layers:
            compile_layers(self.model)
        self.reference: LogprobHead | None = None
        if config.needs_reference:
            # Whole on every rank, in the compute precision: it takes no part in the training that ZeRO shards.
            unset_hf_deepspeed_config()
            frozen = load_model(config.model)
            dtype = torch.bfloat16 if ranks.zero is not None and config.model.dtype == "bfloat16" else torch.float32
            frozen = with_exact_frequencies(frozen.to(ranks.device, dtype).requires_grad_(False).eval())
            frozen.set_attn_implementation(self.model.config._attn_implementation)
            self.reference = LogprobHead(frozen, config.rollout.temperature, vocabulary, False)

    def micro_batches(self, rollouts: Sequence[Rollout]) -> Iterator[MicroBatch]:
        """This rank's share of `rollouts`, which every rank passes in the same order; as many micro-batches on each rank."""
        budget, prompts = self.config.optimizer.micro_batch_tokens, [len(r.prompt_ids) for r in rollouts]
        lengths = [r.length for r in rollouts]
        if self.packs:
            same = [tuple(r.prompt_ids) for r in rollouts]
            shares = packed_micro_batches(same, prompts, lengths, budget, self.ranks.size, self.pair_cost)
        else:
            shares = padded_micro_batches([p + n for p, n in zip(prompts, lengths, strict=True)], budget, self.ranks.size)
        for indices in shares[self.ranks.rank]:
            self.micro = self.micro_batch(rollouts, indices)
            yield self.micro

    def micro_batch(self, rollouts: Sequence[Rollout], indices: list[int]) -> MicroBatch:
        """The rollouts at `indices`, packed where the model can be."""
        if not self.packs:
            return padded_micro_batch(rollouts, indices, self.ranks.device)
        # Flash attention knows half precision only.
        varlen = self.ranks.device.type == "cuda" and self.config.model.dtype == "bfloat16"
        return packed_micro_batch(rollouts, indices, self.ranks.device, Varlen if varlen else Padded)

    def _why_not_packed(self) -> str | None:
        if self.model.config._attn_implementation != "packed":
            return "its attention is not transformers' attention interface"
        tolerance = 1e-3 if self.config.model.dtype == "float32" else 0.5  # nats; a trained model in bfloat16: 0.19
        self.head.eval()
        found = why_not_packed(lambda batch: self._score(self.head, batch)[0], self.micro_batch, self.model.config, tolerance)
        # What one rank found holds for all: they make their micro-batches together.
        return self.ranks.first(found)

    def logprobs(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(float[T] log-probs with gradient, float[T] entropies) of the response tokens, nats."""
        return self._score(self.head, batch)

    def _score(self, head: Any, batch: MicroBatch, entropy: bool = True) -> tuple[Tensor, Tensor]:
        with self.autocast():
            return head(batch.inputs, batch.logit_index, batch.targets, entropy)

    @torch.no_grad()
    def compute_logprobs(self, rollouts: Sequence[Rollout], old: bool, entropy: bool = False) -> None:
        """Fills in the reference's log-probs where there is a reference, the policy's own if `old`, and with them its entropies
        if `entropy`."""
        if not rollouts or not (old or self.reference):
            return
        self.head.eval()
        scored: list[tuple[int, Any, Any, Any]] = []
        for batch in self.micro_batches(rollouts):
            columns: list[Any] = [[None] * len(batch.indices)] * 3
            if old:
                columns[0], columns[1] = (batch.split(x) for x in self._score(self.head, batch, entropy))
            if self.reference is not None:
                columns[2] = batch.split(self._score(self.reference, batch, False)[0])
            scored += zip(batch.indices, *columns, strict=True)
        for i, old_logprobs, entropies, reference in self.ranks.gather(scored):
            r = rollouts[i]
            r.ref_logprobs, r.old_logprobs = reference, old_logprobs
            r.entropies = entropies if entropy else None

    def accumulate(self, loss: Tensor) -> None:
        """Adds the gradient of a micro-batch's share of the mini-batch loss (a sum over tokens that are already weighted)."""
        # DDP and ZeRO average over ranks; the weights want the sum. A loss that is not finite makes every gradient NaN, so that
        # all ranks learn of it where they exchange gradients, and skip the step together.
        loss = loss * torch.where(loss.detach().isfinite(), float(self.ranks.size), torch.nan)
        if self.ranks.zero is None:
            loss.backward()
        else:
            self.head.backward(loss)

    def gradient_steps(self, rollouts: Sequence[Rollout], weights: Sequence[float] | None = None) -> Iterator[MicroBatch]:
        """This rank's micro-batches of one optimizer step over `rollouts`; ranks exchange gradients on the last one only
        (ZeRO-2 and -3 on each). weights: of each token of a response, one a rollout; with them a micro-batch carries all that
        the loss reads."""
        self.head.train()
        batches = list(self.micro_batches(rollouts))
        if weights is not None:
            for batch in batches:
                batch.add_loss_inputs(weights)
        for i, batch in enumerate(batches):
            self.micro, last = batch, i + 1 == len(batches)
            if self.ranks.zero is not None:
                self.head.set_gradient_accumulation_boundary(last)
            quiet = isinstance(self.head, torch.nn.parallel.DistributedDataParallel) and not last
            with self.head.no_sync() if quiet else contextlib.nullcontext():
                yield batch

    def step(self, lr: float) -> float:
        """One optimizer step on the accumulated gradient; returns its norm before clipping.

        A norm that is not finite, which it then is on every rank, means that the step was skipped: weights, optimizer state and
        version are what they were, the gradient is gone, and `nonfinite` counts it.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.ranks.zero is None:
            norm = float(torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.config.optimizer.max_grad_norm))
            if np.isfinite(norm):
                self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            norm = self._zero_step()
        self.nonfinite = 0 if np.isfinite(norm) else self.nonfinite + 1
        self.version += bool(np.isfinite(norm))
        return norm

    def _zero_step(self) -> float:
        """`step` under DeepSpeed, which looks for a gradient that is not finite in all cases but ZeRO-0 in float32."""
        plain = [p.grad for p in self.head.parameters() if p.grad is not None] if self.ranks.zero == 0 else []
        norm = float(torch.nn.utils.get_total_norm(plain))  # ZeRO-0 in float32 clips without telling the norm
        if not np.isfinite(norm):
            self.head.zero_grad()
            return norm
        self.head.step()
        if (reported := self.head.get_global_grad_norm()) is not None:
            norm = float(reported)
        if not np.isfinite(norm) and not self.head.optimizer.overflow:
            raise RunError(
                f"the gradient norm is {norm} at optimizer step {self.version + 1} and DeepSpeed took the step: "
                "the weights are spoilt; start the same command again to go on from the last checkpoint, with DeepSpeed 0.19.8"
            )
        return norm

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Around work on micro-batches: kernels as `run.deterministic` asks, and running out of memory becomes a RunError that
        says which size to try."""
        # Only here: an engine in the same process may need kernels that have no deterministic form.
        torch.use_deterministic_algorithms(self.config.run.deterministic)
        try:
            with memory_suffices(self._in_work, self._smaller):
                yield
        except Exception as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            raise RunError(
                f"compiling failed: {' '.join(str(error).split())[:400]}; set model.compile_layers and model.compile to false"
            ) from error
        finally:
            torch.use_deterministic_algorithms(False)

    def _in_work(self) -> str:
        rows, tokens = (len(self.micro.rollouts), self.micro.inputs["input_ids"].numel()) if self.micro else (0, 0)
        budget = self.config.optimizer.micro_batch_tokens
        return f"a micro-batch of {rows} sequences, {tokens} tokens as computed (optimizer.micro_batch_tokens={budget})"

    def _smaller(self) -> str:
        if self.micro and len(self.micro.rollouts) > 1:
            longest = max(len(r.prompt_ids) + r.length for r in self.micro.rollouts)
            budget = max(self.micro.inputs["input_ids"].numel() // 2, longest)
            return f"set optimizer.micro_batch_tokens={budget} and start the same command again"
        return (
            "one sequence alone is too much: set model.gradient_checkpointing=true, lower rollout.max_response_tokens "
            "or rollout.vllm.gpu_memory_utilization, or use more GPUs with ZeRO-3"
        )

    def weights(self, bucket_bytes: int = BUCKET_BYTES) -> Iterator[list[tuple[str, Tensor]]]:
        """The whole weights by name, in buckets of about `bucket_bytes`; every rank must go through all of them.

        Under ZeRO-3 a bucket is gathered while it is being used, so no rank ever holds the whole model. Tied weights come once.
        """
        bucket: list[tuple[str, torch.nn.Parameter]] = []
        size = 0
        for name, parameter in self.model.named_parameters():
            bytes_ = getattr(parameter, "ds_numel", parameter.numel()) * parameter.element_size()
            if bucket and size + bytes_ > bucket_bytes:
                yield from self._gathered(bucket)
                bucket, size = [], 0
            bucket.append((name, parameter))
            size += bytes_
        yield from self._gathered(bucket)

    def _gathered(self, bucket: list[tuple[str, torch.nn.Parameter]]) -> Iterator[list[tuple[str, Tensor]]]:
        if self.ranks.zero == 3:
            import deepspeed

            with deepspeed.zero.GatheredParameters([parameter for _, parameter in bucket]):
                yield [(name, parameter.data) for name, parameter in bucket]
        else:
            yield [(name, parameter.data) for name, parameter in bucket]

    def export(self, folder: Path | None, tokenizer: Any) -> None:
        """Writes an ordinary Hugging Face folder, weights and tokenizer. Every rank calls it; the first one (`folder` given)
        writes."""
        state: dict[str, Tensor] = {}
        for bucket in self.weights():
            if folder is not None:
                state.update((name, tensor.detach().cpu().clone()) for name, tensor in bucket)
        if folder is not None:
            temporary = folder.with_name(f"{folder.name}.tmp")
            try:
                shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed here
                self.model.save_pretrained(temporary, state_dict=state)
                tokenizer.save_pretrained(temporary)
                shutil.rmtree(folder, ignore_errors=True)  # of a run that has gone on
                temporary.rename(folder)
            except (OSError, SafetensorError) as error:
                shutil.rmtree(temporary, ignore_errors=True)
                raise RunError(f"cannot write {folder}: {error}; mend that and start the same command again") from error


def learning_rate(step: int, config: OptimizerConfig, steps: int) -> float:
    """The learning rate of rollout batch `step`, counted from 1, of `steps`: linear warm-up, then the schedule."""
    if step <= config.warmup_steps:
        return config.lr * step / (config.warmup_steps + 1)
    left = (steps - step + 1) / max(1, steps - config.warmup_steps)  # 1 at the first step after warm-up, towards 0 at the end
    scale = {"constant": 1.0, "linear": left, "cosine": (1 - cos(pi * left)) / 2}[config.schedule]
    return config.lr * scale
