"""Rollouts in a file: what is read is what was written, bit for bit."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.rollout.records import load, save
from minirl.rollout.types import Completion, Rollout
from minirl.verify.types import Verdict

F32 = st.floats(width=32, allow_nan=True, allow_infinity=True)
TEXT = st.text(max_size=8)


@st.composite
def rollouts(draw):
    n = draw(st.integers(0, 5))

    def tokens(kind, dtype):
        return np.array(draw(st.lists(kind, min_size=n, max_size=n)), dtype)

    completion = Completion(
        tokens(st.integers(0, 2**31 - 1), np.int32),
        tokens(F32, np.float32),
        draw(st.sampled_from(["stop", "length", ""])),
        draw(st.sampled_from([None, tokens(st.integers(0, 2**31 - 1), np.int32)])),
    )
    verdict = Verdict(
        draw(st.sampled_from(["right", "wrong", "error"])), draw(TEXT), draw(st.none() | TEXT),
        draw(st.none() | st.floats(allow_nan=False)), draw(st.floats(0, 9)), draw(TEXT),
    )  # fmt: skip
    rollout = Rollout(draw(st.integers(0, 10**9)), draw(TEXT), draw(TEXT), draw(st.lists(st.integers(0, 200_000), max_size=4)),
                      completion, draw(st.integers(0, 10**6)), draw(TEXT), verdict, draw(st.floats()))  # fmt: skip
    for name in ("old_logprobs", "entropies", "ref_logprobs"):
        if draw(st.booleans()):
            setattr(rollout, name, tokens(F32, np.float32))
    rollout.advantages = draw(st.sampled_from([None, np.float64(draw(st.floats())), tokens(st.floats(), np.float64)]))
    return rollout


def bits(value):
    """Something that compares equal only when type, shape and every bit are the same."""
    if isinstance(value, np.ndarray | np.generic):
        return (type(value), value.dtype, value.shape, value.tobytes())
    if isinstance(value, float):
        return np.float64(value).tobytes()
    if dataclasses.is_dataclass(value):
        return {f.name: bits(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [bits(v) for v in value] if isinstance(value, list) else value


@settings(max_examples=60, deadline=None)
@given(groups=st.lists(st.lists(rollouts(), max_size=3), max_size=3))
def test_what_is_read_is_what_was_written(groups, tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "batch.npz"
    save(path, groups)
    assert bits(load(path)) == bits(groups)


def test_a_damaged_file_is_said(tmp_path):
    completion = Completion(np.arange(50, dtype=np.int32), np.zeros(50, np.float32), "stop")
    path = tmp_path / "batch.npz"
    save(path, [[Rollout(0, "p", "g", [1, 2], completion, 0, "t", Verdict("right"), 1.0)]])
    whole = path.read_bytes()
    middle = whole.index(completion.ids.tobytes()) + 20
    for damaged in (whole[: len(whole) // 2], whole[:middle] + b"\xff" + whole[middle + 1 :], b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="does not hold rollouts that can be read"):
            load(path)
