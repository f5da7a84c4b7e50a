"""Which files of a folder are logs, and which of those can't be read and why: none is left out in silence."""

from dataclasses import dataclass
from pathlib import Path

from evalkit.errors import InputError
from trainer.diagnosis.plog import LogFile, rank_of, read_log
from trainer.files_below import files_below
from trainer.regular_file import require_regular, shown_path, why_not_text

_SUFFIXES = frozenset({"", ".log", ".txt", ".out", ".err"})
_PACKED = frozenset({".gz", ".bz2", ".xz", ".zst", ".zip"})


@dataclass(frozen=True)
class FoundLogs:
    """Logs that were read; logs that could not be; other files. The latter two with a reason."""

    files: list[LogFile]
    unread: list[tuple[Path, str]]
    skipped: list[tuple[Path, str]]

    @property
    def unread_ranks(self) -> set[int]:
        """Ranks that nothing is known of because the log that names them could not be read."""
        named = {rank_of(path) for path, _ in self.unread}
        return {rank for rank in named if rank is not None} - {file.rank for file in self.files}


def read_logs(folder: Path) -> FoundLogs:
    """Read every log below a folder, or one file.

    Raises:
        InputError: no such folder, no log in it, or none that can be read.
    """
    found = FoundLogs([], [], [])
    for path in _candidates(folder, found):
        why = _unreadable(path)
        if not why:
            try:
                found.files.append(read_log(path))
            except InputError as error:
                why = str(error).removeprefix(f"{path}: ")
        if why == "empty" and path.suffix == ".err":
            found.skipped.append(
                (Path(shown_path(path)), why)
            )  # nothing was written on stderr, which is as it should be
        elif why:
            found.unread.append((Path(shown_path(path)), why))
    if not found.files:
        reasons = [f"{path}: {why}" for path, why in (found.unread or found.skipped)[:3]]
        if found.unread:
            raise InputError(f"{'; '.join(reasons)}; no log could be read, give the logs as plain UTF-8 text")
        why = f" ({'; '.join(reasons)})" if reasons else ""
        raise InputError(
            f"{folder}: holds no log (.log, .txt, .out, .err){why}; give the folder with the job's logs"
        )
    return found


def _candidates(folder: Path, found: FoundLogs) -> list[Path]:
    require_regular(folder)
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the folder with the job's logs")
    logs = []
    files, unlisted = files_below(folder)
    found.unread.extend((Path(shown_path(path)), why) for path, why in unlisted)
    for path in files:
        if path.name.startswith("."):
            continue
        packed = path.suffix in _PACKED and Path(path.stem).suffix in _SUFFIXES - {""}
        if path.suffix in _SUFFIXES or packed:
            logs.append(path)
        else:
            found.skipped.append((Path(shown_path(path)), "not a log by its name"))
    return logs


def _unreadable(path: Path) -> str:
    """Why a file can't be read as a log; empty where nothing speaks against it."""
    try:
        require_regular(path)
        return why_not_text(path)
    except InputError as error:
        return str(error).removeprefix(f"{path}: ").partition(";")[0]
    except OSError as error:
        return f"cannot be read ({error.strerror})"
