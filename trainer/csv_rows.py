"""A user's CSV table, read strictly: a column that is given twice or a row that is cut off would give wrong numbers."""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from evalkit.errors import InputError
from evalkit.files import read_text
from trainer.regular_file import require_regular


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by column of each row; empty lines are passed over.

    Raises:
        InputError: unreadable, no header, a column given twice, or a row of another length; names the line.
    """
    require_regular(path)
    reader = csv.reader(io.StringIO(read_text(path), newline=""))
    try:
        header = next(reader, [])
        if not header:
            raise InputError(f"{path}:1: a header with the names of the columns is needed")
        if repeated := next((name for at, name in enumerate(header) if name in header[:at]), None):
            raise InputError(f"{path}:1: the column {repeated!r} is given twice; keep one of them")
        for cells in reader:
            if cells and len(cells) != len(header):
                raise InputError(f"{path}:{reader.line_num}: another number of cells than the header has")
            if cells:
                yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: broken CSV: {error}") from None


def require_columns(path: Path, wanted: Iterable[str], columns: Iterable[str]) -> None:
    """Whether a table has all columns that are asked for.

    Raises:
        InputError: one is missing; names those that there are.
    """
    columns = sorted(columns)
    if missing := next((name for name in wanted if name not in columns), None):
        raise InputError(f"{path}: there is no column {missing!r}; there are {', '.join(columns)}")
