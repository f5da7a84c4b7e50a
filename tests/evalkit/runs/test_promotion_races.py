"""Several promotions at once, and promotions that are killed: an alias is always what the audit says, and never torn."""

import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from evalkit.runs.promotion import bind_alias, promote
from evalkit.runs.recording import record_run
from evalkit.runs.registry import Registry
from evalkit.runs.registry_rows import AuditEntry
from evalkit.runs.registry_schema import registry_file
from tests.support.promotable import Shop, digest_of, make_shop

MODELS = ("a", "b", "c")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A bound alias."""
    made = make_shop(tmp_path / "shop")
    bind_alias("production", made.policy, made.scenario)
    return made


@contextmanager
def promoter(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of tests.support.promoter that is ready."""
    command = [sys.executable, "-m", "tests.support.promoter", *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def moves() -> list[AuditEntry]:
    """The audit's promotions, after checking that each begins where the one before ended."""
    with Registry() as registry:
        entries = [entry for entry in registry.audit() if entry.action != "bind"]
        alias = registry.alias("production")
    before = None
    for entry in entries:
        assert entry.previous_digest == before
        before = entry.model_digest
    assert alias is not None
    assert alias.model_digest == before
    return entries


def race(shop: Shop, rounds: int) -> None:
    """Two processes promote at once with one expectation: one wins and exits 0, the other exits 1."""
    runs = {model: shop.run(model) for model in MODELS}
    choice = random.Random(8)
    with ExitStack() as stack:
        processes = [stack.enter_context(promoter()) for _ in range(2)]
        held = None
        for number in range(rounds):
            others = [model for model in MODELS if model != held]
            # Different models, one model twice, and one that is held already beside one that isn't.
            pairs = [others[:2], [others[0]] * 2, [held or others[1], others[0]]]
            pair = choice.sample(pairs[number % 3], 2)
            expected = "none" if held is None else digest_of(held)
            for process, model in zip(processes, pair, strict=True):
                words = ["promote", str(runs[model].path), "--as", "production", "--expect", expected]
                assert process.stdin is not None
                process.stdin.write(json.dumps(words) + "\n")
                process.stdin.flush()
            codes = [process.stdout.readline().strip() for process in processes if process.stdout is not None]
            assert sorted(codes) == ["0", "1"], (number, pair, codes)
            held = pair[codes.index("0")]
            entries = moves()
            assert len(entries) == number + 1
            assert entries[-1].model_digest == digest_of(held)


def test_of_two_promotions_at_once_one_wins(shop: Shop) -> None:
    race(shop, 6)


@pytest.mark.slow
def test_of_two_promotions_at_once_one_wins_100_times(shop: Shop) -> None:
    """The acceptance: 100 times, each with one winner, and an audit without a gap."""
    race(shop, 100)


def kill(shop: Shop, times: int) -> None:
    """kill -9 at a random moment: the alias holds the old model or the new one, and what was told is kept."""
    runs = [shop.run("a"), shop.run("b")]
    place = random.Random(4)
    for _ in range(times):
        with promoter("production", *(str(run.path) for run in runs)) as process:
            time.sleep(place.uniform(0.02, 0.3))
            process.kill()
            output, _ = process.communicate()
        numbers = [int(line) for line in output.split()]
        entries = moves()
        assert {entry.model_digest for entry in entries} <= {digest_of("a"), digest_of("b")}
        # What was told is kept, and at most one more: the one that was under way.
        kept = [entry.seq for entry in entries if not numbers or entry.seq >= numbers[0]]
        assert not numbers or numbers in (kept, kept[:-1])
        database = sqlite3.connect(registry_file())
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()
        # The next process begins with the one that isn't held.
        runs.sort(key=lambda run: bool(entries) and str(run.path.resolve()) == entries[-1].run_folder)


def test_a_killed_promotion_leaves_the_old_or_the_new_alias(shop: Shop) -> None:
    kill(shop, 3)


@pytest.mark.slow
def test_a_promotion_killed_50_times_leaves_the_old_or_the_new_alias(shop: Shop) -> None:
    """The acceptance: never neither."""
    kill(shop, 50)


def test_processes_that_record_and_promote_at_once_wait_for_each_other(shop: Shop) -> None:
    run = shop.run("a")
    with promoter("production", str(shop.run("b").path), str(run.path)) as process:
        assert process.stdout is not None and int(process.stdout.readline())  # it is at it
        for _ in range(20):
            record_run(run)
    with Registry() as registry:
        assert len(registry.runs()) == 1
    assert moves()


def test_several_processes_create_the_registry_at_once(tmp_path: Path) -> None:
    """The first one makes the tables; the others find them, or wait."""
    shop = make_shop(tmp_path / "shop")
    words = ["alias", "set", "production", "--policy", str(shop.policy), "--scenario", str(shop.scenario)]
    with ExitStack() as stack:
        processes = [stack.enter_context(promoter()) for _ in range(3)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
        codes = [process.stdout.readline() for process in processes if process.stdout is not None]
    assert codes == ["0\n"] * 3
    with Registry() as registry:
        assert [entry.seq for entry in registry.audit()] == [1, 2, 3]
    promote(shop.run("a"), "production")
