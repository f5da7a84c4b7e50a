"""tokens.parquet: one row a scored token, written text by text."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from evalkit.runs.journal import read_token_rows, reopen_journals

if TYPE_CHECKING:
    from evalkit.scoring.text_records import TokenRows

# Row groups of about this many tokens: small enough to hold in memory, large enough to compress well.
_GROUP_TOKENS = 1 << 17


def write_tokens(path: Path, journal: Path, class_names: Sequence[str]) -> None:
    """Write tokens.parquet from the journal of token rows, texts sorted by id; memory doesn't grow with them.

    Args:
        path: of the file.
        journal: of the rows.
        class_names: of the token classes, by the rows' code.
    """
    begins = reopen_journals([journal]).tokens
    with TokenWriter(path, class_names) as writer:
        for sample_id in sorted(begins):
            writer.write(read_token_rows(journal, begins[sample_id]))


class TokenWriter:
    """Collects token statistics and writes them in row groups; the file appears when the block ends well."""

    def __init__(self, path: Path, class_names: Sequence[str]) -> None:
        self._class_names = class_names
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._staging = path.with_name(f".{path.name}.partial")
        self._waiting: list[Any] = []
        self._waiting_tokens = 0

    def __enter__(self) -> "TokenWriter":
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = pa.schema(
            [
                ("sample_id", pa.string()),
                ("index", pa.int32()),
                ("token_id", pa.int32()),
                ("start_byte", pa.int64()),
                ("end_byte", pa.int64()),
                ("token_class", pa.string()),
                ("logprob", pa.float32()),
                ("entropy", pa.float32()),
                ("margin", pa.float32()),
                ("rank", pa.int32()),
            ]
        )
        self._writer = pq.ParquetWriter(self._staging, self._schema, compression="zstd")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
        if kind is None:
            self._staging.replace(self._path)
        else:
            self._staging.unlink(missing_ok=True)

    def write(self, rows: "TokenRows") -> None:
        """Add the scored tokens of one text."""
        import pyarrow as pa

        columns = {
            "sample_id": pa.array([rows.sample_id] * len(rows.index), pa.string()),
            # Below 0 where a server doesn't tell.
            "token_id": pa.array(rows.token_id, pa.int32(), mask=rows.token_id < 0),
            "token_class": pa.array([self._class_names[code] for code in rows.token_class], pa.string()),
        }
        for name in self._schema.names:
            if name not in columns:
                values, kind = getattr(rows, name), self._schema.field(name).type
                columns[name] = pa.nulls(len(rows.index), kind) if values is None else pa.array(values, kind)
        self._waiting.append(pa.table(columns).select(self._schema.names))
        self._waiting_tokens += len(rows.index)
        if self._waiting_tokens >= _GROUP_TOKENS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting).cast(self._schema))
        self._waiting, self._waiting_tokens = [], 0
