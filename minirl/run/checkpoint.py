"""Checkpoints: RUN/checkpoints/stepNNNNNN holds all that an exact resume needs.

    state.json            `State`, `fingerprint` and the number and kind of ranks
    surplus.npz           groups carried over to the next step
    rankNNN.safetensors   the rank's slices of the trained float32 weights and of AdamW's state (shards.py)
    rankNNN.json          states of the rank's random generators
    manifest.json         sizes and digests of the other files (manifest.py)

Older checkpoints are removed only when a new one is valid. All ranks must see the same run folder.
"""

import concurrent.futures
import hashlib
import json
import random
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minirl.config.options import Config, VerifierConfig
from minirl.data.prompts import Prompt
from minirl.policy.policy import Policy
from minirl.rollout import records
from minirl.rollout.types import Rollout
from minirl.run import shards
from minirl.run.manifest import MANIFEST, damage, flush, name_of, publish, recover, steps_of, write
from minirl.utils.console import discard, must_write, say
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError, RunError
from minirl.verify.rewards import reward_file

COSTS = ("checkpoint/seconds", "checkpoint/bytes")
STARTING_WEIGHTS = "the starting model's weights"


@dataclass
class State:
    """The state of a run between two steps. step: the last one done; position: prompts drawn; version: of the policy;
    evaluations: (step, result); seconds: run time so far; metrics_bytes: length of metrics.jsonl; surplus: groups carried over,
    with rollout.ahead unfinished ones too; nonfinite: optimizer steps in a row that were skipped; empty: batches in a row
    without signal; tokens, training_seconds: generated in, and spent on, all steps so far; kept_share: of the last step's
    groups, by dynamic sampling, 0 if unknown."""

    step: int = 0
    position: int = 0
    version: int = 0
    evaluations: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    seconds: float = 0.0
    metrics_bytes: int = 0
    surplus: list[list[Rollout]] = field(default_factory=list)
    nonfinite: int = 0
    empty: int = 0
    tokens: int = 0
    training_seconds: float = 0.0
    kept_share: float = 0.0

    @property
    def best(self) -> int | None:
        """The step after which pass@1 was best, the earliest on a tie; the evaluation before training does not count."""
        during = [(result["pass@1"], -step) for step, result in self.evaluations if step]
        return -max(during)[1] if during else None


def fingerprint(
    prompts: Sequence[Prompt], test: Sequence[Prompt], tokenizer: Any, model_config: Any, verifier: VerifierConfig,
    own_code: Sequence[str] = (),
) -> dict[str, str]:  # fmt: skip
    """SHA-256 by name of all that must be unchanged in a resumed run, except the weights: see `weights_digest`.

    own_code: names file.py:name of the user's code besides the rewards.
    """

    def digest(items: Any) -> str:
        total = hashlib.sha256()
        for item in items:
            total.update(repr(item).encode("utf-8", "surrogatepass"))
        return total.hexdigest()

    def content(prompts: Sequence[Prompt]) -> Any:
        return ((p.text, p.ids, p.problem.answer, sorted(p.problem.extra_info.items())) for p in prompts)

    def contents(names: Sequence[str]) -> list[bytes]:
        return [file.read_bytes() for name in names if (file := reward_file(name))]

    names = [verifier.name, *(str(reward[0]) for reward in verifier.rewards)]
    own = {f"file of {name}": digest(contents([name])) for name in own_code}
    sizes = {k: v for k, v in model_config.to_dict().items() if k not in ("_name_or_path", "transformers_version", "dtype")}
    return {
        "training problems": digest(content(prompts)),
        "held-out problems": digest(content(test)),
        "tokenizer": digest([sorted(tokenizer.get_vocab().items()), tokenizer.chat_template, tokenizer.all_special_ids]),
        "model's config": digest([json.dumps(sizes, sort_keys=True, default=str)]),
        "reward file": digest(contents(names)),
    } | own


def weights_digest(policy: Policy) -> str:
    """`digest_of_weights` of a policy, which does not depend on file or sharding. Every rank calls it."""
    # Every rank goes through all buckets, which ZeRO-3 gathers together.
    buckets = (bucket if policy.ranks.main else [] for bucket in policy.weights())
    return policy.ranks.gather([digest_of_weights(item for bucket in buckets for item in bucket)])[0]


def digest_of_weights(weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 of name, shape and `checksum` of each weight."""
    total = hashlib.sha256()
    for name, tensor in weights:
        total.update(f"{name} {list(tensor.shape)} {checksum(tensor)}\n".encode())
    return total.hexdigest()


@torch.no_grad()
def checksum(tensor: torch.Tensor, piece: int = 2**24) -> int:
    """A checksum of numbers rounded to bfloat16, computed on their device: SHA-256 of the 16 GB of an 8B model takes 10 to 28
    seconds.

    Four numbers are one 64-bit integer; the sum modulo 2^64 of each times an odd number that depends on its position. So any
    change of one number shows for certain, and other changes almost for certain. piece: numbers at once, a multiple of 4.
    """
    total, numbers = 0, tensor.detach().reshape(-1)
    for start in range(0, len(numbers), piece):
        rounded = numbers[start : start + piece].to(torch.bfloat16)
        words = torch.nn.functional.pad(rounded, (0, -len(rounded) % 4)).view(torch.int64)
        position = torch.arange(start // 4, start // 4 + len(words), device=words.device) * -7046029254386353131
        total += int((words * (2 * (position ^ (position >> 29)) + 1)).sum())
    return total % 2**64


def generators() -> dict[str, Any]:
    """The states of this process's random generators, ready for JSON."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *rest],  # type: ignore[union-attr]
        "torch": bytes(torch.get_rng_state().tolist()).hex(),
        "device": [bytes(s.tolist()).hex() for s in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
    }


def restore_generators(saved: dict[str, Any]) -> None:
    """Sets the random generators to the states that `generators` returned."""
    version, values, gauss_next = saved["python"]
    random.setstate((version, tuple(values), gauss_next))
    kind, keys, *rest = saved["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))
    torch.set_rng_state(torch.tensor(list(bytes.fromhex(saved["torch"])), dtype=torch.uint8))
    for device, state in enumerate(saved["device"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8), device)


def restore(policy: Policy, folder: Path, version: int) -> None:
    """Loads weights and optimizer state of a valid checkpoint into `policy` and sets its version."""
    names = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    shards.unpack(policy, [folder / name for name in names if name.endswith(".safetensors")])
    policy.version = version


class Checkpoints:
    """The checkpoints of one run. Every rank calls every method, at the same step."""

    def __init__(self, config: Config, ranks: Ranks, folder: Path | None, fingerprint: dict[str, str]) -> None:
        """folder: the run's, None on ranks other than the first; fingerprint: see `fingerprint`."""
        self.run, self.ranks, self.fingerprint = config.run, ranks, fingerprint
        zero = "" if ranks.zero is None else f" of ZeRO-{ranks.zero}"
        self.layout = f"{ranks.size} rank{'s' * (ranks.size > 1)}{zero}"
        self.root = Path(ranks.gather([folder])[0] or ".") / "checkpoints"
        self.found: Path | None = None
        self.found_fingerprint: dict[str, str] = {}
        self.damaged: set[str] = set()  # names of checkpoints that were skipped
        self.saved = 0  # step of the newest valid checkpoint
        self.error = ""  # why the last one could not be written
        self.writer = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self.pending: tuple[Path, State, concurrent.futures.Future] | None = None
        self.costs = dict.fromkeys(COSTS, 0.0)

    def newest(self) -> State:
        """The state in the newest valid checkpoint, or in the one that `run.resume` names; a new state if there is none.

        ConfigError when all are damaged, or when data, tokenizer, rewards or the model's config have changed.
        """
        if self.ranks.main:
            recover(self.root)
        named = [Path(self.run.resume).resolve().name] if self.run.resume not in ("auto", "never") else None
        names = named or self.ranks.gather([[folder.name for _, folder in steps_of(self.root)]])[0]
        skipped, state = [], State()
        for name in names:
            if not (reason := self.damage(name)):
                self.found = self.root / name
                state = self.read(self.found)
                break
            skipped.append(f"{name}: {reason}")
            self.damaged.add(name)
        refusal = self.ranks.gather([self.refusal(state, skipped) if self.ranks.main else None])[0]
        if refusal:
            raise ConfigError(f"{refusal}; nothing was changed")
        for text in skipped if self.ranks.main else []:
            say(f"warning: a checkpoint is damaged and was skipped: {text}")
        self.saved = state.step
        return state

    def damage(self, name: str) -> str | None:
        """What is wrong with a checkpoint or None, the same on all ranks, each of which checks a part of the files."""
        return self.ranks.first(damage(self.root / name, self.ranks.rank, self.ranks.size))

    def read(self, folder: Path) -> State:
        """The state in a valid checkpoint. ConfigError when its fingerprint differs."""
        saved = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        self.found_fingerprint, layout = saved.pop("fingerprint"), saved.pop("layout")
        self.check_fingerprint()
        if self.ranks.main:
            say(f"resuming after step {saved['step']}, from {folder}")
            if layout != self.layout:
                say(
                    f"note: it was saved by {layout} and is resumed by {self.layout}: data order, weights, optimizer state and "
                    "seeds continue, but sums over ranks are taken in another order: later numbers differ by rounding"
                )
        saved["evaluations"] = [(step, result) for step, result in saved["evaluations"]]
        return State(**saved, surplus=records.load(folder / "surplus.npz"))

    def check_fingerprint(self) -> None:
        """ConfigError when the fingerprint differs from the checkpoint's."""
        if changed := [name for name, digest in self.fingerprint.items() if self.found_fingerprint.get(name) != digest]:
            raise ConfigError(
                f"{' and '.join(changed)} changed since {self.found} was saved: put back what the run was started with, or "
                "start another run with another --run-dir; nothing was changed"
            )

    def refusal(self, state: State, skipped: list[str]) -> str | None:
        """Why the run cannot resume from `state`, or None. skipped: what is wrong with damaged checkpoints."""
        remedy = "or start anew with another --run-dir"
        if self.found is None and skipped:
            return f"no checkpoint in {self.root} can be used ({'; '.join(skipped)}): name an older one with --resume, {remedy}"
        metrics = self.root.parent / "metrics.jsonl"
        lines = metrics.read_bytes() if metrics.exists() else b""
        if self.found and (len(lines) < state.metrics_bytes or lines[: state.metrics_bytes].count(b"\n") != state.step):
            return f"{metrics} does not hold the {state.step} steps before {self.found}: restore that file, {remedy}"
        return None

    def load(self, policy: Policy, state: State) -> None:
        """Loads the checkpoint that `newest` found, if any, into `policy` and removes later or unfinished ones. ConfigError
        when `policy` does not have the weights that the run started with."""
        self.fingerprint[STARTING_WEIGHTS] = weights_digest(policy)
        if self.found is not None:
            self.check_fingerprint()
            restore(policy, self.found, state.version)
        if not self.ranks.main:
            return
        for step, folder in steps_of(self.root) if self.found else []:
            if step > state.step and folder.name not in self.damaged:
                with must_write(folder):
                    shutil.rmtree(folder)
                say(f"removed {folder}: the run resumes from {name_of(state.step)}")
        for unfinished in self.root.glob("*.tmp"):
            discard(unfinished)

    def load_generators(self) -> None:
        """Restores this rank's random generators, after anything that seeds them; a new rank keeps its own."""
        if self.found is not None and (path := self.found / f"rank{self.ranks.rank:03}.json").exists():
            restore_generators(json.loads(path.read_text(encoding="utf-8")))

    def after_step(self, policy: Policy, state: State, now: bool) -> None:
        """Saves after every run.save_every steps, a new best, or `now`; publishes what was written in the background."""
        due = now or (self.run.save_every and state.step % self.run.save_every == 0) or state.best == state.step
        if not due and self.pending is None:
            return
        begin = time.perf_counter()
        self.settle(wait=due)
        if due:
            self.save(policy, state)
        self.costs["checkpoint/seconds"] += time.perf_counter() - begin

    def ensure(self, policy: Policy, state: State) -> None:
        """Saves `state` unless a valid checkpoint of its step is there, or being written."""
        self.settle()
        if self.damage(name_of(state.step)):
            self.save(policy, state)
            self.settle()

    def require(self, step: int) -> None:
        """RunError when the run is stopped after `step` but its checkpoint could not be written."""
        if self.saved != step:
            again = "the same command repeats the others" if self.saved else f"remove {self.root.parent} to begin again"
            raise RunError(f"stopped after step {step}, but only step {self.saved} could be saved: {self.error}; {again}")

    def save(self, policy: Policy, state: State) -> None:
        """Writes the state, tensor by tensor; with run.save_in_background one copy in host memory, in another thread."""
        rank = f"rank{self.ranks.rank:03}"
        tensors = shards.pack(policy, copy=self.run.save_in_background)
        files: dict[str, Iterable[bytes | memoryview]] = {
            f"{rank}.safetensors": shards.serialised(tensors), f"{rank}.json": [json.dumps(generators()).encode()],
        }  # fmt: skip
        if self.ranks.main:
            content = vars(state) | {"fingerprint": self.fingerprint, "layout": self.layout}
            content.pop("surplus")
            files |= {"state.json": [json.dumps(content).encode()], "surplus.npz": [records.dumps(state.surplus)]}
        temporary = self.root / f"{name_of(state.step)}.tmp"
        self.pending = (temporary, state, self.writer.submit(write, temporary, files))
        if not self.run.save_in_background:
            self.settle()

    def settle(self, wait: bool = True) -> None:
        """Publishes the pending checkpoint if every rank has written its part. wait: until they have.

        RunError when that failed and run.on_save_error=stop.
        """
        if self.pending is None:
            return
        temporary, state, writing = self.pending
        if wait:
            concurrent.futures.wait([writing])
        if not all(self.ranks.gather([writing.done()])):
            return
        self.pending = None
        error = writing.exception()
        if error is not None and not isinstance(error, OSError):
            raise error
        parts = self.ranks.gather([({}, str(error)) if error else (writing.result(), "")])
        entries = {name: entry for part, _ in parts for name, entry in part.items()}
        errors = [text for _, text in parts if text]
        if not errors:
            self.costs["checkpoint/bytes"] += sum(length for length, _ in entries.values())
            errors = [text for text in self.ranks.gather([self.publish(temporary, entries)]) if text]
        if errors:
            self.failed(temporary, errors[0])
        else:
            self.saved = state.step
            self.prune(state)

    def publish(self, temporary: Path, entries: dict[str, list[Any]]) -> str:
        """On the first rank: makes a written checkpoint valid. Returns the error, "" without one."""
        if not self.ranks.main:
            return ""
        try:
            flush(self.root.parent / "metrics.jsonl")  # its length is in the checkpoint
            publish(temporary, entries)
        except OSError as error:
            return str(error)
        return ""

    def prune(self, state: State) -> None:
        """On the first rank: removes damaged checkpoints and all valid ones but the newest run.keep and the best."""
        self.damaged.discard(name_of(state.step))
        if not self.ranks.main:
            return
        valid = [(step, folder) for step, folder in steps_of(self.root) if folder.name not in self.damaged]
        old = [folder for step, folder in valid[self.run.keep :] if step != state.best]
        for folder in (*old, *(self.root / name for name in sorted(self.damaged))):
            discard(folder)
        self.damaged.clear()

    def failed(self, temporary: Path, error: str) -> None:
        """Warns, or ends the run, as run.on_save_error says."""
        text = f"the checkpoint {temporary.with_suffix('').name} could not be written: {error}"
        if self.ranks.main:
            shutil.rmtree(temporary, ignore_errors=True)
        self.error = error
        if self.run.on_save_error == "stop":
            raise RunError(f"{text}; solve that and start the same command again: the last good checkpoint is used")
        if self.ranks.main:
            say(f"warning: {text}; the last good checkpoint stays")

    def pop_costs(self) -> dict[str, float]:
        """Seconds that steps waited for checkpoints and bytes written by all ranks, since the last call."""
        costs, self.costs = self.costs, dict.fromkeys(COSTS, 0.0)
        return costs
