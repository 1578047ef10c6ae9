"""The model in training: log-probs, backward, optimizer step, export. Nothing else depends on whether ranks use DDP or ZeRO."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from minirl.config.options import Config, OptimizerConfig
from minirl.policy import lora
from minirl.policy.attention import Layout, Padded
from minirl.policy.logprobs import LogprobHead
from minirl.policy.micro_batches import MicroBatch, packed_micro_batch, padded_micro_batch
from minirl.policy.model import (
    choose_deterministic_kernels,
    compile_layers,
    load_model,
    model_plan,
    pair_cost,
    planned,
    with_exact_frequencies,
    write_model,
)  # fmt: skip
from minirl.policy.optimizer import build_optimizer
from minirl.policy.packing import packed_micro_batches, padded_micro_batches
from minirl.policy.packing_trial import why_not_packed
from minirl.rollout.types import Rollout
from minirl.utils.compiling import compiling_succeeds
from minirl.utils.console import say
from minirl.utils.distributed import Ranks
from minirl.utils.errors import RunError, require
from minirl.utils.memory import memory_suffices

# Size of the buckets in which weights are gathered for the engine or for export: bounds the extra memory.
BUCKET_BYTES = 512 * 2**20


class Policy:
    """The model being trained, its optimizer and, with kl_coef > 0, the frozen reference model: a second one, or where adapters
    are trained (lora.py) the same one with these off.

    version: optimizer steps so far; nonfinite: optimizer steps in a row that were skipped since their gradient was not finite;
    packs: whether micro-batches are packed; pair_cost: see `packed_micro_batches`; autocast: the context of forward passes.
    """

    def __init__(self, config: Config, ranks: Ranks, vocabulary: int) -> None:
        """vocabulary: size of the tokenizer's; the model's rows beyond it are padding and get no probability.

        RunError, with the memory plan, when memory does not suffice.
        """
        require(
            ranks.zero != 3 or config.rollout.engine != "transformers",
            "rollout.engine=transformers cannot sample from weights that ZeRO-3 has sharded: set rollout.engine=vllm or use "
            "ZeRO-2",
        )
        require(
            ranks.zero != 3 or not config.model.compile_layers,
            "model.compile_layers=true cannot compile across the hooks by which ZeRO-3 gathers the weights of a layer: set it "
            "to false or use ZeRO-2",
        )
        require(
            ranks.zero is None or config.optimizer.name == "adamw",
            f"optimizer.name={config.optimizer.name} does not work under DeepSpeed, which shards AdamW's moments itself: set "
            "it to adamw, or launch without DeepSpeed",
        )
        self.config = config = planned(config, ranks)
        self.ranks, self.version, self.nonfinite = ranks, 0, 0
        self.updated_tokens = 0
        self.micro: MicroBatch | None = None  # the current one, for the message when memory runs out
        # Not under DeepSpeed, which keeps bfloat16 weights itself.
        half = config.model.dtype == "bfloat16" and ranks.zero is None
        self.autocast: Callable[[], Any] = partial(torch.autocast, ranks.device.type, torch.bfloat16, enabled=half)
        if config.run.deterministic:
            choose_deterministic_kernels()
        with memory_suffices(lambda: ("loading the model", " | ".join(model_plan(config, ranks)))), compiling_succeeds():
            self.model = load_model(config.model)
            if config.model.lora.r:
                # DeepSpeed keeps float32 masters, but under ZeRO-3 does not cast what was added to the model it has sharded.
                cast = torch.bfloat16 if config.model.dtype == "bfloat16" and ranks.zero is not None else torch.float32
                lora.add_adapters(self.model, config.model.lora, config.run.seed, cast)
            if config.model.gradient_checkpointing:
                self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            self.vocabulary = min(vocabulary, self.model.config.vocab_size)
            self.pair_cost = pair_cost(self.model)
            self.head, self.optimizer = self._prepare()
            self.packs = self._can_be_packed()
            if config.model.compile_layers:
                compile_layers(self.model)
            self.reference: Callable[..., Any] | None = None
            if config.needs_reference:
                adapters = config.model.lora.r > 0
                self.reference = lora.without_adapters(self.model, self.head) if adapters else self._load_reference()

    def _prepare(self) -> tuple[Any, torch.optim.Optimizer]:
        """The log-prob head, plain, in DDP or in a DeepSpeed engine as launched, and its optimizer."""
        config, ranks, o = self.config, self.ranks, self.config.optimizer
        compiled = config.model.compile and ranks.device.type == "cuda"
        bonus = config.algorithm.entropy_coef > 0
        head = LogprobHead(self.model, config.rollout.temperature, self.vocabulary, bonus, compiled)
        if ranks.zero is None:
            head.to(ranks.device)
        optimizer = build_optimizer([p for p in head.parameters() if p.requires_grad], o)
        if ranks.zero is None:
            return ranks.accelerator.prepare_model(head), optimizer
        plugin = ranks.accelerator.state.deepspeed_plugin.deepspeed_config
        plugin.update(
            train_micro_batch_size_per_gpu=1,  # micro-batches and their weights are counted here, not there
            gradient_clipping=o.max_grad_norm,
            zero_allow_untested_optimizer=True,
            zero_force_ds_cpu_optimizer=False,  # torch's AdamW needs no compiler
            # Sums over many micro-batches in bfloat16 would lose the small ones; stages 0 and 1 refuse or change optimizer.
            **({"data_types": {"grad_accum_dtype": "fp32"}} if ranks.zero >= 2 else {}),
            zero_optimization=plugin["zero_optimization"] | ({"overlap_comm": True} if ranks.zero == 2 else {}),
            steps_per_print=10**9,
        )
        return ranks.accelerator.prepare(head, optimizer)

    def _can_be_packed(self) -> bool:
        """Whether the config asks for packing and the model can be packed; if it cannot, its attention becomes sdpa."""
        if self.config.model.attention != "packed":
            return False
        if self.model.config._attn_implementation == "packed":
            tolerance = 1e-3 if self.config.model.dtype == "float32" else 0.5  # nats; a trained model in bfloat16: 0.19
            self.head.eval()
            pack = partial(packed_micro_batch, device=self.ranks.device, layout=self._layout())
            reason = why_not_packed(lambda batch: self.logprobs(batch)[0], pack, self.model.config, tolerance)
        else:
            reason = "its attention is not transformers' attention interface"
        # If one rank cannot pack, none does: ranks plan their micro-batches together.
        if (reason := self.ranks.first(reason)) is None:
            return True
        self.model.set_attn_implementation("sdpa")
        if self.ranks.main:
            say(f"{type(self.model).__name__} cannot be packed ({reason}): its micro-batches are padded instead")
        return False

    def _layout(self) -> type[Layout]:
        """The kernel of packed attention: flash attention needs a GPU and half precision."""
        if self.ranks.device.type != "cuda" or self.config.model.dtype != "bfloat16":
            return Padded
        from minirl.policy.varlen import Varlen

        return Varlen

    def _load_reference(self) -> LogprobHead:
        """The frozen starting model in the compute precision, whole on every rank: ZeRO does not shard it."""
        if self.ranks.zero is not None:
            unset_hf_deepspeed_config()
        half = self.config.model.dtype == "bfloat16" and self.ranks.zero is not None
        model = load_model(self.config.model).to(self.ranks.device, torch.bfloat16 if half else torch.float32)
        model = with_exact_frequencies(model.requires_grad_(False).eval())
        model.set_attn_implementation(self.model.config._attn_implementation)
        return LogprobHead(model, self.config.rollout.temperature, self.vocabulary, False)

    def micro_batches(self, rollouts: Sequence[Rollout]) -> list[MicroBatch]:
        """This rank's share of `rollouts`, which every rank passes in the same order; equally many micro-batches on each rank.

        All are made at once, so that no copy to the device waits between forward passes.
        """
        budget, ranks = self.config.optimizer.micro_batch_tokens or 0, self.ranks.size  # never null: see `planned`
        if self.packs:
            prompts, lengths = [tuple(r.prompt_ids) for r in rollouts], [r.length for r in rollouts]
            shares = packed_micro_batches(prompts, [len(p) for p in prompts], lengths, budget, ranks, self.pair_cost)
        else:
            shares = padded_micro_batches([len(r.prompt_ids) + r.length for r in rollouts], budget, ranks)
        return [self.micro_batch(rollouts, indices) for indices in shares[self.ranks.rank]]

    def micro_batch(self, rollouts: Sequence[Rollout], indices: list[int]) -> MicroBatch:
        """The rollouts at `indices`, packed where the model can be."""
        if self.packs:
            return packed_micro_batch(rollouts, indices, self.ranks.device, self._layout())
        return padded_micro_batch(rollouts, indices, self.ranks.device)

    def logprobs(self, batch: MicroBatch, entropy: bool = True, head: Any = None, top_k: int = 0) -> tuple[Tensor, Tensor]:
        """(float[T] log-probs with gradient, float[T] entropies, zeros unless `entropy`) of the response tokens, nats. head:
        None for the policy's. top_k: how many of the likeliest tokens' log-probs are set in the batch."""
        head = self.head if head is None else head
        with self.autocast():
            logprobs, entropies, *top = head(batch.inputs, batch.logit_index, batch.targets, entropy, top_k)
        batch.top_logprobs = top[0] if top else None
        return logprobs, entropies

    @torch.no_grad()
    def compute_logprobs(self, rollouts: Sequence[Rollout], old: bool, entropy: bool = False) -> None:
        """Sets the rollouts' ref_logprobs if there is a reference and, if `old`, their old_logprobs and, if `entropy`, their
        entropies."""
        if not rollouts or not (old or self.reference):
            return
        self.head.eval()
        computed: list[tuple[int, Any, Any, Any]] = []
        for batch in self.micro_batches(rollouts):
            self.micro = batch
            columns: list[Any] = [[None] * len(batch.indices)] * 3
            if old:
                columns[0], columns[1] = (batch.split(x) for x in self.logprobs(batch, entropy))
            if self.reference is not None:
                columns[2] = batch.split(self.logprobs(batch, False, self.reference)[0])
            computed += zip(batch.indices, *columns, strict=True)
        for i, old_logprobs, entropies, ref_logprobs in self.ranks.gather(computed):
            r = rollouts[i]
            r.old_logprobs, r.ref_logprobs = old_logprobs, ref_logprobs
            r.entropies = entropies if entropy else None

    def accumulate(self, loss: Tensor) -> None:
        """Adds the gradient of a micro-batch's part of the loss, the sum of its weighted token losses."""
        # DDP and ZeRO average over ranks; token weights are made for the sum. A loss that is not finite makes every gradient
        # NaN: all ranks see that when gradients are reduced, and skip the step together.
        loss = loss * torch.where(loss.detach().isfinite(), float(self.ranks.size), torch.nan)
        if self.ranks.zero is None:
            loss.backward()
        else:
            self.head.backward(loss)

    def gradient_steps(self, rollouts: Sequence[Rollout], weights: Sequence[float] | None = None) -> Iterator[MicroBatch]:
        """This rank's micro-batches of one optimizer step over `rollouts`. Gradients are reduced over ranks on the last one
        only (under ZeRO-2 and -3 on each). weights: token weights of each rollout; with them micro-batches get loss inputs."""
        self.head.train()
        batches = self.micro_batches(rollouts)
        self.updated_tokens += sum(batch.inputs["input_ids"].numel() for batch in batches)
        if weights is not None:
            for batch in batches:
                batch.add_loss_inputs(weights)
        for batch in batches:
            self.micro, last = batch, batch is batches[-1]
            if self.ranks.zero is not None:
                self.head.set_gradient_accumulation_boundary(last)
            local = isinstance(self.head, torch.nn.parallel.DistributedDataParallel) and not last
            with self.head.no_sync() if local else contextlib.nullcontext():
                yield batch

    def pop_updated_tokens(self) -> int:
        """Tokens of this rank's micro-batches of optimizer steps, padding included, since the last call."""
        tokens, self.updated_tokens = self.updated_tokens, 0
        return tokens

    def step(self, lr: float) -> float:
        """One optimizer step on the accumulated gradient; returns its norm before clipping.

        If the norm is not finite, on all ranks alike, the step is skipped: weights, optimizer state and version do not change,
        the gradient is dropped and `nonfinite` is increased.
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
        """`step` under DeepSpeed, which detects non-finite gradients itself, except in ZeRO-0 with float32."""
        plain = [p.grad for p in self.head.parameters() if p.grad is not None] if self.ranks.zero == 0 else []
        norm = float(torch.nn.utils.get_total_norm(plain))  # ZeRO-0 in float32 clips without reporting the norm
        if not np.isfinite(norm):
            self.head.zero_grad()
            return norm
        self.head.step()
        if (reported := self.head.get_global_grad_norm()) is not None:
            norm = float(reported)
        if not np.isfinite(norm) and not self.head.optimizer.overflow:
            raise RunError(
                f"the gradient norm is {norm} at optimizer step {self.version + 1} and DeepSpeed took the step: "
                "the weights are spoilt; start the same command again to resume from the last checkpoint, with DeepSpeed 0.19.8"
            )
        return norm

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Context for work on micro-batches: deterministic kernels if the config asks for them; running out of memory becomes a
        RunError that names a size to try."""
        # Not for the whole process: the engine may need kernels that have no deterministic variant.
        torch.use_deterministic_algorithms(self.config.run.deterministic)
        try:
            with memory_suffices(self._explain_memory), compiling_succeeds():
                yield
        finally:
            torch.use_deterministic_algorithms(False)

    def _explain_memory(self) -> tuple[str, str]:
        """(the micro-batch that ran out of memory, the remedy)."""
        rollouts, tokens = (self.micro.rollouts, self.micro.inputs["input_ids"].numel()) if self.micro else ([], 0)
        budget = f"optimizer.micro_batch_tokens={self.config.optimizer.micro_batch_tokens}"
        work = f"a micro-batch of {len(rollouts)} sequences, {tokens} tokens as computed ({budget})"
        if len(rollouts) > 1:
            half = max(tokens // 2, *(len(r.prompt_ids) + r.length for r in rollouts))
            return work, f"set optimizer.micro_batch_tokens={half} and start the same command again"
        return work, (
            "one sequence alone is too much: set model.gradient_checkpointing=true, lower rollout.max_response_tokens "
            "or rollout.vllm.gpu_memory_utilization, or use more GPUs with ZeRO-3"
        )

    def weights(self, bucket_bytes: int = BUCKET_BYTES) -> Iterator[list[tuple[str, Tensor]]]:
        """All weights as (name, tensor), adapters merged into them, in buckets of about `bucket_bytes`, tied ones once; every
        rank must iterate over all.

        Under ZeRO-3 a bucket is gathered while it is in use, so that no rank ever holds the whole model.
        """
        bucket: list[tuple[str, lora.Weight]] = []
        size = 0
        for name, weight in lora.weights_of(self.model):
            bytes_ = getattr(weight.base, "ds_numel", weight.base.numel()) * weight.base.element_size()
            if bucket and size + bytes_ > bucket_bytes:
                yield from self._gathered(bucket)
                bucket, size = [], 0
            bucket.append((name, weight))
            size += bytes_
        yield from self._gathered(bucket)

    def _gathered(self, bucket: list[tuple[str, lora.Weight]]) -> Iterator[list[tuple[str, Tensor]]]:
        if self.ranks.zero == 3:
            import deepspeed

            with deepspeed.zero.GatheredParameters([p for _, weight in bucket for p in (weight.base, *weight.adapter)]):
                yield [(name, weight.merged()) for name, weight in bucket]
        else:
            yield [(name, weight.merged()) for name, weight in bucket]

    def export(self, folder: Path | None, tokenizer: Any) -> None:
        """Writes a Hugging Face folder, weights and tokenizer. Every rank calls it; the first, which has a `folder`, writes."""
        state: dict[str, Tensor] = {}
        for bucket in self.weights():
            if folder is not None:
                state.update((name, tensor.detach().cpu().clone()) for name, tensor in bucket)
        if folder is not None:
            write_model(self.model, state, folder, tokenizer)


def learning_rate(step: int, config: OptimizerConfig, steps: int) -> float:
    """The learning rate of `step`, one of 1 ... `steps`: linear warm-up, then the schedule."""
    if step <= config.warmup_steps:
        return config.lr * step / (config.warmup_steps + 1)
    left = (steps - step + 1) / max(1, steps - config.warmup_steps)  # 1 at the first step after warm-up, towards 0 at the end
    scale = {"constant": 1.0, "linear": left, "cosine": (1 - cos(pi * left)) / 2}[config.schedule]
    return config.lr * scale
