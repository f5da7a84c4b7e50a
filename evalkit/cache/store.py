"""The store of the result cache: answers under a digest of the question, in one SQLite file.

Every entry carries its own digest and is checked whenever it is read: a damaged one is counted, removed and computed
anew, never taken for a miss without a word. SQLite's journal keeps the file whole through a kill, and its locks keep
processes apart that write at once.
"""

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from evalkit.canonical import canonical_json
from evalkit.home import evalkit_home

LIMIT_BYTES = 2 << 30
_FILE = "result_cache.sqlite3"
# "evkc", so that no other program's database is taken for ours; the version counts layouts of the table.
_APPLICATION, _VERSION = 0x65766B63, 1
_WAIT_S = 30.0
# What is left after making room, so that room isn't made at every write.
_KEPT_SHARE = 0.9
_ADVICE = "`evalkit cache --clear` removes it"
# Two tables, so that counting and noting a use don't read or rewrite what was answered.
_TABLES = (
    """CREATE TABLE entries (
        key TEXT PRIMARY KEY, model_digest TEXT NOT NULL, bytes INTEGER NOT NULL, used_ns INTEGER NOT NULL)""",
    """CREATE TABLE answers (
        key TEXT PRIMARY KEY, run_id TEXT NOT NULL, layout TEXT NOT NULL, digest TEXT NOT NULL, payload BLOB NOT NULL)""",
)

ResultT = TypeVar("ResultT")


class CacheUnusableError(Exception):
    """The cache as a whole can't be used: foreign, damaged, not writable. The message says why, in one line."""


@dataclass(frozen=True)
class Entry:
    """One stored answer.

    Attributes:
        model_digest: who answered.
        run_id: of the run that computed it; it begins with the time.
        layout: what the bytes are, for who reads them.
        payload: the bytes.
    """

    model_digest: str
    run_id: str
    layout: str
    payload: bytes

    def digest(self, key: str) -> str:
        """SHA-256 over the key and everything in the entry, so that no part of it can be another's."""
        head = canonical_json([key, self.model_digest, self.run_id, self.layout])
        return hashlib.sha256(head + b"\n" + self.payload).hexdigest()


@dataclass(frozen=True)
class ModelShare:
    """What the cache holds of one model."""

    model_digest: str
    entries: int
    bytes: int


def cache_file() -> Path:
    """Where the result cache lies."""
    return evalkit_home() / _FILE


class ResultCache:
    """An open cache, a context manager; any thread may use it, one at a time.

    Attributes:
        path: of the file.
        damaged: entries that were found damaged since it was opened.
    """

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        """Open the cache, and create it where there is none.

        Raises:
            CacheUnusableError: the file isn't a result cache of this version, is damaged, or can't be opened.
        """
        self.path = path
        self.damaged = 0
        self._limit_bytes = limit_bytes
        self._used: set[str] = set()
        with _told():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Transactions are begun explicitly, with the write lock, so that two writers can't deadlock.
            self._database = sqlite3.connect(
                path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
        try:
            with _told():
                self._prepare()
                # Of all processes that write; each counts only its own from here on, and again when room is short.
                self._bytes = self._stored_bytes()
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> "ResultCache":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get(self, key: str) -> Entry | None:
        """The entry of `key`; None where there is none, or none that is whole.

        Raises:
            CacheUnusableError: the file can't be read.
        """
        with _told():
            row = self._database.execute(
                "SELECT model_digest, run_id, layout, payload, digest FROM entries LEFT JOIN answers USING (key) "
                "WHERE key = ?",
                (key,),
            ).fetchone()
        if row is None:
            return None
        if _is_whole(key, row):
            self._used.add(key)
            return Entry(*row[:4])
        self.reject(key)
        return None

    def reject(self, key: str) -> None:
        """Count an entry as damaged and remove it.

        Raises:
            CacheUnusableError: the file can't be written.
        """
        self.damaged += 1
        self._used.discard(key)
        self._write(lambda: self._remove([key]))

    def put(self, key: str, entry: Entry) -> None:
        """Store an entry; the least recently used ones make room where the cache has reached its limit.

        Raises:
            CacheUnusableError: the file can't be written.
        """
        size = len(entry.payload)
        answer = (key, entry.run_id, entry.layout, entry.digest(key), entry.payload)

        def insert() -> None:
            self._database.execute(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)",
                (key, entry.model_digest, size, time.time_ns()),
            )
            self._database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", answer)
            if self._bytes + size > self._limit_bytes:
                self._make_room()

        self._write(insert)
        self._bytes += size

    def shares(self) -> list[ModelShare]:
        """What is stored, by model.

        Raises:
            CacheUnusableError: the file can't be read.
        """
        with _told():
            rows = self._database.execute(
                "SELECT model_digest, count(*), sum(bytes) FROM entries GROUP BY model_digest ORDER BY 1"
            ).fetchall()
        return [ModelShare(*row) for row in rows]

    def close(self) -> None:
        """Note what was used, for the order in which entries make room, and close."""
        now = time.time_ns()
        try:
            if self._used:
                self._write(
                    lambda: self._database.executemany(
                        "UPDATE entries SET used_ns = ? WHERE key = ?", [(now, key) for key in self._used]
                    )
                )
        except CacheUnusableError:
            # Only the order of making room suffers.
            pass
        finally:
            self._database.close()

    def _prepare(self) -> None:
        def create() -> None:
            if self._identity() == (0, 0) and not self._has_tables():
                for table in _TABLES:
                    self._database.execute(table)
                self._database.execute(f"PRAGMA application_id = {_APPLICATION}")
                self._database.execute(f"PRAGMA user_version = {_VERSION}")

        if self._identity() == (0, 0):
            self._write(create)
        if self._identity() != (_APPLICATION, _VERSION):
            raise CacheUnusableError(f"it isn't a result cache of this version of evalkit; {_ADVICE}")

    def _identity(self) -> tuple[int, int]:
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        return application, version

    def _has_tables(self) -> bool:
        return self._database.execute("SELECT 1 FROM sqlite_master").fetchone() is not None

    def _stored_bytes(self) -> int:
        (found,) = self._database.execute("SELECT coalesce(sum(bytes), 0) FROM entries").fetchone()
        return int(found)

    def _make_room(self) -> None:
        excess = self._stored_bytes() - int(_KEPT_SHARE * self._limit_bytes)
        oldest = self._database.execute("SELECT key, bytes FROM entries ORDER BY used_ns, key")
        leaving: list[str] = []
        for key, size in oldest:
            if excess <= 0:
                break
            leaving.append(key)
            excess -= size
        self._remove(leaving)
        self._bytes = self._stored_bytes()

    def _remove(self, keys: Sequence[str]) -> None:
        for table in ("entries", "answers"):
            self._database.executemany(f"DELETE FROM {table} WHERE key = ?", [(key,) for key in keys])

    def _write(self, action: Callable[[], object]) -> None:
        with _told():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                action()
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")


def clear_cache(path: Path) -> bool:
    """Remove the cache, whatever state it is in; returns whether there was one."""
    there = path.exists()
    for file in (path, *(path.with_name(path.name + end) for end in ("-journal", "-wal", "-shm"))):
        file.unlink(missing_ok=True)
    return there


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        # Locked, read-only, disk full: the file itself may be sound.
        raise CacheUnusableError(str(error)) from None
    except sqlite3.Error as error:
        raise CacheUnusableError(f"{error}; {_ADVICE}") from None
    except OSError as error:
        raise CacheUnusableError(error.strerror or str(error)) from None


def _is_whole(key: str, row: tuple[object, ...]) -> bool:
    model_digest, run_id, layout, payload, digest = row
    # SQLite keeps whatever type was written, so the types are checked too.
    if not (isinstance(model_digest, str) and isinstance(run_id, str) and isinstance(layout, str)):
        return False
    return isinstance(payload, bytes) and Entry(model_digest, run_id, layout, payload).digest(key) == digest
