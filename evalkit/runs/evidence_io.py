"""Evidence as Parquet: one row a record, nested values as canonical JSON text, exact round trip."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import orjson

from evalkit.canonical import canonical_json
from evalkit.errors import InputError
from evalkit.files import write_bytes_atomic
from evalkit.runs.evidence import Evidence
from evalkit.runs.folder import RunFolder, Side
from evalkit.runs.records import ClassSums, ExpectationResult, LedgerCheck, SampleRecord, TurnRecord
from evalkit.runs.samples import RowArray
from evalkit.runs.stored_columns import StoredColumns
from evalkit.runs.stored_samples import StoredSamples

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

RecordT = TypeVar("RecordT", SampleRecord, TurnRecord)

# Rows that are turned into columns at a time: what is written isn't held twice.
_GROUP_ROWS = 2048
# Rows that are read at a time.
_READ_ROWS = 1 << 16
# What a report asks of every sample.
_SHOWN = ("sample_id", "kind", "status", "scored", "nll", "from_cache")

# Column types; what isn't named here is nested and stored as JSON text.
_INTEGERS = frozenset(
    [
        "tokens",
        "scored",
        "unconditioned",
        "bytes",
        "bytes_scored",
        "words",
        "elapsed_ns",
        "trial",
        "turn_index",
        "dialogue_turns",
        "prompt_tokens",
        "reused_tokens",
        "generated_tokens",
        "first_token_ns",
        "turn_overhead_ns",
        "total_ns",
    ]
)
_FLOATS = frozenset({"nll", "satisfaction"})
_BOOLEANS = frozenset({"from_cache", "handover", "handover_expected"})
_TEXTS = frozenset(
    [
        "sample_id",
        "kind",
        "digest",
        "cluster",
        "status",
        "reason",
        "target",
        "part",
        "perturbation",
        "text",
        "dialogue_id",
        "turn_id",
        "user_text",
        "finish_reason",
        "locale",
        "intent",
        "intent_expected",
        "blame",
    ]
)


def write_evidence(folder: RunFolder, side: Side, evidence: Evidence) -> None:
    """Write samples.parquet and turns.parquet of one model, records in a fixed order."""
    ordered = in_order(evidence.samples, evidence.turns)
    _write(folder.samples(side), ordered.samples, SampleRecord)
    _write(folder.turns(side), ordered.turns, TurnRecord)


def in_order(samples: Iterable[SampleRecord], turns: Iterable[TurnRecord]) -> Evidence:
    """Records in the order in which they are written and read."""
    return Evidence(
        samples=tuple(sorted(samples, key=lambda record: (record.kind, record.sample_id))),
        turns=tuple(sorted(turns, key=lambda record: (record.dialogue_id, record.trial, record.turn_index))),
    )


def read_evidence(folder: RunFolder, side: Side) -> Evidence:
    """Read one model's evidence.

    Raises:
        InputError: a file is missing or isn't what `write_evidence` wrote.
    """
    path = folder.samples(side)
    columns = StoredColumns.whole(path, sample_schema(), _batches(path, SampleRecord), partial(_fetch, path))
    return Evidence(samples=StoredSamples(columns), turns=_turns(folder, side))


def read_evidence_to_show(folder: RunFolder, side: Side) -> Evidence:
    """The same evidence, for whoever looks at few samples: most columns are read where something asks for them.

    Raises:
        InputError: a file is missing or isn't what `write_evidence` wrote. What isn't read isn't checked.
    """
    path = folder.samples(side)
    columns = StoredColumns.some(path, sample_schema(), _SHOWN, partial(_fetch, path))
    return Evidence(samples=StoredSamples(columns), turns=_turns(folder, side))


def _turns(folder: RunFolder, side: Side) -> tuple[TurnRecord, ...]:
    return tuple(turn_from_row(row) for row in _rows(folder.turns(side), TurnRecord))


def _write(path: Path, records: Sequence[SampleRecord | TurnRecord], kind: type[RecordT]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(kind)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for start in range(0, len(records), _GROUP_ROWS):
            group = records[start : start + _GROUP_ROWS]
            columns = {
                name: [_cell(name, getattr(record, name)) for record in group] for name in schema.names
            }
            writer.write_table(pa.table(columns, schema=schema))
    write_bytes_atomic(path, sink.getvalue().to_pybytes())


def _cell(name: str, value: Any) -> Any:
    return value if _is_plain(name) or value is None else canonical_json(_nested(value)).decode()


def _nested(value: Any) -> Any:
    """A value with the dataclasses in it as dicts."""
    if isinstance(value, dict):
        return {name: _nested(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_nested(item) for item in value]
    if isinstance(value, ClassSums | ExpectationResult | LedgerCheck):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    return value


def _rows(path: Path, kind: type[RecordT]) -> Iterator[dict[str, Any]]:
    names = _schema(kind).names
    try:
        for batch in _batches(path, kind):
            columns = [_values(name, batch.column(name).to_pylist()) for name in names]
            for row in zip(*columns, strict=True):
                yield dict(zip(names, row, strict=True))
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path}: broken JSON in a cell ({error.msg}); the file is damaged") from None


def _batches(path: Path, kind: type[RecordT]) -> "Iterator[pa.RecordBatch]":
    with _opened(path, kind) as file:
        yield from file.iter_batches(batch_size=_READ_ROWS, use_threads=False)


def _fetch(path: Path, names: Sequence[str], rows: RowArray | None) -> "pa.Table":
    """Columns of samples.parquet; `rows` (rising) are found in their row groups, the others aren't read."""
    import pyarrow as pa

    columns = list(names)
    with _opened(path, SampleRecord) as file:
        if rows is None:
            return file.read(columns, use_threads=False)
        parts, start = [file.schema_arrow.empty_table().select(columns)], 0
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            own = rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)]
            if len(own):
                parts.append(file.read_row_group(group, columns, use_threads=False).take(own - start))
            start = end
        return pa.concat_tables(parts)


@contextmanager
def _opened(path: Path, kind: type[RecordT]) -> "Iterator[pq.ParquetFile]":
    """The file, whose columns are those of `kind`; what goes wrong with it is told in one line."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise InputError(
            f"{path}: no such file; the run is incomplete (finish it with `evalkit resume`) or damaged"
        )
    try:
        with pq.ParquetFile(path) as file:
            if not file.schema_arrow.equals(_schema(kind)):
                raise InputError(
                    f"{path}: its columns aren't those of this version of evalkit; the file is damaged or foreign"
                )
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: can't be read as Parquet ({str(error).splitlines()[0]}); the file is damaged"
        ) from None


def _values(name: str, cells: list[Any]) -> list[Any]:
    if _is_plain(name):
        return cells
    # Empty ones are most, and need no parser.
    return [
        [] if cell == "[]" else {} if cell == "{}" else None if cell is None else orjson.loads(cell)
        for cell in cells
    ]


def sample_from_row(row: dict[str, Any]) -> SampleRecord:
    """A sample from its fields as JSON values."""
    for group in ("classes", "views"):
        row[group] = {name: ClassSums(**sums) for name, sums in row[group].items()}
    row["worst"] = [(int(start), int(end), float(logprob)) for start, end, logprob in row["worst"]]
    return SampleRecord(**row)


def turn_from_row(row: dict[str, Any]) -> TurnRecord:
    """A turn from its fields as JSON values."""
    row["expectations"] = [ExpectationResult(**check) for check in row["expectations"]]
    row["ledger"] = [LedgerCheck(**check) for check in row.get("ledger") or []]
    return TurnRecord(**row)


def sample_schema() -> "pa.Schema":
    """Columns of samples.parquet."""
    return _schema(SampleRecord)


def _is_plain(name: str) -> bool:
    return name in _INTEGERS or name in _FLOATS or name in _BOOLEANS or name in _TEXTS


def _schema(kind: type[RecordT]) -> "pa.Schema":
    import pyarrow as pa

    def column(name: str) -> Any:
        # `text` is the source text of a sample (may be absent) and the reply of a turn.
        if name in _INTEGERS:
            return pa.int64()
        if name in _FLOATS:
            return pa.float64()
        return pa.bool_() if name in _BOOLEANS else pa.string()

    return pa.schema([(item.name, column(item.name)) for item in fields(kind)])
