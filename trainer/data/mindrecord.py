"""Rows in MindRecord files: written once, read in any order.

MindDataset reads and prefetches (in threads of its own, which run no graph); the order is an index of ours. Its own
shuffle keeps an order for one pipeline, not for an epoch and a seed; its own sharding fills the shards up by repeating
rows; neither can start in the middle.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from evalkit.errors import InputError
from trainer.data.order import Indices
from trainer.data.packing import Row

_SHARD_BYTES = 64 << 20
# Where there is no limit, pages are 32 MiB and the header 16 MiB: even one row would take 48 MiB.
_PAGE_BYTES = 1 << 20
_HEADER_BYTES = 1 << 20
# Rows are handed over in parts of about this size.
_PART_BYTES = 2 << 20
# Rows that MindDataset puts together before Python sees them: a call a row would cost more than the reading.
_READ_ROWS = 16
# Row numbers that MindDataset gets at a time: as Python objects they take 40 bytes each.
_WINDOW_ROWS = 1 << 18


@dataclass(frozen=True)
class RowFile:
    """A MindRecord file in a folder, with how many rows it holds. MindSpore wants its `.db` beside it, same name."""

    name: str
    rows: int


def write_rows(folder: Path, name: str, rows: Iterable[Row], length: int) -> list[RowFile]:
    """Write rows of `length` positions into files `<name>-00000.mindrecord`, ... and read them all back.

    Raises:
        InputError: MindRecord refuses to write, or lost or changed a row.
        OSError: the disk is full.
    """
    part_rows = max(1, _PART_BYTES // _row_bytes(length))
    capacity = max(1, _SHARD_BYTES // _row_bytes(length))
    files: list[RowFile] = []
    digest = hashlib.sha256()
    source = iter(rows)
    parts = iter(lambda: list(islice(source, part_rows)), [])
    for first in parts:
        path = folder / f"{name}-{len(files):05d}.mindrecord"
        start = sum(file.rows for file in files)
        try:
            count = _write_shard(path, chain([first], parts), start, capacity, length, digest)
        except RuntimeError as error:
            reason = _reason(error)
            hint = "shorten the records' ids" if "Page size" in reason else "free some space"
            raise InputError(f"{path}: cannot be written ({reason}); {hint}") from None
        files.append(RowFile(path.name, count))
    _verify(folder, files, digest.hexdigest())
    return files


def _row_bytes(length: int) -> int:
    return 9 * length + 256  # lengths and ids take a little


def _write_shard(
    path: Path, parts: Iterator[list[Row]], start: int, capacity: int, length: int, digest: "hashlib._Hash"
) -> int:
    from mindspore.mindrecord import FileWriter

    writer = FileWriter(str(path), shard_num=1)
    writer.set_header_size(_HEADER_BYTES)
    # A page holds at least one row; MindRecord takes powers of two.
    page_bytes = max(_PAGE_BYTES, 1 << (32 * length).bit_length())
    writer.set_page_size(page_bytes)
    schema = {
        "row": {"type": "int64"},
        "token_ids": {"type": "int32", "shape": [length]},
        "targets": {"type": "int32", "shape": [length]},
        "loss_mask": {"type": "bytes"},
        "pieces": {"type": "string"},
    }
    writer.add_schema(schema, "rows")
    count = 0
    for part in parts:
        fields = [_fields(start + count + index, row) for index, row in enumerate(part)]
        for field in fields:
            _add(digest, field)
        _reserve(path, len(part) * _row_bytes(length) + 2 * page_bytes + _HEADER_BYTES)
        writer.write_raw_data(fields)
        count += len(part)
        if count >= capacity:
            break
    writer.commit()
    return count


def _reserve(path: Path, size: int) -> None:
    """Raise OSError where `path` can't grow by `size` bytes: MindRecord crashes the process when a write fails."""
    probe = path.with_suffix(".space")
    try:
        with probe.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), path.stat().st_size if path.exists() else 0, size)
    finally:
        probe.unlink(missing_ok=True)


def _fields(number: int, row: Row) -> dict[str, Any]:
    return {
        "row": number,
        "token_ids": row.token_ids,
        "targets": row.targets,
        # The schema knows no uint8, and bytes are what it is.
        "loss_mask": row.loss_mask.tobytes(),
        "pieces": orjson.dumps([row.lengths.tolist(), row.record_ids]).decode(),
    }


def _add(digest: "hashlib._Hash", fields: dict[str, Any]) -> None:
    for name in ("token_ids", "targets", "loss_mask"):
        digest.update(fields[name])
    digest.update(f"{fields['row']}\0{fields['pieces']}\0".encode())


def _verify(folder: Path, files: Sequence[RowFile], expected: str) -> None:
    # MindRecord leaves out a row that doesn't suit the schema with no more than a warning.
    count = sum(file.rows for file in files)
    digest = hashlib.sha256()
    found = 0
    for fields in _read(folder, files, np.arange(count)):
        _add(digest, fields)
        found += 1
    if found != count or digest.hexdigest() != expected:
        raise InputError(
            f"{folder}: {found} of {count} rows came back from MindRecord unchanged; check the disk"
        )


def read_rows(folder: Path, files: Sequence[RowFile], indices: Indices) -> Iterator[Row]:
    """Rows by their numbers, in this order."""
    for fields in _read(folder, files, indices):
        lengths, record_ids = orjson.loads(str(fields["pieces"]))  # orjson takes no subclass of str
        yield Row(
            fields["token_ids"],
            fields["targets"],
            np.frombuffer(fields["loss_mask"], dtype=np.uint8),
            np.array(lengths, dtype=np.int32),
            record_ids,
        )


def _read(folder: Path, files: Sequence[RowFile], indices: Indices) -> Iterator[dict[str, Any]]:
    import mindspore.dataset as ds

    paths = [str(folder / file.name) for file in files]
    for start in range(0, len(indices), _WINDOW_ROWS):
        window = indices[start : start + _WINDOW_ROWS].tolist()
        found = 0
        try:
            # One worker is many times faster than training here, and leaves the cores to the graph.
            dataset = ds.MindDataset(paths, sampler=ds.SubsetSampler(window), num_parallel_workers=1)
            blocks = dataset.batch(_READ_ROWS, num_parallel_workers=1)
            for block in blocks.create_dict_iterator(num_epochs=1, output_numpy=True):
                for index, number in enumerate(block["row"].tolist()):
                    if number != window[found]:
                        raise InputError(f"{folder}: row {window[found]} was asked for and row {number} came")
                    found += 1
                    fields = {name: values[index] for name, values in block.items()}
                    fields["loss_mask"] = fields["loss_mask"].tobytes()
                    yield fields
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{folder}: cannot be read ({_reason(error)})") from None
        if found < len(window):
            raise InputError(
                f"{folder}: {found} of {len(window)} rows came; remove the folder and train again"
            )


def _reason(error: Exception) -> str:
    """The sentence that matters in MindSpore's boxes of dashes."""
    lines = [line.strip() for line in str(error).splitlines()]
    marked = [line.removeprefix("[ERROR]").strip() for line in lines if line.startswith("[ERROR]")]
    return " ".join(marked)[:200] or next((line for line in lines if line), "no reason given")[:200]
