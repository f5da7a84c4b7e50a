"""Samples of a Parquet file: the columns are held as they were read, records are made of them one by one when looked at."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from evalkit.errors import InputError
from evalkit.runs.records import ClassSums, SampleRecord
from evalkit.runs.samples import (
    SUM_FIELDS,
    BoolArray,
    RowArray,
    Samples,
    SumColumns,
    SumGroup,
    TextField,
    WorstTokens,
)

if TYPE_CHECKING:
    import pyarrow as pa

_GROUPS: tuple[SumGroup, ...] = ("classes", "views")
_INTEGERS = frozenset({"tokens", "top1", "top5", "bytes"})
_ALWAYS = frozenset({"tokens", "nll", "bytes"})

# Records that are made of the columns at a time.
_ROWS = 2048
# Bytes of JSON that are parsed at a time; a cell isn't split.
_BLOCK = 1 << 24


class StoredSamples(Samples):
    """Samples whose columns are there.

    Args:
        path: of the file, for messages.
        table: every column but `classes` and `views`.
        sums: those two.
        rows: places in table and sums of the samples in question, rising; None for all.
    """

    def __init__(
        self,
        path: Path,
        table: "pa.Table",
        sums: Mapping[SumGroup, Mapping[str, SumColumns]],
        rows: RowArray | None = None,
    ) -> None:
        super().__init__()
        self._path, self._table, self._all_sums, self._rows = path, table, sums, rows

    @classmethod
    def from_batches(
        cls, path: Path, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]"
    ) -> "StoredSamples":
        """Read a file's batches; the nested sums are parsed batch by batch, so that their text isn't kept.

        Raises:
            InputError: a cell isn't what was written.
        """
        import pyarrow as pa

        plain = pa.schema([field for field in schema if field.name not in _GROUPS])
        parts: list[pa.RecordBatch] = []
        sums: dict[SumGroup, dict[str, list[SumColumns]]] = {group: {} for group in _GROUPS}
        start = 0
        for batch in batches:
            for group in _GROUPS:
                for name, columns in _parsed(path, batch.column(group), start).items():
                    sums[group].setdefault(name, []).append(columns)
            parts.append(batch.select(plain.names))
            start += len(batch)
        return cls(
            path,
            pa.Table.from_batches(parts, plain),
            {
                group: {name: _joined(found) for name, found in sorted(sums[group].items())}
                for group in _GROUPS
            },
        )

    def __len__(self) -> int:
        return self._table.num_rows if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[SampleRecord]:
        for start in range(0, len(self), _ROWS):
            yield from self._records(np.arange(start, min(start + _ROWS, len(self)), dtype=np.intp))

    def outcomes(self) -> Iterator[tuple[int, dict[str, str]]]:
        """See `Samples.outcomes`."""
        import pyarrow.compute as pc

        cells = self._column("top1_outcomes")
        held = np.flatnonzero(pc.not_equal(cells, "{}").to_numpy(zero_copy_only=False))
        for row in held.tolist():
            yield row, self._json(cells[row].as_py())

    def from_cache(self) -> int:
        """See `Samples.from_cache`."""
        import pyarrow.compute as pc

        return int(pc.sum(self._column("from_cache")).as_py() or 0)

    def has_text(self) -> BoolArray:
        """See `Samples.has_text`."""
        held: BoolArray = self._table.column("text").is_valid().to_numpy().astype(np.bool_)
        return held if self._rows is None else held[self._rows]

    def _record(self, index: int) -> SampleRecord:
        return self._records(np.array([index], dtype=np.intp))[0]

    def _records(self, rows: RowArray) -> list[SampleRecord]:
        places = rows if self._rows is None else self._rows[rows]
        table = self._table.take(places)
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        for name in ("top1_outcomes", "tags", "label_logprobs", "worst", "cache_runs"):
            columns[name] = [None if cell is None else self._json(cell) for cell in columns[name]]
        columns["worst"] = [
            [(int(start), int(end), float(logprob)) for start, end, logprob in tokens]
            for tokens in columns["worst"]
        ]
        for group in _GROUPS:
            columns[group] = _nested(self._all_sums[group], places)
        names = list(columns)
        return [
            SampleRecord(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)
        ]

    def _chosen(self, rows: RowArray) -> Samples:
        places = rows if self._rows is None else self._rows[rows]
        return StoredSamples(self._path, self._table, self._all_sums, places)

    def _number(self, field: str, kind: type[Any]) -> Any:
        column = self._column(field)
        if column.null_count:
            raise InputError(f"{self._path}: {field}: a number is missing; the file is damaged")
        return column.to_numpy(zero_copy_only=False).astype(kind, copy=False)

    def _text(self, field: TextField) -> "pa.Array":
        return self._column(field)

    def _sums(self, group: SumGroup) -> Mapping[str, SumColumns]:
        found = self._all_sums[group]
        if self._rows is None:
            return found
        chosen = {name: columns.chosen(self._rows) for name, columns in found.items()}
        return {name: columns for name, columns in chosen.items() if len(columns.rows)}

    def _worst(self) -> WorstTokens:
        import pyarrow as pa

        rows, starts, logprobs = [], [], []
        cells = self._column("worst")
        for start in range(0, len(cells), _ROWS * 32):
            part = cells[start : start + _ROWS * 32]
            lists = _read_json(self._path, part, '{"worst":', "}").column("worst").combine_chunks()
            if not pa.types.is_list(lists.type) or pa.types.is_null(lists.type.value_type):
                continue
            tokens = lists.flatten()
            if not pa.types.is_list(tokens.type) or set(np.unique(_sizes(tokens)).tolist()) - {3}:
                raise InputError(
                    f"{self._path}: worst: three numbers a token are needed; the file is damaged"
                )
            numbers = tokens.flatten().to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, 3)
            rows.append(start + np.repeat(np.arange(len(part), dtype=np.intp), _sizes(lists)))
            starts.append(numbers[:, 0])
            logprobs.append(numbers[:, 2])
        empty = [np.empty(0)]
        return WorstTokens(
            np.concatenate([np.empty(0, np.intp), *rows]),
            np.concatenate(empty + starts),
            np.concatenate(empty + logprobs),
        )

    def _tag_sets(self) -> tuple[RowArray, list[frozenset[str]]]:
        encoded = self._column("tags").dictionary_encode()
        sets = [frozenset(self._json(cell)) for cell in encoded.dictionary.to_pylist()]
        return encoded.indices.to_numpy(zero_copy_only=False).astype(np.intp), sets

    def _column(self, name: str) -> "pa.Array":
        import pyarrow as pa

        column = self._table.column(name)
        if self._rows is not None:
            column = column.take(pa.array(self._rows))
        return column.combine_chunks()

    def _json(self, cell: str) -> Any:
        try:
            # Empty ones are most, and need no parser.
            return [] if cell == "[]" else {} if cell == "{}" else orjson.loads(cell)
        except orjson.JSONDecodeError as error:
            raise _broken(self._path, error.msg) from None


def _nested(sums: Mapping[str, SumColumns], places: RowArray) -> list[dict[str, ClassSums]]:
    found: list[dict[str, ClassSums]] = [{} for _ in places]
    for name, all_rows in sums.items():
        columns = all_rows.chosen(places)
        values = [_cells(field, columns) for field in SUM_FIELDS]
        for row, *parts in zip(columns.rows.tolist(), *values, strict=True):
            found[row][name] = ClassSums(*parts)
    return found


def _cells(field: str, columns: SumColumns) -> list[Any]:
    column = columns.sums[field]
    if field not in columns.lacking:
        return list((column.astype(np.int64) if field in _INTEGERS else column).tolist())
    plain = int if field in _INTEGERS else float
    return [None if np.isnan(value) else plain(value) for value in column.tolist()]


def _parsed(path: Path, cells: "pa.Array", start: int) -> dict[str, SumColumns]:
    """The sums in a column of JSON objects by name; `start` is the place of its first row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if cells.null_count:
        raise InputError(f"{path}: the sums of a sample are missing; the file is damaged")
    held = np.flatnonzero(pc.not_equal(cells, "{}").to_numpy(zero_copy_only=False))
    if not len(held):
        return {}
    table = _read_json(path, cells if len(held) == len(cells) else cells.take(pa.array(held)))
    found = {}
    for name in table.column_names:
        struct = table.column(name).combine_chunks()
        if not pa.types.is_struct(struct.type) or {field.name for field in struct.type} != set(SUM_FIELDS):
            raise InputError(f"{path}: {name}: not the sums of a sample; the file is damaged")
        own = np.flatnonzero(struct.is_valid().to_numpy(zero_copy_only=False))
        if len(own) < len(struct):
            struct = struct.take(pa.array(own))
        sums, lacking = {}, set()
        for field in SUM_FIELDS:
            values = struct.field(field)
            if values.null_count:
                lacking.add(field)
            try:
                column = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
            except pa.ArrowException as error:
                raise _broken(path, f"{name}: {field}: {str(error).splitlines()[0]}") from None
            sums[field] = column
        if lacking & _ALWAYS:
            raise InputError(f"{path}: {name}: {min(lacking & _ALWAYS)} is missing; the file is damaged")
        found[name] = SumColumns((start + held[own]).astype(np.intp), sums, frozenset(lacking))
    return found


def _joined(parts: list[SumColumns]) -> SumColumns:
    return SumColumns(
        np.concatenate([part.rows for part in parts]),
        {field: np.concatenate([part.sums[field] for part in parts]) for field in SUM_FIELDS},
        frozenset().union(*(part.lacking for part in parts)),
    )


def _read_json(path: Path, cells: "pa.Array", before: str = "", after: str = "") -> "pa.Table":
    """A table of cells that each hold one JSON object; their keys are its columns."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as pj

    def text(value: str) -> "pa.Scalar":
        return pa.scalar(value, pa.large_string())

    lines = pc.binary_join_element_wise(
        text(before), cells.cast(pa.large_string()), text(after + "\n"), text("")
    )
    longest = pc.max(pc.binary_length(lines)).as_py() or 0
    options = pj.ReadOptions(use_threads=False, block_size=max(_BLOCK, 2 * longest))
    try:
        table = pj.read_json(pa.BufferReader(lines.buffers()[2]), read_options=options)
    except pa.ArrowException as error:
        raise _broken(path, str(error).splitlines()[0]) from None
    if table.num_rows != len(cells):
        raise _broken(path, f"{table.num_rows} objects in {len(cells)} cells")
    return table


def _sizes(lists: "pa.Array") -> RowArray:
    sizes: RowArray = np.diff(lists.offsets.to_numpy()).astype(np.intp)
    return sizes


def _broken(path: Path, message: str) -> InputError:
    return InputError(f"{path}: broken JSON in a cell ({message}); the file is damaged")
