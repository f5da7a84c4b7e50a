"""The columns of samples are the same whether they come from records or from a Parquet file, and so are the records."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalkit.errors import InputError
from evalkit.metrics.surprise import surprise_details
from evalkit.runs import evidence_io
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import read_evidence, read_evidence_to_show, write_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.records import ClassSums, SampleRecord
from evalkit.runs.samples import Samples

UNKNOWN = ClassSums(2, 3.0, None, None, None, None, None, 8)
ROWS = np.array([0, 2, 3])


def record(number: int, **changes: object) -> SampleRecord:
    plain = SampleRecord(
        sample_id=f"t{number}",
        kind="text",
        digest="d" * 64,
        cluster=f"c{number // 2}",
        status="ok",
        tokens=5,
        scored=5,
        bytes=20,
        bytes_scored=20,
        words=2,
        nll=4.5,
        classes={
            "long_tail": ClassSums(2, 3.0, 0.1, -0.2, 7.0, 1, 2, 8),
            "head": ClassSums(3, 1.5, 0.0, 0.0, 4.0, 2, 3, 12),
        },
        worst=[(0, 4, -13.5), (4, 8, -1.0)],
        text="four" * 5,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


RECORDS = (
    record(0, tags=["vip", "费用"], views={"amounts": ClassSums(1, 0.5, 0.1, -0.1, 1.0, 1, 1, 4)}),
    record(1, status="error", reason="x", classes={}, worst=[], text=None),
    record(2, classes={"head": ClassSums(3, 1.5, bytes=12), "长": UNKNOWN}, top1_outcomes={"head": "AAAA"}),
    record(3, tags=["vip"], from_cache=True, cache_runs=["r"], worst=[(0, 4, -1.0)]),
)


@pytest.fixture(params=[(read_evidence, 2048), (read_evidence_to_show, 2048), (read_evidence_to_show, 2)])
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Samples:
    """Of a file that was read as a whole, and of one whose columns are read when they are asked for."""
    read, group_rows = request.param
    monkeypatch.setattr(evidence_io, "_GROUP_ROWS", group_rows)
    folder = RunFolder(tmp_path)
    write_evidence(folder, "candidate", Evidence(RECORDS))
    columns: Samples = read(folder, "candidate").columns
    return columns


def test_records_alone_are_the_same_from_a_file(stored: Samples) -> None:
    """Before anything else was asked for: of some rows, from the last to the first, and from several row groups."""
    assert [stored[index] for index in (3, 1, 2, 0)] == [RECORDS[index] for index in (3, 1, 2, 0)]
    assert list(stored.chosen(np.array([1, 3]))) == [RECORDS[1], RECORDS[3]]


@pytest.mark.parametrize("rows", [None, ROWS])
def test_records_and_columns_are_the_same_from_a_file(
    stored: Samples, rows: "np.ndarray[tuple[int], np.dtype[np.intp]] | None"
) -> None:
    listed = Samples.of(RECORDS)
    if rows is not None:
        stored, listed = stored.chosen(rows), listed.chosen(rows)
    assert list(stored) == list(listed) and stored == listed and stored[1] == listed[1]
    assert list(stored[1:]) == list(listed[1:]) and stored[-1] == listed[-1]
    for field in ("tokens", "scored", "unconditioned", "bytes", "bytes_scored", "words"):
        assert stored.counts(field).tolist() == listed.counts(field).tolist()  # type: ignore[arg-type]
    assert stored.nll.tolist() == listed.nll.tolist()
    for name in ("sample_id", "kind", "digest", "cluster", "status", "part"):
        assert stored.strings(name) == listed.strings(name)  # type: ignore[arg-type]
    assert stored.tags == listed.tags == {"vip", "费用"}
    for tag in ("vip", "费用", "nobody"):
        assert stored.tagged(tag).tolist() == listed.tagged(tag).tolist()
    assert stored.named(["t0", "t3"]).tolist() == listed.named(["t0", "t3"]).tolist()
    assert stored.has_text().tolist() == listed.has_text().tolist()
    assert stored.from_cache() == listed.from_cache() == 1
    assert list(stored.outcomes()) == list(listed.outcomes()) != []
    assert stored.statuses() == listed.statuses()
    for field in ("rows", "starts", "logprobs"):
        assert getattr(stored.worst, field).tolist() == getattr(listed.worst, field).tolist()
    assert surprise_details(stored) == surprise_details(listed)


@pytest.mark.parametrize("rows", [None, ROWS, np.array([1, 3]), np.array([1])])
def test_sums_are_the_same_from_a_file(
    stored: Samples, rows: "np.ndarray[tuple[int], np.dtype[np.intp]] | None"
) -> None:
    listed = Samples.of(RECORDS)
    if rows is not None:
        stored, listed = stored.chosen(rows), listed.chosen(rows)
    for group in ("classes", "views"):
        ours, theirs = stored.sums(group), listed.sums(group)  # type: ignore[arg-type]
        assert set(ours) == set(theirs)
        for name, one in ours.items():
            other = theirs[name]
            assert one.rows.tolist() == other.rows.tolist() and one.lacking == other.lacking
            assert all(np.array_equal(one.sums[field], other.sums[field], True) for field in one.sums)


def test_nothing_at_all(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_evidence(folder, "candidate", Evidence())
    for samples in (
        read_evidence(folder, "candidate").columns,
        read_evidence_to_show(folder, "candidate").columns,
        Samples.of(()),
    ):
        assert list(samples) == [] and samples.repeated() is None and not samples.statuses()
        assert samples.tags == frozenset() and not samples.sums("classes") and not len(samples.worst.rows)
        assert not samples.of_kind("text") and samples == ()


def test_what_is_no_unicode_can_be_compared() -> None:
    samples = Samples.of([record(0, sample_id="a\ud800"), record(1, sample_id="b\ud800")])
    assert samples.repeated() is None and samples.named(["b\ud800"]).tolist() == [False, True]
    assert samples.strings("sample_id") == ["a\ud800", "b\ud800"]
    assert Samples.of([record(0, sample_id="a\ud800")] * 2).repeated() == ("text", "a\ud800")


@pytest.mark.parametrize(
    ("name", "cell", "message"),
    [
        ("classes", "{", "broken JSON in a cell"),
        ("classes", "{}{}", "broken JSON in a cell"),
        ("classes", '{"head":5}', "head: not the sums of a sample"),
        ("classes", '{"head":{"tokens":5}}', "head: not the sums of a sample"),
        ("classes", None, "the sums of a sample are missing"),
        ("worst", "[[0,4]]", "three numbers a token are needed"),
        ("worst", "[[0,", "broken JSON in a cell"),
        ("top1_outcomes", "{", "broken JSON in a cell"),
        ("tags", '["', "broken JSON in a cell"),
        ("tokens", None, "tokens: a number is missing"),
    ],
)
def test_damage_is_one_line(tmp_path: Path, name: str, cell: str | None, message: str) -> None:
    folder = RunFolder(tmp_path)
    write_evidence(folder, "candidate", Evidence(RECORDS[:1]))
    table = pq.read_table(folder.samples("candidate"))
    at = table.column_names.index(name)
    field = table.schema.field(name)
    pq.write_table(table.set_column(at, field, pa.array([cell], field.type)), folder.samples("candidate"))
    with pytest.raises(InputError, match=message) as caught:
        samples = read_evidence(folder, "candidate").columns
        _ = samples.worst, samples.tags, samples.counts("tokens"), list(samples.outcomes())
    assert "samples.parquet" in str(caught.value) and "\n" not in str(caught.value)
    later = read_evidence_to_show(folder, "candidate").columns
    with pytest.raises(InputError, match=message):
        _ = later.sums("classes"), later.worst, later.tags, later.counts("tokens"), list(later.outcomes())


def test_a_file_that_changed_since_is_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_evidence(folder, "candidate", Evidence(RECORDS))
    later = read_evidence_to_show(folder, "candidate").columns
    folder.samples("candidate").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"samples.parquet: can't be read as Parquet"):
        _ = later[0]


def test_a_sum_without_its_number_is_damage(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_evidence(folder, "candidate", Evidence(RECORDS[:1]))
    table = pq.read_table(folder.samples("candidate"))
    sums = json.loads(table.column("classes")[0].as_py())
    sums["head"]["nll"] = None
    at = table.column_names.index("classes")
    damaged = table.set_column(at, table.schema.field("classes"), pa.array([json.dumps(sums)]))
    pq.write_table(damaged, folder.samples("candidate"))
    with pytest.raises(InputError, match="head: nll is missing"):
        read_evidence(folder, "candidate")
