"""The columns of a samples.parquet: all of them at once, or few, and of the others what is asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalkit.errors import InputError
from evalkit.runs.records import ClassSums
from evalkit.runs.samples import SUM_FIELDS, BoolArray, RowArray, SumColumns, SumGroup

if TYPE_CHECKING:
    import pyarrow as pa

# Some columns of a file, of some of its rows (rising) or of all.
Fetch = Callable[[Sequence[str], RowArray | None], "pa.Table"]

GROUPS: tuple[SumGroup, ...] = ("classes", "views")
_INTEGERS = frozenset({"tokens", "top1", "top5", "bytes"})
_ALWAYS = frozenset({"tokens", "nll", "bytes"})

# Bytes of JSON that are parsed at a time; a cell isn't split.
_BLOCK = 1 << 24


class StoredColumns:
    """The columns of one file.

    Args:
        path: of the file, for messages.
        names: of all columns but `classes` and `views`.
        table: those that are held.
        has_text: which samples have their source text, shape (samples,).
        sums: `classes` and `views`; None where they aren't held.
        fetch: reads what isn't held.
    """

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        table: "pa.Table",
        has_text: BoolArray,
        sums: Mapping[SumGroup, Mapping[str, SumColumns]] | None,
        fetch: Fetch,
    ) -> None:
        self.path, self.has_text = path, has_text
        self._names, self._table, self._sums, self._fetch = tuple(names), table, sums, fetch

    @classmethod
    def whole(
        cls, path: Path, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", fetch: Fetch
    ) -> "StoredColumns":
        """Hold every column; the nested sums are parsed batch by batch, so that their text isn't kept.

        Raises:
            InputError: a cell isn't what was written.
        """
        import pyarrow as pa

        plain = pa.schema([field for field in schema if field.name not in GROUPS])
        parts: list[pa.RecordBatch] = []

        def without_sums() -> "Iterator[pa.RecordBatch]":
            for batch in batches:
                parts.append(batch.select(plain.names))
                yield batch

        sums = _all_sums(path, without_sums())
        table = pa.Table.from_batches(parts, plain)
        return cls(path, plain.names, table, _is_there(table), sums, fetch)

    @classmethod
    def some(cls, path: Path, schema: "pa.Schema", held: Sequence[str], fetch: Fetch) -> "StoredColumns":
        """Hold some columns only: for whoever looks at few records, and for whom parsing all sums would be lost time."""
        table = fetch([*held, "text"], None)
        names = [name for name in schema.names if name not in GROUPS]
        return cls(path, names, table.select(held), _is_there(table), None, fetch)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def column(self, name: str) -> "pa.ChunkedArray":
        """A column that isn't one of sums."""
        held = self._table if name in self._table.column_names else self._fetch([name], None)
        return held.column(name)

    def rows(self, places: RowArray) -> dict[str, list[Any]]:
        """Every column of some samples as Python's values, JSON as it was written; of the sums see `nested`."""
        found = _lists(self._table.take(places))
        missing = [name for name in self._names if name not in found]
        return {**found, **_lists(self._fetch(missing, places))} if missing else found

    def sums(self, group: SumGroup) -> Mapping[str, SumColumns]:
        """The sums by class or by view.

        Raises:
            InputError: a cell isn't what was written.
        """
        if self._sums is None:
            self._sums = _all_sums(self.path, self._fetch(GROUPS, None).to_batches())
        return self._sums[group]

    def nested(self, group: SumGroup, places: RowArray) -> list[dict[str, ClassSums]]:
        """The same of some samples, as they stand in records."""
        if self._sums is not None:
            return _nested(self._sums[group], places)
        cells = self._fetch([group], places).column(group).combine_chunks()
        return _nested(_parsed(self.path, cells, 0), np.arange(len(places), dtype=np.intp))


def _is_there(table: "pa.Table") -> BoolArray:
    held: BoolArray = table.column("text").is_valid().to_numpy().astype(np.bool_)
    return held


def _lists(table: "pa.Table") -> dict[str, list[Any]]:
    return {name: table.column(name).to_pylist() for name in table.column_names}


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


def _all_sums(path: Path, batches: "Iterable[pa.RecordBatch]") -> Mapping[SumGroup, Mapping[str, SumColumns]]:
    sums: dict[SumGroup, dict[str, list[SumColumns]]] = {group: {} for group in GROUPS}
    start = 0
    for batch in batches:
        for group in GROUPS:
            for name, columns in _parsed(path, batch.column(group), start).items():
                sums[group].setdefault(name, []).append(columns)
        start += len(batch)
    return {group: {name: _joined(found) for name, found in sorted(sums[group].items())} for group in GROUPS}


def _parsed(path: Path, cells: "pa.Array", start: int) -> dict[str, SumColumns]:
    """The sums in a column of JSON objects by name; `start` is the place of its first row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if cells.null_count:
        raise InputError(f"{path}: the sums of a sample are missing; the file is damaged")
    held = np.flatnonzero(pc.not_equal(cells, "{}").to_numpy(zero_copy_only=False))
    if not len(held):
        return {}
    table = read_json(path, cells if len(held) == len(cells) else cells.take(pa.array(held)))
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
                raise broken(path, f"{name}: {field}: {str(error).splitlines()[0]}") from None
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


def read_json(path: Path, cells: "pa.Array", before: str = "", after: str = "") -> "pa.Table":
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
        raise broken(path, str(error).splitlines()[0]) from None
    if table.num_rows != len(cells):
        raise broken(path, f"{table.num_rows} objects in {len(cells)} cells")
    return table


def list_sizes(lists: "pa.Array") -> RowArray:
    sizes: RowArray = np.diff(lists.offsets.to_numpy()).astype(np.intp)
    return sizes


def broken(path: Path, message: str) -> InputError:
    return InputError(f"{path}: broken JSON in a cell ({message}); the file is damaged")
