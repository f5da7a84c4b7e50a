"""The store of the result cache: whole entries or none, whatever happens to the file."""

import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from evalkit.cache.store import CacheUnusableError, Entry, ResultCache, clear_cache


def entry(number: int, size: int = 100) -> Entry:
    return Entry("m" * 64, f"run-{number}", "bytes", bytes([number % 256]) * size)


def key(number: int) -> str:
    return f"{number:064x}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A cache of three entries."""
    file = tmp_path / "home" / "cache.sqlite3"
    with ResultCache(file) as cache:
        for number in range(3):
            cache.put(key(number), entry(number))
    return file


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement, values)


def test_what_was_put_is_got_and_nothing_else(path: Path) -> None:
    with ResultCache(path) as cache:
        assert [cache.get(key(number)) for number in range(3)] == [entry(number) for number in range(3)]
        assert cache.get(key(3)) is None
        assert cache.damaged == 0
        (share,) = cache.shares()
        assert (share.entries, share.bytes) == (3, 300)


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("UPDATE answers SET payload = ? WHERE key = ?", b"\x01" * 99 + b"\x02"),
        ("UPDATE answers SET payload = ? WHERE key = ?", b"\x01" * 50),
        ("UPDATE answers SET payload = ? WHERE key = ?", "text"),
        ("UPDATE answers SET run_id = ? WHERE key = ?", "another-run"),
        ("UPDATE entries SET model_digest = ? WHERE key = ?", "f" * 64),
        ("UPDATE answers SET layout = ? WHERE key = ?", 7),
        ("UPDATE answers SET digest = ? WHERE key = ?", "0" * 64),
    ],
)
def test_a_damaged_entry_is_counted_and_removed(path: Path, statement: str, value: object) -> None:
    change(path, statement, value, key(1))
    with ResultCache(path) as cache:
        assert cache.get(key(1)) is None
        assert cache.damaged == 1
        assert cache.get(key(1)) is None
        assert cache.damaged == 1
        assert cache.get(key(2)) == entry(2)


def test_a_whole_entry_under_another_key_is_damage_too(path: Path) -> None:
    change(path, "DELETE FROM answers WHERE key = ?", key(2))
    change(path, "UPDATE answers SET key = ? WHERE key = ?", key(2), key(1))
    with ResultCache(path) as cache:
        assert cache.get(key(2)) is None
        assert cache.damaged == 1
        # And the one that lost its answer.
        assert cache.get(key(1)) is None
        assert cache.damaged == 2


def foreign(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE accounts (name TEXT)")


def newer(path: Path) -> None:
    change(path, "PRAGMA user_version = 99")


def no_database(path: Path) -> None:
    path.write_bytes(b"not a database, though long enough to look like one" * 100)


def torn(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size // 2)


@pytest.mark.parametrize("break_it", [foreign, newer, no_database, torn])
def test_a_file_that_is_no_whole_cache_is_refused_and_left_alone(path: Path, break_it: object) -> None:
    assert callable(break_it)
    break_it(path)
    before = path.read_bytes()
    with pytest.raises(CacheUnusableError, match="evalkit cache --clear"):
        read_all(path)
    assert path.read_bytes() == before
    assert clear_cache(path)
    with ResultCache(path) as cache:
        assert cache.shares() == []


def read_all(path: Path) -> None:
    with ResultCache(path) as cache:
        for number in range(3):
            if cache.get(key(number)) != entry(number):
                raise AssertionError("an entry is missing without a word")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CacheUnusableError):
        ResultCache(tmp_path / "file" / "cache.sqlite3")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CacheUnusableError, match="unable to open"):
        ResultCache(tmp_path / "folder")


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite3"
    with ResultCache(path, limit_bytes=1000) as cache:
        for number in range(10):
            cache.put(key(number), entry(number))
    with ResultCache(path, limit_bytes=1000) as cache:
        assert cache.get(key(0)) is not None
    with ResultCache(path, limit_bytes=1000) as cache:
        cache.put(key(10), entry(10))
        (share,) = cache.shares()
        assert share.bytes <= 1000
        assert cache.get(key(0)) is not None and cache.get(key(10)) is not None
        assert cache.get(key(1)) is None
        assert cache.damaged == 0


def test_an_entry_above_the_limit_never_stays(tmp_path: Path) -> None:
    with ResultCache(tmp_path / "cache.sqlite3", limit_bytes=50) as cache:
        cache.put(key(1), entry(1))
        assert cache.get(key(1)) is None


WRITER = """
import sys
from pathlib import Path
from evalkit.cache.store import ResultCache
from tests.evalkit.cache.test_store import entry, key
with ResultCache(Path(sys.argv[1])) as cache:
    print("ready", flush=True)
    for number in range(int(sys.argv[2]), int(sys.argv[3])):
        cache.put(key(number), entry(number, 20_000))
"""


def writer(path: Path, begin: int, end: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(path), str(begin), str(end)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite3"
    processes = [writer(path, begin, begin + 60) for begin in (0, 30, 60)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    with ResultCache(path) as cache:
        assert all(cache.get(key(number)) == entry(number, 20_000) for number in range(120))
        assert cache.damaged == 0


def test_killed_while_it_is_being_written(tmp_path: Path) -> None:
    path, place = tmp_path / "cache.sqlite3", random.Random(5)
    stored = 0
    for begin in range(0, 10_000, 1_000):
        process = writer(path, begin, begin + 1_000)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(place.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with ResultCache(path) as cache:
            found = [cache.get(key(number)) for number in range(begin, begin + 1_000)]
            assert cache.damaged == 0
            whole = [item for item in found if item is not None]
            # What was written before the kill is there, in order, and nothing half.
            assert found[: len(whole)] == [
                entry(number, 20_000) for number in range(begin, begin + len(whole))
            ]
            stored += len(whole)
    assert stored > 0
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
