"""Labelled decisions: the labels' log-probabilities, the split, and what is left out."""

import pytest

from evalkit.errors import InputError
from evalkit.scenario.schema import Risk
from evalkit.scoring.decisions import DecisionItem, score_decisions, split_parts
from tests.evalkit.scoring.table_backend import ContextBackend

RISK = Risk(data="x", labels=["approve", "reject it"], high_risk="reject it", calibration=0.25)


def decisions(count=40):
    return [
        DecisionItem(f"d{index}", f"amount {index * 7} euro.", RISK.labels[index % 2], f"c{index // 2}")
        for index in range(count)
    ]


def score(items, tokenizer, backend=None, seed=3):
    records = []
    score_decisions(
        items,
        tokenizer,
        backend or ContextBackend(tokenizer.vocab_size, 64),
        RISK,
        seed=seed,
        on_records=records.extend,
    )
    return {record.sample_id: record for record in records}


def test_label_logprobs_equal_an_independent_computation(tokenizer):
    backend = ContextBackend(tokenizer.vocab_size, 64)
    records = score(decisions(), tokenizer, backend)
    for item in decisions():
        record = records[item.sample_id]
        assert (record.status, record.target) == ("ok", item.target)
        for label, found in zip(RISK.labels, record.label_logprobs, strict=True):
            prompt = tokenizer.encode_ids(item.prompt, special=True)
            joint = tokenizer.encode_ids(f"{item.prompt} {label}", special=True)
            assert joint[: len(prompt)] == prompt
            logprobs = backend.logprobs([1, *joint[:-1]])
            expected = sum(logprobs[index, joint[index]] for index in range(len(prompt), len(joint)))
            assert found == pytest.approx(expected, abs=1e-5)
        assert record.nll == -record.label_logprobs[RISK.labels.index(item.target)]


def test_order_does_not_change_a_bit(tokenizer):
    first = score(decisions(), tokenizer)
    second = score(decisions()[::-1], tokenizer)
    assert {key: value.label_logprobs for key, value in first.items()} == {
        key: value.label_logprobs for key, value in second.items()
    }


def test_whole_clusters_are_split_by_seed_and_share():
    parts = split_parts(decisions(), 0.25, seed=3)
    assert len(parts) == 20
    assert sum(part == "calibration" for part in parts.values()) == 5
    assert parts == split_parts(decisions()[::-1], 0.25, seed=3)
    assert parts != split_parts(decisions(), 0.25, seed=4)


def test_one_cluster_cannot_be_split():
    with pytest.raises(InputError, match="all decisions are of one cluster"):
        split_parts(decisions(2), 0.3, seed=1)


def test_what_cannot_be_asked_is_counted_by_status(tokenizer):
    items = [
        *decisions(4),
        DecisionItem("long", "amount " * 200, "approve", "long"),
        DecisionItem("empty", "", "approve", "empty"),
        DecisionItem("surrogate", "\ud800", "approve", "surrogate"),
        DecisionItem("nul", "a\0", "approve", "nul"),
    ]
    records = score(items, tokenizer)
    assert {key: record.status for key, record in records.items() if key[0] != "d"} == {
        "long": "truncated",
        "empty": "skipped",
        "surrogate": "error",
        "nul": "error",
    }
    assert "left out, not cut" in records["long"].reason
    assert all(record.part in ("calibration", "judged") for record in records.values())
