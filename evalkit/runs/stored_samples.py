"""Samples of a Parquet file: columns of it, and records that are made of them one by one when looked at."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from evalkit.errors import InputError
from evalkit.runs.records import SampleRecord
from evalkit.runs.samples import BoolArray, RowArray, Samples, SumColumns, SumGroup, TextField, WorstTokens
from evalkit.runs.stored_columns import GROUPS, StoredColumns, broken, list_sizes, read_json

if TYPE_CHECKING:
    import pyarrow as pa

# Records that are made of the columns at a time.
_ROWS = 2048


class StoredSamples(Samples):
    """Samples of a file's columns.

    Args:
        columns: of all samples of the file.
        rows: places of the samples in question among them, rising; None for all.
    """

    def __init__(self, columns: StoredColumns, rows: RowArray | None = None) -> None:
        super().__init__()
        self._columns, self._rows = columns, rows

    def __len__(self) -> int:
        return len(self._columns) if self._rows is None else len(self._rows)

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
        held = self._columns.has_text
        return held if self._rows is None else held[self._rows]

    def _record(self, index: int) -> SampleRecord:
        return self._records(np.array([index], dtype=np.intp))[0]

    def _records(self, rows: RowArray) -> list[SampleRecord]:
        places = rows if self._rows is None else self._rows[rows]
        columns = self._columns.rows(places)
        for name in ("top1_outcomes", "tags", "label_logprobs", "worst", "cache_runs"):
            columns[name] = [None if cell is None else self._json(cell) for cell in columns[name]]
        columns["worst"] = [
            [(int(start), int(end), float(logprob)) for start, end, logprob in tokens]
            for tokens in columns["worst"]
        ]
        for group in GROUPS:
            columns[group] = self._columns.nested(group, places)
        names = list(columns)
        return [
            SampleRecord(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)
        ]

    def _chosen(self, rows: RowArray) -> Samples:
        places = rows if self._rows is None else self._rows[rows]
        return StoredSamples(self._columns, places)

    def _number(self, field: str, kind: type[Any]) -> Any:
        column = self._column(field)
        if column.null_count:
            raise InputError(f"{self._columns.path}: {field}: a number is missing; the file is damaged")
        return column.to_numpy(zero_copy_only=False).astype(kind, copy=False)

    def _text(self, field: TextField) -> "pa.Array":
        return self._column(field)

    def _sums(self, group: SumGroup) -> Mapping[str, SumColumns]:
        found = self._columns.sums(group)
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
            lists = read_json(self._columns.path, part, '{"worst":', "}").column("worst").combine_chunks()
            if not pa.types.is_list(lists.type) or pa.types.is_null(lists.type.value_type):
                continue
            tokens = lists.flatten()
            if not pa.types.is_list(tokens.type) or set(np.unique(list_sizes(tokens)).tolist()) - {3}:
                raise InputError(
                    f"{self._columns.path}: worst: three numbers a token are needed; the file is damaged"
                )
            numbers = tokens.flatten().to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, 3)
            rows.append(start + np.repeat(np.arange(len(part), dtype=np.intp), list_sizes(lists)))
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

        column = self._columns.column(name)
        if self._rows is not None:
            column = column.take(pa.array(self._rows))
        return column.combine_chunks()

    def _json(self, cell: str) -> Any:
        try:
            # Empty ones are most, and need no parser.
            return [] if cell == "[]" else {} if cell == "{}" else orjson.loads(cell)
        except orjson.JSONDecodeError as error:
            raise broken(self._columns.path, error.msg) from None
