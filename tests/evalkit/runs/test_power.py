"""`evalkit power`: what a scenario plans, counted from its files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.gate.power import RulePower
from evalkit.runs.power import scenario_power
from evalkit.scenario.loader import load_scenario
from evalkit.scoring.decisions import read_decisions, split_parts
from tests.evalkit.fake_run import RULES, random_evidence, write_run
from tests.support.interrupted import write_scenario

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
    found = by_name(scenario_power(loaded, None))
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


def test_a_pilot_run_decides_what_alone_is_unknown(scenario: Path, tmp_path: Path) -> None:
    pilot = write_run(tmp_path / "pilot", RULES, random_evidence(1), None)
    found = by_name(scenario_power(load_scenario(scenario), pilot.path))
    tokens = found["perplexity/token", None]
    assert tokens.method == "normal" and tokens.power is not None and tokens.needs_n is not None


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
