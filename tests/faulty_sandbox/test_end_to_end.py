"""Each planted fault as a user meets it: a server that runs, `evalkit run SCENARIO --sandbox ADDRESS`, the exit code."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faulty_sandbox.faults import FAULTS
from tests.faulty_sandbox.few_words import STEPS, write_lines, write_training
from tests.faulty_sandbox.scenario import METRIC_OF_FAULT, RULES, write_flow, write_scenario
from tests.sandbox.processes import serving_command

TEXT = "perplexity/"


@dataclass(frozen=True)
class Ended:
    """A run that has ended: exit code, verdict and the results of the candidate."""

    code: int
    verdict: dict[str, Any]
    results: list[dict[str, Any]]

    def rules(self, outcome: str) -> set[str]:
        """Metrics of the blocking rules with this outcome."""
        rules = [rule for rule in self.verdict["rules"] if rule["severity"] == "block"]
        return {rule["metric"] for rule in rules if rule["outcome"] == outcome}

    def text_rules(self) -> list[dict[str, Any]]:
        return [rule for rule in self.verdict["rules"] if rule["metric"].startswith(TEXT)]

    def text_scores(self) -> list[dict[str, Any]]:
        return [
            item for item in self.results if not item["name"].startswith(("dialogue/", "latency/", "cache/"))
        ]


def run_with(fault: str, scenario: Path, bundle: Path, flow: Path | None, folder: Path) -> Ended:
    """Serve the bundle with the fault, and run the scenario against that server."""
    arguments = [str(bundle), *([] if flow is None else ["--flow", str(flow)]), "--fault", fault]
    out = folder / f"run-{fault}"
    with serving_command(arguments, folder, command=("-m", "tests.faulty_sandbox")) as server:
        command = ["-m", "evalkit", "run", str(scenario), "--model", str(bundle)]
        command += ["--sandbox", server.address, "--out", str(out)]
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, timeout=240
        )
    assert (out / "verdict.json").is_file(), done.stderr
    return Ended(
        done.returncode,
        json.loads((out / "verdict.json").read_bytes()),
        json.loads((out / "results.json").read_bytes())["metrics"],
    )


@pytest.fixture(scope="module")
def run_fault(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ended]:
    """Runs of the scenario, one a fault; the model is trained first, and half of its training is the baseline."""
    folder = tmp_path_factory.mktemp("few_words")
    _trainer("train", write_training(folder), "--out", folder / "run")
    for name, step in (("candidate", STEPS), ("baseline", STEPS // 2)):
        checkpoint = folder / "run" / "checkpoints" / f"step-{step}"
        _trainer("export", checkpoint, "--out", folder / name, "--format", "mindir,onnx")
    flow = write_flow(folder)
    scenario = write_scenario(folder, folder / "candidate", folder / "baseline", flow)
    known: dict[str, Ended] = {}

    def run(fault: str) -> Ended:
        if fault not in known:
            known[fault] = run_with(fault, scenario, folder / "candidate", flow, folder)
        return known[fault]

    return run


def _trainer(*words: object) -> None:
    subprocess.run(
        [sys.executable, "-m", "trainer", *map(str, words)], check=True, capture_output=True, timeout=600
    )


@pytest.mark.slow
def test_without_a_fault_the_model_passes(run_fault: Callable[[str], Ended]) -> None:
    ended = run_fault("none")
    assert (ended.code, ended.verdict["verdict"]) == (0, "PASS")
    assert ended.rules("PASS") == {rule["metric"] for rule in RULES if rule.get("severity") != "warn"}
    assert ended.verdict["baseline_model_digest"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("fault", METRIC_OF_FAULT)
def test_a_planted_fault_fails_the_run_by_the_metric_meant_for_it(
    fault: str, run_fault: Callable[[str], Ended]
) -> None:
    ended, healthy = run_fault(fault), run_fault("none")
    assert (ended.code, ended.verdict["verdict"]) == (1, "FAIL")
    assert METRIC_OF_FAULT[fault] in ended.rules("FAIL")
    # The texts never pass the server: not a bit of their scores is another one, and their rules pass.
    assert ended.text_rules() == healthy.text_rules()
    assert ended.text_scores() == healthy.text_scores() != []
    assert {rule["outcome"] for rule in ended.text_rules()} == {"PASS"}


def test_a_repeated_prefix_token_fails_a_run_that_passes_without_it(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    """The quick one of these: random weights, and dialogues that expect nothing of the replies."""
    turns = [{"user": f"{text} {{name}}", "gold": "x"} for text in ("hello, I am", "who is", "bye,")]
    talks = [{"id": f"d{number}", "facts": {"name": f"N{number}"}, "turns": turns} for number in range(12)]
    (tmp_path / "talk.yaml").write_text(json.dumps({"dialogues": talks}))
    texts = [{"id": f"t{number}", "text": f"my card {number} is lost"} for number in range(12)]
    write_lines(tmp_path / "texts.jsonl", texts)
    metric = METRIC_OF_FAULT["prefix"]
    content = {
        "version": 1,
        "name": "random_weights",
        "text": {"data": "texts.jsonl"},
        "dialogues": {"include": ["talk.yaml"], "max_new_tokens": 8, "concurrency": 4},
        "gate": {"rules": [{"metric": "perplexity/token", "max": 1e9}, {"metric": metric, "min": 0.75}]},
    }
    (tmp_path / "scenario.yaml").write_text(json.dumps(content))
    healthy, repeating = (
        run_with(fault, tmp_path / "scenario.yaml", tiny_bundle, None, tmp_path)
        for fault in ("none", "prefix")
    )
    assert (healthy.code, healthy.verdict["verdict"]) == (0, "PASS")
    assert (repeating.code, repeating.verdict["verdict"]) == (1, "FAIL")
    assert repeating.rules("FAIL") == {metric}
    assert repeating.text_scores() == healthy.text_scores() != []
    # The first turn of three is laid out as ever.
    assert [item["value"] for item in repeating.results if item["name"] == metric] == [pytest.approx(1 / 3)]


def test_every_fault_has_its_metric() -> None:
    assert set(METRIC_OF_FAULT) == set(FAULTS) - {"none"}
