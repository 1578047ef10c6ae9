"""The engine for real runs: vLLM inside this process, one engine for each rank, or each group of tensor-parallel ranks.

No sampling parameter comes from the model's generation_config; log-probs are those of the sampling distribution; ids beyond the
tokenizer are never sampled; `sync` drops all caches of older weights. All code that depends on vLLM's version is in this file;
the versions that were tried are in minirl/utils/versions.py.
"""

import contextlib
import gc
import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minirl.config.options import Config
from minirl.rollout.sampler import stable_seed
from minirl.rollout.types import LENGTH, STOP, Completion, EnginePolicy, Rollout, SamplingParams
from minirl.utils.console import say
from minirl.utils.errors import ConfigError, RunError
from minirl.utils.memory import memory_suffices
from minirl.utils.versions import INSTALL, installed, untried


def import_vllm() -> Any:
    """The vllm module, set up to run in this process. ConfigError with the remedy when it is missing."""
    # Read by vLLM at import. A separate engine process would serialise every token and log-prob.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if not torch.cuda.is_available():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    # vLLM 0.32 scans modules for Triton kernels and so touches deprecated names of torch.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.reduce_op` is deprecated", FutureWarning)
    try:
        import vllm
    except ImportError as error:
        raise ConfigError(
            f"rollout.engine=vllm needs vLLM, which does not import ({error}): {INSTALL['vllm']}, or set "
            "rollout.engine=transformers, which needs no vLLM"
        ) from None
    if not torch.cuda.is_available():
        # With oneDNN, linear layers compute with a repacked copy and ignore weights that are loaded later.
        import vllm._custom_ops as ops

        ops._supports_onednn = False
    return vllm


def mask_ids_beyond(model: Any, vocabulary: int) -> None:
    """Masks ids from `vocabulary` on, the padding of the output layer, so that they are never sampled."""
    compute = model.compute_logits

    def without_padding(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute(hidden)
        if logits is not None:
            logits[..., vocabulary:] = -torch.inf
        return logits

    model.compute_logits = without_padding


def rounding_of_tempered_logits(temperature: float) -> list[str]:
    """A note where vLLM rounds logits after dividing them by the temperature."""
    version = installed("vllm")
    if temperature == 1 or version is None or tuple(map(int, version.split(".")[:2])) >= (0, 32):
        return []
    return [
        f"note: vLLM {version} divides logits by the temperature {temperature:g} in the model's precision: in bfloat16 its "
        "log-probs differ from the trainer's by up to 0.05 nats; vLLM 0.32 divides in float32"
    ]


def remove_shared_memory() -> None:
    """Removes shared memory that an earlier run of vLLM's CPU ranks left: its name is fixed and must not exist."""
    for stale in Path("/dev/shm").glob("*-cpushm_*"):
        with contextlib.suppress(FileNotFoundError):  # of a run that removed it in the meantime
            if stale.stat().st_uid == os.getuid():
                stale.unlink()


class VllmEngine:
    """See `Engine`. One engine in the process of each rank, or of each `rollout.vllm.tensor_parallel` ranks together."""

    def __init__(self, config: Config, policy: EnginePolicy, ends: Sequence[int], longest_prompt: int) -> None:
        """ends: stop token ids; longest_prompt: tokens; with the longest response it sets the engine's context length."""
        vllm = import_vllm()
        if policy.ranks.main:
            for sentence in (*untried("vllm"), *rounding_of_tempered_logits(config.rollout.temperature)):
                say(sentence)
        v, ranks = config.rollout.vllm, policy.ranks
        if ranks.size % v.tensor_parallel:
            raise ConfigError(
                f"rollout.vllm.tensor_parallel={v.tensor_parallel} does not divide the {ranks.size} ranks of the run: lower "
                "it, or start more processes"
            )
        self.ends, self.sampling_params, self.ranks_per_engine = list(ends), vllm.SamplingParams, v.tensor_parallel
        gpu = torch.cuda.is_available()
        self.sleeps = gpu and v.sleep
        self.vocabulary = policy.vocabulary
        longest_response = max(config.rollout.max_response_tokens, config.eval.max_response_tokens or 0)
        more: dict[str, Any] = {"enable_sleep_mode": True} if self.sleeps else {}
        if v.tensor_parallel > 1 and "enable_batch_sharded_sampling" in inspect.signature(vllm.EngineArgs).parameters:
            # It computes logits by another method than the one that `mask_ids_beyond` replaces.
            more["enable_batch_sharded_sampling"] = False
        if not gpu:
            # Chunked prefill rewinds the random generator after each chunk, which CPU generators cannot do.
            more["enable_chunked_prefill"] = False
            if v.tensor_parallel > 1:
                if ranks.main:
                    remove_shared_memory()
                ranks.barrier()
        try:
            self.llm = vllm.LLM(
                model=policy.model.config.name_or_path, revision=config.model.revision, skip_tokenizer_init=True, seed=0,
                dtype=config.model.dtype, max_model_len=longest_prompt + longest_response,
                max_num_seqs=config.rollout.max_sequences, gpu_memory_utilization=v.gpu_memory_utilization,
                enforce_eager=not gpu or v.enforce_eager, tensor_parallel_size=v.tensor_parallel, enable_prefix_caching=True,
                generation_config="vllm", logprobs_mode="processed_logprobs", disable_log_stats=True,
                # With "uni" the engines of all ranks would be on the first GPU.
                distributed_executor_backend="external_launcher" if ranks.size > 1 else "uni", **more,
            )  # fmt: skip
        except (RuntimeError, ValueError, torch.OutOfMemoryError) as error:
            raise ConfigError(
                f"vLLM does not start: {' '.join(str(error).split())[:400]}; if it lacks memory, lower its share of the GPU, "
                f"rollout.vllm.gpu_memory_utilization={v.gpu_memory_utilization}, or raise it if the KV cache is too small; "
                "rollout.max_sequences and the lengths can be lowered too"
            ) from error
        if gpu and torch.cuda.current_device() != ranks.device.index:
            raise RuntimeError(f"vLLM of rank {ranks.rank} took GPU {torch.cuda.current_device()} instead of {ranks.device}")
        self.engine = self.llm.llm_engine
        self.model = self.engine.model_executor.driver_worker.worker.model_runner.model
        mask_ids_beyond(self.model, self.vocabulary)
        self.asleep, self.requests, self.version = False, 0, 0
        self.progress: Callable[[int], None] = lambda tokens: None
        self.sync(policy)

    def generate(
        self, prompts: Sequence[list[int]], params: SamplingParams, seeds: Sequence[int], keep: int | None = None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """See `Engine.generate`."""
        # A prefix cache hit changes rounding, and a batch must not depend on what this process sampled before.
        self.reset_prefix_cache()
        missing = len(prompts) if keep is None else keep
        if not missing:
            return
        first, open_requests = self.requests, {}
        for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            name = str(self.requests)
            self.requests += 1
            open_requests[i] = self.engine.add_request(name, {"prompt_token_ids": prompt}, self.parameters(params, seed))
        while missing and self.engine.has_unfinished_requests():
            finished = self.finished(first)
            for i in sorted(finished):
                del open_requests[i]
                if missing:
                    missing -= 1
                    yield i, [completion_of(output, self.vocabulary) for output in finished[i]]
        # By vLLM's internal ids: by ours, it would keep the state of requests of which some completions have finished.
        self.engine.abort_request(list(open_requests.values()), internal=True)
        self.reset_prefix_cache()

    def extend(
        self, rollouts: Sequence[Rollout], keys: Sequence[tuple[int, int]], params: SamplingParams, tokens: int
    ) -> list[Completion]:
        """See `Engine.extend`. Each is a request of its own, whose keys and values of the slice before are in the prefix cache
        unless the weights have changed. A generator begins anew with a request, so its seed depends on the tokens so far."""
        first = self.requests
        for rollout, (seed, j) in zip(rollouts, keys, strict=True):
            one = replace(params, n=1, max_tokens=min(tokens, params.max_tokens - rollout.length))
            ids = {"prompt_token_ids": [*rollout.prompt_ids, *rollout.completion.ids.tolist()]}
            self.engine.add_request(str(self.requests), ids, self.parameters(one, stable_seed(seed, j, rollout.length)))
            self.requests += 1
        found: dict[int, Any] = {}
        while self.engine.has_unfinished_requests():
            found |= self.finished(first)
        return [completion_of(found[i][0], self.vocabulary) for i in range(len(rollouts))]

    def finished(self, first: int) -> dict[int, Any]:
        """One step of the engine; outputs of the requests that it finished, by their numbers from `first` on."""
        # Running requests get one token each.
        self.progress(self.engine.engine_core.engine_core.scheduler.get_request_counts()[0])
        # The request's name is its number; 0.32 appends a random suffix.
        return {int(o.request_id.split("-")[0]) - first: o.outputs for o in self.step() if o.finished}

    def step(self) -> list[Any]:
        """One step of the engine. RunError, with what to lower, when it runs out of memory."""
        remedy = "lower rollout.max_sequences or rollout.vllm.gpu_memory_utilization"
        with memory_suffices(lambda: ("sampling with vLLM", remedy)):
            return self.engine.step()

    def parameters(self, params: SamplingParams, seed: int) -> Any:
        """vLLM's SamplingParams, with every field set that affects the distribution."""
        fields: dict[str, Any] = {
            "n": params.n, "temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k,
            "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "seed": seed,
            "stop": None, "stop_token_ids": self.ends, "ignore_eos": False, "max_tokens": params.max_tokens,
            "min_tokens": 0, "logprobs": 0, "detokenize": False, "flat_logprobs": True, "logit_bias": None, "bad_words": None,
        }  # fmt: skip
        if hasattr(self.sampling_params, "watermarking"):
            fields["watermarking"] = False
        result = self.sampling_params(**fields)
        result.output_kind = type(result.output_kind).FINAL_ONLY
        return result

    def sync(self, policy: EnginePolicy) -> None:
        """Loads the policy's weights, bucket by bucket, into the engine's model and drops the prefix cache."""
        if self.asleep:
            # Memory that the trainer has freed stays in torch's cache: vLLM 0.32 empties that itself, 0.26 does not.
            gc.collect()
            torch.cuda.empty_cache()
            self.wake("weights")
        for bucket in policy.weights():
            self.model.load_weights(iter(bucket))
        if self.asleep:
            self.wake("kv_cache")
            self.asleep = False
        self.reset_prefix_cache()
        self.version = policy.version

    def reset_prefix_cache(self) -> None:
        """Drops cached keys and values, which belong to the old weights and survive a sleep (vLLM #17103)."""
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not drop its prefix cache: requests are still running")

    def wake(self, part: str) -> None:
        """Allocates "weights" or "kv_cache" again. RunError, with what to lower, when the trainer leaves too little memory."""
        try:
            self.llm.wake_up(tags=[part])
        except RuntimeError as error:  # also torch.OutOfMemoryError
            raise RunError(
                f"vLLM cannot take back its {part}: {' '.join(str(error).split())[:300]}; lower "
                "rollout.vllm.gpu_memory_utilization or optimizer.micro_batch_tokens, or set model.gradient_checkpointing=true"
            ) from error

    def sleep(self) -> None:
        """Frees GPU memory for the trainer, where supported; weights are dropped and loaded again by `sync`."""
        if self.sleeps and not self.asleep:
            self.llm.sleep(level=2)
            self.asleep = True

    def close(self) -> None:
        """Frees weights and KV cache, to which vLLM keeps references, so that this process can start another engine."""
        for parameter in self.model.parameters():
            parameter.data = parameter.data.new_empty(0)
        runner = self.engine.model_executor.driver_worker.worker.model_runner
        runner.kv_caches.clear()
        for layer in runner.vllm_config.compilation_config.static_forward_context.values():
            if hasattr(layer, "kv_cache"):
                layer.kv_cache = []


def completion_of(output: Any, vocabulary: int) -> Completion:
    """A Completion from vLLM's CompletionOutput. RuntimeError when its log-probs are of other tokens than the sampled ones, or
    a token is beyond the tokenizer's `vocabulary`."""
    ids = np.asarray(output.token_ids, dtype=np.int32)
    starts = np.asarray(output.logprobs.start_indices, dtype=np.int64)
    if len(starts) != len(ids) or not np.array_equal(np.asarray(output.logprobs.token_ids)[starts], ids):
        raise RuntimeError("vLLM gave log-probs of other tokens than the sampled ones: this version is not supported")
    if len(ids) and ids.max() >= vocabulary:
        raise RuntimeError(
            f"vLLM sampled token {ids.max()}, padding beyond the tokenizer's {vocabulary}: this version computes logits past "
            "the mask that minirl sets"
        )
    logprobs = np.asarray(output.logprobs.logprobs, dtype=np.float32)[starts]
    if output.finish_reason not in (STOP, LENGTH):
        raise RuntimeError(f"vLLM ended a response for the reason {output.finish_reason!r}: the engine is not healthy")
    return Completion(ids, logprobs, output.finish_reason)
