"""The scoring head against float64 numpy."""

import numpy as np
import pytest
from mindspore import Tensor

from evalkit.scoring.head import ScoringHead


def run(logits, targets):
    head = ScoringHead(logits.shape[-1])
    head.set_train(False)
    outputs = head(Tensor(logits.astype(np.float32)), Tensor(np.array(targets, np.int32)))
    return [output.asnumpy() for output in outputs]


@pytest.mark.parametrize("scale", [0.1, 3.0, 100.0])
def test_statistics_equal_float64(scale):
    random = np.random.default_rng(1)
    logits = random.normal(0, scale, (64, 50)).astype(np.float32)
    targets = random.integers(0, 50, 64)
    logprob, entropy, margin, rank, top_id = run(logits, targets)
    wide = logits.astype(np.float64)
    expected = wide - wide.max(-1, keepdims=True)
    expected -= np.log(np.exp(expected).sum(-1, keepdims=True))
    rows = np.arange(64)
    others = expected.copy()
    others[rows, targets] = -np.inf
    tolerance = 2e-6 * max(1.0, scale)
    assert np.abs(logprob - expected[rows, targets]).max() < 4 * tolerance
    assert np.abs(entropy + (np.exp(expected) * expected).sum(-1)).max() < 4 * tolerance
    assert np.abs(margin - (expected[rows, targets] - others.max(-1))).max() < 8 * tolerance
    assert (rank == 1 + (expected > expected[rows, targets, None]).sum(-1)).all()
    assert (top_id == expected.argmax(-1)).all()
    assert [output.dtype for output in (logprob, entropy, margin)] == [np.float32] * 3
    assert rank.dtype == top_id.dtype == np.int32


def test_e23_huge_logits_stay_finite():
    logits = np.array([[1e30, -1e30, 0.0], [-1e30, -1e30, -1e30]])
    logprob, entropy, margin, rank, top_id = run(logits, [0, 1])
    assert logprob.tolist() == pytest.approx([0.0, -np.log(3)], rel=1e-6)
    assert entropy.tolist() == pytest.approx([0.0, np.log(3)], rel=1e-6)
    assert np.isfinite(margin).all() and rank.tolist() == [1, 1] and top_id[0] == 0


def test_equal_logits_share_the_best_rank():
    logprob, _, margin, rank, top_id = run(np.zeros((3, 4)), [0, 2, 3])
    assert rank.tolist() == [1, 1, 1] and margin.tolist() == [0, 0, 0] and top_id.tolist() == [0, 0, 0]
    assert logprob.tolist() == pytest.approx([-np.log(4)] * 3)


def test_a_nearly_certain_token_keeps_its_digits():
    """ln p = -1e-6 is 17 roundings of a float32 sum near 1; here it's told to five digits, as exp and log are."""
    gaps = np.array([8.0, 12.0, 14.0, 20.0, 40.0])
    logits = np.stack([np.array([gap, 0.0, -1.0, -2.0]) for gap in gaps])
    logprob, entropy, *_ = run(logits, [0] * len(gaps))
    wide = logits.astype(np.float32).astype(np.float64) - logits.max(-1, keepdims=True)
    rest = np.exp(wide[:, 1:]).sum(-1)
    assert logprob.tolist() == pytest.approx((-np.log1p(rest)).tolist(), rel=1e-5)
    p = np.exp(wide - np.log1p(rest)[:, None])
    expected = np.log1p(rest) - (p * wide).sum(-1)
    assert entropy.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
