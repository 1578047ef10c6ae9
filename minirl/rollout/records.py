"""Saves and loads rollouts: a NumPy archive (.npz) of plain arrays and one JSON text, no pickle.

save("batch.npz", groups)          # list of groups, each a list of Rollouts
load("batch.npz") == groups        # bit for bit, NaN and None included
"""

import dataclasses
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minirl.rollout.types import Completion, Rollout
from minirl.verify.types import Verdict

# Arrays with one number for each response token: float32, advantages float64. Each may be None.
PER_TOKEN = ("old_logprobs", "entropies", "ref_logprobs", "advantages")


def save(path: Path | str, groups: Sequence[Sequence[Rollout]]) -> None:
    """Writes `groups` to `path`. OSError when it cannot be written."""
    Path(path).write_bytes(dumps(groups))


def dumps(groups: Sequence[Sequence[Rollout]]) -> bytes:
    """The content of the file that `save` writes."""
    rollouts = [r for group in groups for r in group]
    columns: dict[str, list[NDArray]] = {
        "prompt_ids": [np.asarray(r.prompt_ids, np.int64) for r in rollouts],
        "ids": [r.completion.ids for r in rollouts],
        "logprobs": [r.completion.logprobs for r in rollouts],
    }
    columns["versions"] = [r.completion.versions for r in rollouts if r.completion.versions is not None]
    for name in PER_TOKEN:
        columns[name] = [np.atleast_1d(value) for r in rollouts if (value := getattr(r, name)) is not None]
    texts = [
        {
            "group": r.group, "prompt": r.prompt, "gold": r.gold, "finish": r.completion.finish, "version": r.version,
            "text": r.text, "verdict": dataclasses.asdict(r.verdict),
            # Shape of each array: null for None, [] for one number for all tokens.
            "shapes": {name: None if (value := getattr(r, name)) is None else list(np.shape(value)) for name in PER_TOKEN},
            "prompt_tokens": len(r.prompt_ids), "tokens": r.length, "weight": r.weight,
            "versions": r.completion.versions is not None,
        }
        for r in rollouts
    ]  # fmt: skip
    content = {"groups": [len(group) for group in groups], "rollouts": texts}
    arrays = {name: np.concatenate(parts) for name, parts in columns.items() if parts}
    archive = io.BytesIO()
    np.savez(
        archive,
        json=np.frombuffer(json.dumps(content).encode(), np.uint8),
        rewards=np.array([r.reward for r in rollouts], np.float64),
        **arrays,  # type: ignore[arg-type]
    )
    return archive.getvalue()


def load(path: Path | str) -> list[list[Rollout]]:
    """The groups that `save` wrote. ValueError when the file is damaged, OSError when it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        content = json.loads(arrays.pop("json").tobytes())
        rollouts = _rollouts(content["rollouts"], arrays)
        ends = np.cumsum(content["groups"], dtype=np.int64).tolist()
    except (zipfile.BadZipFile, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path} does not hold rollouts that can be read: {error}") from error
    return [rollouts[end - size : end] for end, size in zip(ends, content["groups"], strict=True)]


def _rollouts(texts: list[dict[str, Any]], arrays: dict[str, NDArray]) -> list[Rollout]:
    def column(name: str, sizes: list[int]) -> list[NDArray]:
        """The part of each rollout of an array that holds all rollouts end to end."""
        array = arrays.get(name, np.zeros(0))
        if len(array) != sum(sizes):
            raise ValueError(f"array {name} has {len(array)} elements, not {sum(sizes)}")
        return [part.copy() for part in np.split(array, np.cumsum(sizes, dtype=np.int64)[:-1])]

    tokens = [text["tokens"] for text in texts]
    prompts = column("prompt_ids", [text["prompt_tokens"] for text in texts])
    versions = column("versions", [text["tokens"] * text.get("versions", False) for text in texts])
    rows = zip(
        texts, prompts, column("ids", tokens), column("logprobs", tokens), versions, arrays["rewards"].tolist(), strict=False
    )
    rollouts = [
        Rollout(
            text["group"], text["prompt"], text["gold"], prompt.tolist(),
            Completion(ids, logprobs, text["finish"], of_tokens if text.get("versions") else None), text["version"],
            text["text"], Verdict(**text["verdict"]), reward,
            weight=text.get("weight", 1.0),
        )
        for text, prompt, ids, logprobs, of_tokens, reward in rows
    ]  # fmt: skip
    for name in PER_TOKEN:
        shapes = [text["shapes"][name] for text in texts]
        values = column(name, [0 if shape is None else (shape or [1])[0] for shape in shapes])
        for rollout, shape, value in zip(rollouts, shapes, values, strict=False):
            if shape is not None:
                setattr(rollout, name, value if shape else value[0])
    return rollouts
