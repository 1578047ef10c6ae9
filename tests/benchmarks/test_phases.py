"""What the phase model counts, by hand."""

import numpy as np
import pytest
import torch

from benchmarks import phases


def test_kernels_are_counted_with_their_flop_and_bytes():
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    with phases.Counted() as counter:
        (a @ b).view(8).add_(1)
        torch.exp(a)
    ((kernel, key),) = counter.products
    assert phases.flops_of("mm", counter.examples[(kernel, key)]) == 2 * 2 * 3 * 4
    assert counter.calls == 4, "the view too"
    # add_ reads and writes 8 numbers, exp reads 6 and writes 6
    assert counter.traffic == {("elements", 2 * 8 * 4): 1, ("exp", 2 * 6 * 4): 1}
    assert counter.footprint == 2**20, "the least"


def test_sizes_between_are_interpolated_and_larger_ones_scaled(monkeypatch):
    monkeypatch.setattr(phases, "traffic_curve", lambda *_: ([10, 30], [1.0, 2.0]))
    assert phases.traffic_seconds("exp", 5, 0) == pytest.approx(0.5)
    assert phases.traffic_seconds("exp", 20, 0) == pytest.approx(1.5)
    assert phases.traffic_seconds("exp", 60, 0) == pytest.approx(4)


def test_the_last_line_counts_the_rows_that_are_predicted_well():
    def said(*ratios):
        return phases.verdict([{"predicted / measured": ratio} for ratio in ratios])

    assert said(0.86, 1.14, 1.0) == "3 of 3 rows within 15%"
    assert said(0.84, 1.16, 1.0) == "1 of 3 rows within 15%"


def test_a_shape_makes_a_tensor_of_its_strides():
    made = phases.Shape(torch.ones(3, 4).T).made()
    assert made.shape == (4, 3)
    assert made.stride() == (1, 4)
    assert np.isfinite(made.numpy()).all()
