"""`evalkit compare`: two runs' candidates, paired by sample, with p-values."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalkit.canonical import sha256_text
from evalkit.errors import InputError
from evalkit.runs.comparing import compare_runs
from evalkit.runs.derive import derive
from evalkit.runs.folder import RunFolder
from evalkit.runs.results_io import read_results
from evalkit.runs.seal import write_seal
from tests.evalkit.fake_run import RULES, random_evidence, write_run


def edit_plan(folder: RunFolder, **changes: Any) -> None:
    content = json.loads(folder.plan.read_bytes())
    content["candidate"].update(changes.pop("candidate", {}))
    content["measurement"]["candidate"]["signatures"].update(changes.pop("signatures", {}))
    folder.plan.write_text(json.dumps(content))
    write_seal(folder.path)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[RunFolder, RunFolder]:
    """The worse model's run and the better one's."""
    worse = write_run(tmp_path / "a", RULES, random_evidence(1, worse=0.4), None)
    better = write_run(tmp_path / "b", RULES, random_evidence(1), None)
    edit_plan(better, candidate={"model_digest": sha256_text("another model")})
    return worse, better


def compare(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evalkit", "compare", *[str(word) for word in words]]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_differences_are_those_of_the_first_less_the_second(runs: tuple[RunFolder, RunFolder]) -> None:
    found = compare_runs(*runs)
    assert not found.same_model
    values = [
        {item.name: item.value for item in read_results(folder.results).metrics if item.slice is None}
        for folder in runs
    ]
    metric = found.comparison.find("perplexity/token")
    assert metric is not None and metric.absolute.value is not None
    ours, theirs = values[0]["perplexity/token"], values[1]["perplexity/token"]
    assert ours is not None and theirs is not None
    assert metric.absolute.value == pytest.approx(ours - theirs, rel=1e-12)
    assert metric.absolute.interval is not None and metric.absolute.interval.low is not None
    assert metric.absolute.interval.low > 0
    bootstrap, sign = found.tests_of(metric)
    assert bootstrap.method == "paired-cluster-bootstrap" and bootstrap.p is not None and bootstrap.p < 0.005
    assert (sign.method, sign.above, sign.below) == ("sign-test-exact", 60, 0)
    assert sign.p == pytest.approx(2.0**-59)


def test_decisions_and_dialogues_are_paired_by_mcnemar(runs: tuple[RunFolder, RunFolder]) -> None:
    found = compare_runs(*runs)
    for name, k in (("risk/false_reject_rate", None), ("dialogue/pass_hat_k", 3)):
        metric = found.comparison.find(name, k)
        assert metric is not None
        exact = found.tests_of(metric)[1]
        assert exact.method == "mcnemar-exact"
        assert exact.above is not None and exact.below is not None and exact.equal is not None
        assert exact.p is not None


def test_json_holds_everything(runs: tuple[RunFolder, RunFolder]) -> None:
    done = compare(runs[0].path, runs[1].path, "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["same_model"] is False
    entry = next(item for item in content["metrics"] if item["name"] == "perplexity/token")
    assert {"absolute", "relative", "candidate", "baseline", "tests"} <= set(entry)
    assert entry["tests"][0]["p"] < 0.005


def test_the_table_names_metrics_and_p_values(runs: tuple[RunFolder, RunFolder]) -> None:
    done = compare(*[folder.path for folder in runs])
    assert done.returncode == 0
    assert "perplexity/token" in done.stdout and "sign-test-exact" in done.stdout


def test_equal_models_are_said(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", RULES, random_evidence(1), None)
    second = write_run(tmp_path / "b", RULES, random_evidence(1), None)
    done = compare(first.path, second.path)
    assert done.returncode == 0
    # One line, not the same reason beside each metric.
    assert len(done.stdout.splitlines()) == 1 and "same model" in done.stdout
    assert compare_runs(first, second).to_dict()["same_model"] is True


def test_unequal_signatures_exit_2_and_are_both_named(runs: tuple[RunFolder, RunFolder]) -> None:
    other = "ppl|w:512/512/first|p:fp32|t:02ab|c:9be1|v:1"
    edit_plan(runs[1], signatures={"text": other})
    done = compare(*[folder.path for folder in runs])
    assert (done.returncode, done.stdout) == (2, "")
    assert other in done.stderr and "ppl|w:256/256/first" in done.stderr


def test_other_data_and_unfinished_runs_are_refused(
    runs: tuple[RunFolder, RunFolder], tmp_path: Path
) -> None:
    strangers = write_run(tmp_path / "c", RULES, random_evidence(9, dialogues=0), None)
    mine = write_run(tmp_path / "d", RULES, random_evidence(8, texts=0), None)
    with pytest.raises(InputError, match="in common"):
        compare_runs(strangers, mine)
    runs[1].seal.unlink()
    with pytest.raises(InputError, match="evalkit resume"):
        compare_runs(*runs)


def test_a_plan_whose_model_is_no_object_is_one_line(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", RULES, random_evidence(1), None)
    content = json.loads(first.plan.read_text())
    first.plan.write_text(json.dumps({**content, "candidate": "x"}))
    with pytest.raises(InputError, match=r"plan\.json: candidate: a JSON object is needed"):
        derive(first)
