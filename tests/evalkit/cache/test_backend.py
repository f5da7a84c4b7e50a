"""Runs with the result cache: equal to the bit to those without it, and every record says where it came from."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalkit.backends.base import RowStats
from evalkit.backends.mindir import MindirBackend
from evalkit.backends.onnx import OnnxBackend
from evalkit.bundle import Bundle, load_bundle
from evalkit.cache import identity
from evalkit.cache.backend import cached_backend
from evalkit.cache.identity import scoring_identity
from evalkit.cache.store import cache_file
from evalkit.runs.plan import read_plan
from evalkit.runs.rescore import rescore
from evalkit.runs.verify import verify
from evalkit.scenario.schema import Window
from tests.support.caching import numbers, samples, score, without_provenance, write_texts


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts.jsonl")


def test_a_cached_run_equals_a_fresh_one_to_the_bit(
    data: Path, tiny_bundle: Path, tmp_path: Path, asked: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    uncached = score(data, tiny_bundle, tmp_path / "uncached", keep_tokens=True, use_cache=False)
    assert not cache_file().exists()
    first = score(data, tiny_bundle, tmp_path / "first", keep_tokens=True)
    batches = len(asked) // 2
    capsys.readouterr()
    second = score(data, tiny_bundle, tmp_path / "second", keep_tokens=True)
    assert len(asked) == 2 * batches > 0
    assert capsys.readouterr().err == (
        f"candidate: result cache {cache_file()}: {batches} of {batches} batches were computed before\n"
    )
    for other in (first, second):
        assert numbers(other) == numbers(uncached)
        assert without_provenance(samples(other)) == without_provenance(samples(uncached))
        assert other.tokens("candidate").read_bytes() == uncached.tokens("candidate").read_bytes()


def test_a_backend_that_takes_parallel_calls_is_cached_too(
    data: Path, stories_bundle: Bundle, tmp_path: Path
) -> None:
    assert OnnxBackend.parallel_calls
    settings: dict[str, Any] = {"backend": "onnx", "window": Window(length=32, stride=32)}
    uncached = score(data, stories_bundle.path, tmp_path / "uncached", use_cache=False, **settings)
    first = score(data, stories_bundle.path, tmp_path / "first", **settings)
    second = score(data, stories_bundle.path, tmp_path / "second", **settings)
    assert numbers(first) == numbers(second) == numbers(uncached)
    assert all(record.from_cache for record in samples(second) if record.status == "ok")


def test_every_record_says_which_run_computed_it(data: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    first = score(data, tiny_bundle, tmp_path / "first")
    second = score(data, tiny_bundle, tmp_path / "second")
    assert not any(record.from_cache or record.cache_runs for record in samples(first))
    for record in samples(second):
        scored = record.status == "ok"
        assert record.from_cache == scored
        assert record.cache_runs == ([read_plan(first)["run_id"]] if scored else [])
    # Where a score came from is evidence, but no number hangs on it.
    before = second.results.read_bytes()
    assert verify(second) == []
    rescore(second)
    assert second.results.read_bytes() == before
    assert verify(second) == []


def test_the_model_is_not_even_loaded_where_nothing_is_missing(
    data: Path, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score(data, tiny_bundle, tmp_path / "first")

    def refuse(self: MindirBackend, *_: object) -> None:
        raise AssertionError("the graph was loaded")

    monkeypatch.setattr(MindirBackend, "__init__", refuse)
    score(data, tiny_bundle, tmp_path / "second")


def test_without_the_cache_it_is_neither_read_nor_written(
    data: Path, tiny_bundle: Path, tmp_path: Path, asked: list[int]
) -> None:
    score(data, tiny_bundle, tmp_path / "first")
    content, batches = cache_file().read_bytes(), len(asked)
    again = score(data, tiny_bundle, tmp_path / "second", use_cache=False)
    assert len(asked) == 2 * batches
    assert cache_file().read_bytes() == content
    assert not any(record.from_cache for record in samples(again))


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("code_sha256", lambda patch: patch.setattr(identity, "code_digests", lambda: {"evalkit": "0" * 64})),
        ("runtime", lambda patch: patch.setattr(identity, "_version", lambda package: f"{package} 0.0")),
        ("processor", lambda patch: patch.setattr(identity, "_processor", lambda: "another")),
        ("processors", lambda patch: patch.setattr(identity, "_usable_processors", lambda: 977)),
        ("precision", lambda patch: patch.setattr(MindirBackend, "precision", "fp16")),
    ],
)
def test_whatever_decides_the_bits_is_in_the_key(
    data: Path,
    tiny_bundle: Path,
    tmp_path: Path,
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    change: Any,
) -> None:
    before = scoring_identity("mindir", load_bundle(tiny_bundle))
    score(data, tiny_bundle, tmp_path / "first")
    batches = len(asked)
    change(monkeypatch)
    after = scoring_identity("mindir", load_bundle(tiny_bundle))
    assert before is not None and after is not None
    assert {name for name in before if before[name] != after[name]} == {part}
    score(data, tiny_bundle, tmp_path / "second")
    assert len(asked) == 2 * batches


def test_unknown_code_or_runtime_means_no_cache(
    data: Path, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "code_digests", lambda: {"evalkit": None})
    score(data, tiny_bundle, tmp_path / "run")
    assert not cache_file().exists()


def test_a_cache_that_cannot_be_used_is_told_in_one_line_and_the_run_goes_on(
    data: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache_file().parent.mkdir(parents=True)
    cache_file().write_bytes(b"rubbish" * 1000)
    folder = score(data, tiny_bundle, tmp_path / "run")
    assert capsys.readouterr().err == (
        f"candidate: result cache {cache_file()}: not used, file is not a database; `evalkit cache --clear` removes it\n"
    )
    assert verify(folder) == []
    assert cache_file().read_bytes() == b"rubbish" * 1000


def test_a_cache_that_breaks_on_the_way_is_told_too(
    data: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = score(data, tiny_bundle, tmp_path / "whole", use_cache=False)
    score(data, tiny_bundle, tmp_path / "first")
    with closing(sqlite3.connect(cache_file())) as database, database:
        database.execute("ALTER TABLE answers RENAME COLUMN payload TO other")
    capsys.readouterr()
    folder = score(data, tiny_bundle, tmp_path / "second")
    assert "not used any more, no such column: payload" in capsys.readouterr().err
    assert numbers(folder) == numbers(whole)


ROW = np.ones((1, 4), dtype=np.int32)


def answer(logprob: float) -> RowStats:
    real = np.full((1, 4), -1.0, dtype=np.float32)
    return RowStats(np.full((1, 4), logprob, dtype=np.float32), real, real, ROW, ROW)


def test_an_answer_that_is_not_finite_is_not_kept(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = load_bundle(tiny_bundle)
    answers = [answer(np.nan), answer(-2.0)]
    monkeypatch.setattr(MindirBackend, "score", lambda self, *arrays: answers.pop(0))
    with cached_backend("mindir", bundle, "first", lambda line: None) as backend:
        assert np.isnan(backend.score(ROW, ROW, ROW, ROW).logprob).all()
        assert backend.score(ROW, ROW, ROW, ROW).cached_from is None
        again = backend.score(ROW, ROW, ROW, ROW)
    assert again.cached_from == "first"
    assert (again.logprob == np.float32(-2.0)).all() and again.logprob.dtype == np.float32


def test_each_array_and_the_shape_are_in_the_key(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scored(self: MindirBackend, ids: Any, *rest: Any) -> RowStats:
        return RowStats(*(np.zeros(ids.shape, dtype=np.float32) for _ in range(3)), ids, ids)

    monkeypatch.setattr(MindirBackend, "score", scored)
    questions = [[ROW.copy() for _ in range(4)] for _ in range(5)]
    for place in range(4):
        questions[place][place][0, -1] += 1
    questions.append([array.reshape(2, 2) for array in questions[-1]])
    with cached_backend("mindir", load_bundle(tiny_bundle), "first", lambda line: None) as backend:
        assert [backend.score(*arrays).cached_from for arrays in questions] == [None] * 6
        assert [backend.score(*arrays).cached_from for arrays in questions] == ["first"] * 6
