"""results.json: exact round trip, finite numbers, strict reading."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalkit.errors import InputError
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ClassSums
from evalkit.runs.results_io import Results, conservation, metric_to_dict, read_results, status_counts
from tests.evalkit import fake_run
from tests.evalkit.fake_run import metric, results, text


def whole() -> Results:
    return results(fake_run.metrics(), fake_run.evidence(True))


def test_round_trip_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(whole().to_bytes())
    again = read_results(path)
    assert again == whole()
    assert again.to_bytes() == whole().to_bytes()


def test_fields_are_those_of_the_contract() -> None:
    content = whole().to_dict()
    assert content["schema"] == "evalkit.results/1"
    assert set(content) >= {"run_id", "plan_sha256", "model_digest", "conservation", "metrics"}
    assert list(content["conservation"]) == [
        "texts",
        "ok",
        "error",
        "skipped",
        "truncated",
        "tokens_encoded",
        "tokens_scored",
        "tokens_unconditioned",
        "bytes",
        "bytes_scored",
    ]
    entry = content["metrics"][0]
    fields = (
        "name",
        "value",
        "reason",
        "unit",
        "direction",
        "n",
        "clusters",
        "interval",
        "signature",
        "action",
        "slice",
    )
    assert set(entry) >= set(fields)
    assert set(entry["interval"]) == {"low", "high", "confidence", "sides", "method", "resamples", "seed"}
    latency = next(item for item in content["metrics"] if item["name"] == "latency/first_token")
    assert latency["p95"] == pytest.approx(9.84)


def test_conservation_counts_sums_of_ok_texts_only() -> None:
    five = {"head": ClassSums(tokens=5, nll=7.5, bytes=5)}
    samples = [
        text("a", "four"),
        text("b", "sixsix", tokens=6, scored=5, unconditioned=1, bytes_scored=5, nll=7.5, classes=five),
        text("c", "", status="error", tokens=9, scored=9, bytes=9, bytes_scored=9),
        text("d", "", status="skipped"),
        text("e", "", status="truncated", tokens=99),
        replace(text("f", "a decision"), kind="risk"),
    ]
    found = conservation(samples)
    assert found.__dict__ == {
        "texts": 5,
        "ok": 2,
        "error": 1,
        "skipped": 1,
        "truncated": 1,
        "tokens_encoded": 10,
        "tokens_scored": 9,
        "tokens_unconditioned": 1,
        "bytes": 10,
        "bytes_scored": 9,
    }
    assert found.tokens_encoded == found.tokens_scored + found.tokens_unconditioned


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 7}, "7 tokens, but 6 scored and 0 unconditioned"),
        ({"scored": 5, "unconditioned": 1}, "5 tokens scored, but 6 in its classes"),
        ({"bytes_scored": 5}, "5 bytes scored, but 6 in its classes"),
        ({"bytes": 7}, "6 of 7 bytes scored, 0 tokens unconditioned"),
        ({"bytes": 5}, "6 of 5 bytes scored"),
        ({"nll": 9.000000001}, "the sum over its classes isn't its whole surprise"),
    ],
)
def test_what_is_missing_or_counted_twice_is_damage(changes: dict[str, Any], message: str) -> None:
    whole = text("b", "sixsix")
    assert conservation([whole]).tokens_scored == 6
    with pytest.raises(InputError, match=rf"text 'b': {message}.*; the evidence is damaged"):
        conservation([text("a", "four"), replace(whole, **changes)])


def test_every_status_of_every_kind_is_counted() -> None:
    evidence = fake_run.evidence(False)
    lost = replace(evidence.turns[0], status="infrastructure_fault", turn_id="x")
    found = status_counts(Evidence(evidence.samples, (lost, *evidence.turns[1:])))
    assert found == {
        "text": {"ok": 3, "error": 0, "skipped": 1, "truncated": 0},
        "risk": {"ok": 0, "error": 0, "skipped": 0, "truncated": 0},
        "turn": {"ok": 179, "model_fault": 0, "infrastructure_fault": 1},
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_null_with_a_reason(value: float) -> None:
    entry = metric_to_dict(metric("perplexity/token", value, -math.inf, math.nan))
    assert entry["value"] is None
    assert "isn't finite" in entry["reason"]
    assert (entry["interval"]["low"], entry["interval"]["high"]) == (None, None)
    json.dumps(entry, allow_nan=False)


def test_details_are_cleaned_at_every_depth() -> None:
    entry = metric_to_dict(
        metric("perplexity/token", 1.0, details={"p95": math.inf, "deep": [{"x": math.nan}]})
    )
    assert (entry["p95"], entry["deep"]) == (None, [{"x": None}])


def test_details_may_not_overwrite_a_field() -> None:
    with pytest.raises(ValueError, match="details would overwrite the field 'value'"):
        metric_to_dict(metric("perplexity/token", 1.0, details={"value": 2.0}))


def test_a_key_may_stand_once() -> None:
    with pytest.raises(ValueError, match="given twice"):
        results([metric("perplexity/token", 1.0), metric("perplexity/token", 2.0)], Evidence()).to_bytes()


def edited(tmp_path: Path, edit: Any) -> Path:
    content = json.loads(whole().to_bytes())
    edit(content)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda content: content.pop("run_id"), "run_id: is missing"),
        (
            lambda content: content.update(schema="evalkit.results/2"),
            "schema: one of 'evalkit.results/1' is needed",
        ),
        (lambda content: content.update(complete=1), "complete: true or false is needed"),
        (lambda content: content.update(metrics={}), "metrics: an array is needed"),
        (lambda content: content["conservation"].pop("ok"), "conservation: ok: is missing"),
        (
            lambda content: content["conservation"].update(ok=1.5),
            "conservation: ok: a whole number is needed",
        ),
        (
            lambda content: content["conservation"].update(ok=True),
            "conservation: ok: a whole number is needed",
        ),
        (lambda content: content["counts"].pop("turn"), "counts: turn: is missing"),
        (
            lambda content: content["metrics"][0].update(value=None),
            "exactly one of value and reason must be null",
        ),
        (
            lambda content: content["metrics"][0].update(reason="x"),
            "exactly one of value and reason must be null",
        ),
        (lambda content: content["metrics"][0].update(value="3.9"), "value: a number or null is needed"),
        (lambda content: content["metrics"][0].update(direction="up"), "direction: one of 'lower', 'higher'"),
        (lambda content: content["metrics"][0]["interval"].update(sides=3), "interval: sides: one of 1, 2"),
        (
            lambda content: content["metrics"][0]["interval"].update(confidence=None),
            "confidence: a number is needed",
        ),
        (lambda content: content["metrics"].append(7), "a JSON object is needed"),
    ],
)
def test_reading_is_strict(tmp_path: Path, edit: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_results(edited(tmp_path, edit))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "broken JSON"),
        (b"[]", "a JSON object is needed at the top level"),
        (b'{"schema": NaN}', "holds NaN"),
        (b'{"schema": -Infinity}', "holds -Infinity"),
        (b'{"a": 1e999}', "schema: is missing"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_json_object(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_results(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_results(tmp_path / "results.json")
