"""A real MLflow on SQLite is told of runs and promotions; what it says or fails to say decides nothing."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from evalkit.integrations.mlflow import EXPERIMENT, MlflowError, MlflowTarget, scalars
from evalkit.metrics.result import MetricResult
from evalkit.report import write_reports
from evalkit.runs.promotion import bind_alias, promote
from evalkit.runs.results_io import read_results
from tests.evalkit.fake_run import metric
from tests.support.promotable import Shop, digest_of, make_shop

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow isn't installed")
pytest.importorskip("sqlalchemy", reason="the extra mlflow isn't installed")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A bound alias; MLflow writes artefacts into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    # MLflow tries for a minute and a half to open a database that it can't.
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 0)
    made = make_shop(tmp_path / "shop")
    bind_alias("production", made.policy, made.scenario)
    return made


def test_a_run_and_its_promotion_stand_in_mlflow(shop: Shop) -> None:
    uri = "sqlite:///mlflow.db"
    first, second = shop.run("a"), shop.run("b")
    write_reports(first, ("html",))
    target = MlflowTarget(uri)
    run_id = target.log_run(first)
    assert target.log_run(first) == run_id
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert [run.info.run_id for run in client.search_runs([experiment.experiment_id])] == [run_id]
    logged = client.get_run(run_id).data
    assert logged.metrics == dict(scalars(read_results(first.results).metrics))
    assert logged.metrics["evalkit/perplexity/token.low"] < logged.metrics["evalkit/perplexity/token"]
    assert (logged.tags["evalkit.verdict"], logged.tags["evalkit.model_digest"]) == ("PASS", digest_of("a"))
    assert {item.path for item in client.list_artifacts(run_id)} == {
        *("reports", "results.json", "seal.json", "verdict.json")
    }

    for run, model in ((first, "a"), (second, "b"), (first, "a")):
        version = target.move_alias(run, promote(run, "production").entry)
        pointed = client.get_model_version_by_alias("shop", "production")
        assert (str(pointed.version), pointed.tags["model_digest"]) == (version, digest_of(model))
    # Back to the first model is back to its version.
    assert {str(item.version) for item in client.search_model_versions("name = 'shop'")} == {"1", "2"}


@pytest.mark.slow
def test_the_run_command_tells_mlflow_and_prints_one_object(
    shop: Shop, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from evalkit.cli import cli
    from evalkit.console import run

    texts = "".join(f'{{"id": "t{number}", "text": "my card {number} is lost"}}\n' for number in range(40))
    (shop.folder / "texts.jsonl").write_text(texts)
    shop.scenario.write_text(shop.scenario.read_text().replace("max: 100", "max: 1.0e9"))
    words = [
        "run",
        str(shop.scenario),
        "--model",
        str(tiny_bundle),
        "--out",
        "real",
        "--mlflow",
        "sqlite:///m.db",
    ]
    with pytest.raises(SystemExit) as left:
        run(cli, [*words, "--json"])
    assert left.value.code == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"
    client = mlflow.MlflowClient(tracking_uri="sqlite:///m.db")
    (logged,) = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    assert logged.data.tags["evalkit.verdict"] == "PASS"
    assert "evalkit/perplexity/token" in logged.data.metrics
    files = {item.path for item in client.list_artifacts(logged.info.run_id, "reports")}
    assert {"reports/report.html", "reports/report.md", "reports/junit.xml"} == files


def test_a_database_that_cannot_be_opened_is_one_line(shop: Shop, tmp_path: Path) -> None:
    """It's found before a run is measured, or an alias moved."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(MlflowError) as caught:
        MlflowTarget(f"sqlite:///{tmp_path}/folder")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("MLflow at sqlite:")


def named(name: str, **fields: Any) -> MetricResult:
    return metric(name, 2.0, 1.0, 3.0, **fields)


def test_keys_are_what_mlflow_takes_and_stay_apart() -> None:
    """Tags of a user's texts may hold any character; two of them never share a key."""
    found = scalars(
        [
            named("perplexity/token"),
            named("dialogue/pass_hat_k", k=3),
            named("perplexity/token", slice="zh"),
            named("perplexity/token", slice="a=b"),
            named("perplexity/token", slice="a+b"),
            metric("perplexity/oov", None),
        ]
    )
    keys = [key for key, _ in found]
    assert len(set(keys)) == len(keys) == 15
    assert {
        "evalkit/perplexity/token",
        "evalkit/dialogue/pass_hat_k.3",
        "evalkit/perplexity/token.zh.high",
    } <= set(keys)
    assert not any("oov" in key or "=" in key or "+" in key for key in keys)


def test_an_mlflow_that_breaks_later_is_a_warning(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from evalkit.cli import cli
    from evalkit.console import run
    from evalkit.registry_cli import tell_mlflow

    folder, uri = shop.run("a"), f"sqlite:///{tmp_path}/broken.db"
    target = MlflowTarget(uri)
    with sqlite3.connect(tmp_path / "broken.db") as database:
        database.execute("DROP TABLE experiment_tags")
        database.execute("DROP TABLE experiments")
    tell_mlflow(target, folder)
    warning = capsys.readouterr().err.splitlines()[-1]
    assert warning.startswith("warning: MLflow at sqlite:")
    assert "verdict are whole" in warning
    with pytest.raises(SystemExit) as left:
        run(cli, ["promote", str(folder.path), "--as", "production", "--mlflow", uri])
    assert left.value.code == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("promoted: production none -> ")
    assert "MLflow wasn't told" in printed.err
