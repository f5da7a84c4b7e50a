"""The registry: runs and verdicts as they were, and an audit that only grows."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.runs.history import load_history
from evalkit.runs.judging import judge_run, store_verdict
from evalkit.runs.promotion import bind_alias, promote
from evalkit.runs.recording import record_run
from evalkit.runs.registry import Registry
from evalkit.runs.registry_schema import RegistryUnusableError, registry_file
from evalkit.runs.results_io import read_results
from tests.evalkit.fake_run import policy
from tests.support.promotable import FAILING, Shop, digest_of, make_shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A scenario without runs."""
    return make_shop(tmp_path / "shop")


def test_a_run_is_recorded_with_its_metrics_and_latest_verdict(shop: Shop) -> None:
    run = shop.run("a")
    record_run(run)
    store_verdict(run, judge_run(run, policy(FAILING)))
    record_run(run)
    (item,) = load_history().runs
    assert (item.run.model_digest, item.run.folder, item.word) == (digest_of("a"), str(run.path), "FAIL")
    stored = {metric.name: metric for metric in read_results(run.results).metrics if metric.k is None}
    (series,) = load_history("perplexity/token").series
    ((_, entry),) = series.points
    wanted = stored["perplexity/token"]
    assert wanted.interval is not None
    assert (entry.value, entry.low, entry.high) == (wanted.value, wanted.interval.low, wanted.interval.high)
    absent = next(metric for metric in stored.values() if metric.value is None)
    (nothing,) = load_history(absent.name).series
    assert nothing.points[0][1].value is None
    assert nothing.points[0][1].reason == absent.reason


def test_numbers_that_were_measured_differently_are_different_series(shop: Shop) -> None:
    for run in (shop.run("a"), shop.run("b"), shop.run("c", scenario_sha256="f" * 64)):
        record_run(run)
    found = load_history("perplexity/token")
    assert [[item.run.model_name for item, _ in series.points] for series in found.series] == [
        ["a", "b"],
        ["c"],
    ]


def test_an_unknown_metric_is_named(shop: Shop) -> None:
    record_run(shop.run("a"))
    with pytest.raises(InputError, match=r"perplexity/tokn.*perplexity/token"):
        load_history("perplexity/tokn")


def test_nothing_is_created_by_reading(own_home: Path) -> None:
    assert load_history().runs == ()
    with pytest.raises(InputError, match="isn't bound"):
        promote_nothing(own_home)
    assert not own_home.exists()


def promote_nothing(home: Path) -> None:
    from evalkit.runs.promotion import promoted_bundle

    promoted_bundle("production")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"not a database" * 100),
        lambda path: sqlite3.connect(path).execute("CREATE TABLE theirs (x)").connection.close(),
        lambda path: path.mkdir(),
    ],
)
def test_a_file_that_is_no_registry_changes_no_verdict(
    shop: Shop, own_home: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], object]
) -> None:
    own_home.mkdir(parents=True)
    spoil(registry_file())
    run = shop.run("a")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    record_run(run)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("warning: ")
    assert "its verdict stands in" in lines[0]
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    with pytest.raises(RegistryUnusableError, match=r"registry\.sqlite3"):
        load_history()


def test_a_run_that_cannot_be_recorded_is_one_warning(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan of a version that knew no digest of the scenario: `judge` and `rescore` work on as before."""
    record_run(shop.run("a", scenario_sha256=None))
    (line,) = capsys.readouterr().err.splitlines()
    assert "scenario_sha256" in line
    assert load_history().runs == ()


def test_a_home_that_cannot_be_made_is_one_warning(
    shop: Shop, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_home.write_text("a file")
    record_run(shop.run("a"))
    assert capsys.readouterr().err.count("\n") == 1


def test_the_registry_keeps_a_write_ahead_log(shop: Shop) -> None:
    record_run(shop.run("a"))
    database = sqlite3.connect(registry_file())
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET who = 'nobody'",
        "DELETE FROM audit",
        "DELETE FROM audit WHERE seq = 2",
        "INSERT OR REPLACE INTO audit (seq, at, who, action, alias, policy_sha256, scenario_sha256) "
        "VALUES (2, '', '', 'bind', 'production', '', '')",
        "UPDATE aliases SET model_digest = 'mine'",
        "DELETE FROM aliases",
        "INSERT INTO audit (at, who, action, alias, policy_sha256, scenario_sha256, model_digest) "
        "VALUES ('', '', 'force', 'production', '', '', 'without a reason')",
    ],
)
def test_the_audit_only_grows(shop: Shop, statement: str) -> None:
    """Triggers refuse it to whoever opens the file, evalkit or not."""
    bind_alias("production", shop.policy, shop.scenario)
    promote(shop.run("a"), "production")
    with Registry() as registry:
        before = registry.audit(), registry.aliases()
    with sqlite3.connect(registry_file()) as database, pytest.raises(sqlite3.DatabaseError):
        database.execute(statement)
    with Registry() as registry:
        assert (registry.audit(), registry.aliases()) == before


def test_a_kept_number_is_never_given_twice(shop: Shop) -> None:
    for _ in range(3):
        bind_alias("production", shop.policy, shop.scenario)
    with Registry() as registry:
        assert [entry.seq for entry in registry.audit()] == [1, 2, 3]
