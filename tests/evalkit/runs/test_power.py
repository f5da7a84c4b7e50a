"""`evalkit power`: what a scenario plans, counted from its files."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.gate.power import RulePower
from evalkit.runs.power import scenario_power
from evalkit.runs.seal import write_seal
from evalkit.scenario.loader import load_scenario
from evalkit.scoring.decisions import read_decisions, split_parts
from tests.evalkit.fake_run import RULES, random_evidence, write_run
from tests.support.interrupted import Interrupted, write_scenario

GATE = """\
gate:
  rules:
    - {metric: perplexity/token, max: 60}
    - {metric: risk/high_risk_recall, min: 0.8}
    - {metric: risk/false_reject_rate, max: 0.2}
    - {metric: risk/precision, min: 0.5}
    - {metric: dialogue/pass_hat_k, k: 2, min: 0.5}
    - {metric: dialogue/handover_recall, min: 0.5}
    - {metric: dialogue/handover_rate, max: 0.5}
    - {metric: latency/first_token, within_ms: 15, share: 0.9}
    - {metric: dialogue/expectation/contains, min: 0.5}
    - {metric: dialogue/expectation/recalls, min: 0.5}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = write_scenario(tmp_path)
    path.write_text(path.read_text().split("gate:")[0] + GATE)
    return path


def by_name(found: list[RulePower]) -> dict[tuple[str, int | None], RulePower]:
    return {(item.metric, item.k): item for item in found}


def test_units_are_counted_from_the_scenarios_own_data(scenario: Path) -> None:
    loaded = load_scenario(scenario)
    found = by_name(scenario_power(loaded, None).rules)
    assert loaded.risk_data is not None
    decisions = read_decisions(loaded.risk_data, ["approve", "reject"])
    parts = split_parts(decisions, 0.3, loaded.scenario.seed)
    judged = [item for item in decisions if parts[item.cluster] == "judged"]
    high = sum(item.target == "reject" for item in judged)
    assert found["risk/high_risk_recall", None].n == high
    assert found["risk/false_reject_rate", None].n == len(judged) - high
    assert found["perplexity/token", None].n == 45
    assert found["dialogue/pass_hat_k", 2].n == 4
    assert found["dialogue/handover_recall", None].n == 0
    assert found["dialogue/handover_rate", None].n == 4
    assert found["latency/first_token", None].n == 4
    asking = [one for one in loaded.dialogues if any(turn.expect.contains for turn in one.dialogue.turns)]
    assert found["dialogue/expectation/contains", None].n == len(asking) > 0
    assert found["dialogue/expectation/recalls", None].n == 0
    for item in found.values():
        assert item.power is not None or item.reason


def edited(interrupted: Interrupted, folder: Path, old: str = "", new: str = "") -> Path:
    """The scenario of the pilot with another gate, and perhaps another line."""
    shutil.copytree(interrupted.scenario.parent, folder)
    path = folder / interrupted.scenario.name
    text = path.read_text()
    assert old in text
    gate = (
        GATE
        + "    - {metric: robustness/typos/perplexity/token, max: 0.5}\n    - {metric: bits_per_byte, max: 60}\n"
    )
    path.write_text(text.replace(old, new, 1).split("gate:")[0] + gate)
    return path


def test_a_pilot_run_decides_what_alone_is_unknown(interrupted: Interrupted, tmp_path: Path) -> None:
    loaded = load_scenario(edited(interrupted, tmp_path / "s"))
    found = scenario_power(loaded, interrupted.reference.path)
    tokens = by_name(found.rules)["perplexity/token", None]
    assert tokens.method == "normal" and tokens.power is not None and tokens.needs_n is not None
    assert not any("in another way" in (item.reason or "") for item in found.rules)
    assert found.warnings == []


TEXTS = {"perplexity/token", "robustness/typos/perplexity/token"}
EVERY_TEXT = {*TEXTS, "bits_per_byte"}
DECISIONS = {"risk/high_risk_recall", "risk/false_reject_rate", "risk/precision"}
TALKS = {
    "dialogue/pass_hat_k",
    "dialogue/handover_recall",
    "dialogue/handover_rate",
    "latency/first_token",
    "dialogue/expectation/contains",
    "dialogue/expectation/recalls",
}


@pytest.mark.parametrize(
    ("old", "new", "metrics"),
    [
        ("stride: 32", "stride: 64", EVERY_TEXT),
        ("  window: {length: 64, stride: 32, prefix: first}\n", "", EVERY_TEXT),
        ("data: texts.jsonl", "data: texts.jsonl\n  classes: {frequency: {head: 0.7}}", TEXTS),
        ("data: texts.jsonl", "data: texts.jsonl\n  classes: {counts: baseline}", TEXTS),
        ("data: texts.jsonl", "data: texts.jsonl\n  classes: {domain: {glossary: talk.yaml}}", TEXTS),
        ("rate: 0.1", "rate: 0.2", {"robustness/typos/perplexity/token"}),
        ("high_risk: reject", "high_risk: reject, calibration: 0.5", DECISIONS),
        ("variation: [typos]", "variation: [typos, paraphrase]", TALKS),
        ("max_new_tokens: 8", "max_new_tokens: 9", TALKS),
    ],
)
def test_nothing_is_taken_from_a_pilot_that_was_measured_in_another_way(
    interrupted: Interrupted, tmp_path: Path, old: str, new: str, metrics: set[str]
) -> None:
    loaded = load_scenario(edited(interrupted, tmp_path / "s", old, new))
    found = scenario_power(loaded, interrupted.reference.path)
    told = [item for item in found.rules if "it measured in another way: " in (item.reason or "")]
    assert {item.metric for item in told} == metrics
    assert all((item.power, item.needs_n, item.assumed) == (None, None, None) for item in told)
    assert all(str(item.reason).startswith("run reference tells nothing of it: ") for item in told)


@pytest.mark.parametrize(
    ("file", "nouns"),
    [("texts.jsonl", "texts"), ("applications.jsonl", "decisions"), ("talk.yaml", "dialogues")],
)
def test_other_samples_than_the_pilots_are_told(
    interrupted: Interrupted, tmp_path: Path, file: str, nouns: str
) -> None:
    path = edited(interrupted, tmp_path / "s")
    data = path.parent / file
    data.write_text(data.read_text().replace("card", "fee"))
    found = scenario_power(load_scenario(path), interrupted.reference.path)
    assert found.warnings == [
        f"run reference was measured on other {nouns} than the scenario's: its values and spreads hold as far as they "
        "are alike"
    ]
    renamed = path.parent / "renamed.yaml"
    (path.parent / "talk.yaml").rename(renamed)
    path.write_text(path.read_text().replace("talk.yaml", "renamed.yaml"))
    assert scenario_power(load_scenario(path), interrupted.reference.path).warnings == found.warnings


def test_other_trials_than_the_pilots_are_told(interrupted: Interrupted, tmp_path: Path) -> None:
    path = edited(interrupted, tmp_path / "s", "trials: 2", "trials: 3")
    command = [
        sys.executable,
        "-m",
        "evalkit",
        "power",
        str(path),
        "--pilot",
        str(interrupted.reference.path),
    ]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    says = "run reference has trials: 2, the scenario 3: the more trials, the less dialogues differ"
    assert (done.returncode, done.stderr) == (0, f"warning: {says}\n")
    assert json.loads(done.stdout)["warnings"] == [says]


def test_a_pilot_is_finished_and_as_it_was_sealed(scenario: Path, tmp_path: Path) -> None:
    pilot, loaded = write_run(tmp_path / "pilot", RULES, random_evidence(1), None), load_scenario(scenario)
    pilot.results.write_bytes(pilot.results.read_bytes() + b" ")
    with pytest.raises(InputError, match=r"pilot: isn't as it was sealed: results\.json: "):
        scenario_power(loaded, pilot.path)
    plan = json.loads(pilot.plan.read_bytes())
    del plan["scenario"]
    pilot.plan.write_text(json.dumps(plan))
    write_seal(pilot.path)
    with pytest.raises(
        InputError, match=r"plan\.json: KeyError\('scenario'\); the file is damaged or of another version"
    ):
        scenario_power(loaded, pilot.path)
    pilot.seal.unlink()
    with pytest.raises(InputError, match="isn't finished"):
        scenario_power(loaded, pilot.path)
    with pytest.raises(InputError, match="no such run folder"):
        scenario_power(loaded, tmp_path / "absent")


def test_a_scenario_without_a_gate_has_nothing_to_decide(scenario: Path) -> None:
    scenario.write_text(scenario.read_text().split("gate:")[0])
    with pytest.raises(InputError, match="gate"):
        scenario_power(load_scenario(scenario), None)


def test_the_command_prints_a_table_or_json(scenario: Path) -> None:
    command = [sys.executable, "-m", "evalkit", "power", str(scenario)]
    table = subprocess.run(command, capture_output=True, text=True, check=False)
    assert table.returncode == 0, table.stderr
    assert "risk/high_risk_recall" in table.stdout and "half-way" in table.stdout
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert len(json.loads(done.stdout)["rules"]) == 10
