"""Tables of the registry, and how its file is opened: runs and verdicts beside an audit that only grows.

What an alias demands and holds isn't kept beside the audit but read from it: a view over the last entries. So there is
one truth, and a kill between two statements can't leave an alias that the audit doesn't explain.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evalkit.errors import InputError
from evalkit.home import evalkit_home

FILE = "registry.sqlite3"
# "evkr", so that no other program's database is taken for ours; the version counts layouts of the tables.
_APPLICATION, _VERSION = 0x65766B72, 1
_WAIT_S = 30.0

_TABLES = (
    """CREATE TABLE runs (
        run_id TEXT PRIMARY KEY, created TEXT NOT NULL, folder TEXT NOT NULL, seal_sha256 TEXT NOT NULL,
        scenario TEXT NOT NULL, scenario_sha256 TEXT NOT NULL, model_name TEXT NOT NULL, model_digest TEXT NOT NULL,
        baseline_model_digest TEXT, first_release INTEGER NOT NULL)""",
    """CREATE TABLE metrics (
        run_id TEXT NOT NULL REFERENCES runs (run_id), place INTEGER NOT NULL, name TEXT NOT NULL, k INTEGER, slice TEXT,
        value REAL, reason TEXT, unit TEXT NOT NULL, low REAL, high REAL, confidence REAL, n INTEGER NOT NULL,
        signature TEXT NOT NULL, PRIMARY KEY (run_id, place))""",
    "CREATE INDEX metrics_by_name ON metrics (name)",
    """CREATE TABLE verdicts (
        run_id TEXT NOT NULL, seal_sha256 TEXT NOT NULL, policy_sha256 TEXT NOT NULL, verdict TEXT NOT NULL,
        at TEXT NOT NULL, UNIQUE (run_id, seal_sha256, policy_sha256))""",
    # AUTOINCREMENT: a number is never given twice.
    """CREATE TABLE audit (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, who TEXT NOT NULL,
        action TEXT NOT NULL CHECK (action IN ('bind', 'promote', 'force')), alias TEXT NOT NULL,
        policy_sha256 TEXT NOT NULL, scenario_sha256 TEXT NOT NULL,
        run_id TEXT, run_folder TEXT, seal_sha256 TEXT, previous_digest TEXT, model_digest TEXT,
        baseline_model_digest TEXT, bundle TEXT, verdict TEXT, reason TEXT, overridden TEXT,
        CHECK ((action = 'bind') = (model_digest IS NULL)),
        CHECK ((action = 'force') = (reason IS NOT NULL)))""",
    """CREATE TRIGGER audit_keeps_entries BEFORE DELETE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit only grows: entries can''t be removed'); END""",
    """CREATE TRIGGER audit_keeps_content BEFORE UPDATE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit only grows: entries can''t be changed'); END""",
    # INSERT OR REPLACE removes the old row without firing a delete trigger.
    """CREATE TRIGGER audit_replaces_nothing BEFORE INSERT ON audit WHEN EXISTS (SELECT 1 FROM audit WHERE seq = NEW.seq)
        BEGIN SELECT RAISE(ABORT, 'the audit only grows: entries can''t be replaced'); END""",
    """CREATE VIEW aliases AS
        SELECT bound.alias AS name, bound.policy_sha256, bound.scenario_sha256, held.model_digest, held.bundle,
            held.run_id, held.at, held.who, held.action
        FROM audit AS bound LEFT JOIN audit AS held ON held.seq = (
            SELECT max(seq) FROM audit WHERE alias = bound.alias AND action <> 'bind')
        WHERE bound.seq = (SELECT max(seq) FROM audit WHERE alias = bound.alias AND action = 'bind')""",
)


class RegistryUnusableError(InputError):
    """The registry can't be read or written: foreign, damaged, locked, no permission. One line says why."""


def registry_file() -> Path:
    """Where the registry lies."""
    return evalkit_home() / FILE


def open_database(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the registry's database; transactions are begun explicitly.

    Args:
        path: of the file.
        create: make the file where there is none; otherwise an empty registry in memory stands for it.

    Raises:
        RegistryUnusableError: the file isn't a registry of this version, is damaged, or can't be opened.
    """
    with told(path):
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        present = create or path.exists()
        database = sqlite3.connect(
            str(path) if present else ":memory:", timeout=_WAIT_S, isolation_level=None
        )
    try:
        with told(path):
            database.row_factory = sqlite3.Row
            if create or not present:
                _prepare(database)
            if _identity(database) != (_APPLICATION, _VERSION):
                raise RegistryUnusableError(
                    f"{path}: isn't a registry of this version of evalkit; move it away, or set EVALKIT_HOME"
                )
            # A promotion that was told of survives a power cut too.
            database.execute("PRAGMA synchronous = FULL")
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, with the write lock from the beginning, so that what was read still holds when it's written."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system say into one line."""
    try:
        yield
    except sqlite3.Error as error:
        raise RegistryUnusableError(
            f"{path}: the registry can't be used: {error}; check the file, its permissions and the disk"
        ) from None
    except OSError as error:
        raise RegistryUnusableError(
            f"{path}: the registry can't be used: {error.strerror or error}; check the path and its permissions"
        ) from None


def _prepare(database: sqlite3.Connection) -> None:
    if _identity(database) == (_APPLICATION, _VERSION):
        return
    _set_wal(database)
    with transaction(database):
        # Looked at again: another process may have been first.
        empty = database.execute("SELECT 1 FROM sqlite_master").fetchone() is None
        if _identity(database) == (0, 0) and empty:
            for statement in _TABLES:
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(f"PRAGMA user_version = {_VERSION}")


def _set_wal(database: sqlite3.Connection) -> None:
    """Readers and one writer at once. SQLite doesn't wait for its lock here, so we do."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _identity(database: sqlite3.Connection) -> tuple[int, int]:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return application, version
