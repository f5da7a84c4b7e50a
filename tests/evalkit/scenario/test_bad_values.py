"""Wrong values are reported where they stand, by the branch that was meant, and never coerced."""

from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.scenario.schema import Scenario
from evalkit.yaml_source import load_yaml

RULE = "{metric: perplexity/token, max: 60}"


def scenario(folder: Path, gate: str = f"{{rules: [{RULE}]}}", version: str = "1", seed: str = "1") -> Path:
    path = folder / "scenario.yaml"
    path.write_text(f"version: {version}\nname: x\nseed: {seed}\ntext: {{data: t.jsonl}}\ngate: {gate}\n")
    return path


def test_the_scenario_itself_is_sound(tmp_path: Path) -> None:
    assert load_yaml(scenario(tmp_path), Scenario).gate is not None
    by_file = load_yaml(scenario(tmp_path, "{policy: policy.yaml}"), Scenario).gate
    assert by_file is not None and not hasattr(by_file, "rules")


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (f"{{confidence: 95, rules: [{RULE}]}}", "scenario.yaml:5: gate.confidence: "),
        (f"{{max_error_rate: 2, rules: [{RULE}]}}", "gate.max_error_rate: "),
        ("{rules: []}", "gate.rules: "),
        ("{rules: [{metric: a, max: .nan}]}", "gate.rules.0.max: "),
        ("{rules: [{metric: a, max: '60'}]}", "gate.rules.0.max: "),
        ("{rules: [{metric: a, max: true}]}", "gate.rules.0.max: "),
        ("{rules: [{metric: a, max: 1, severity: blok}]}", "gate.rules.0.severity: "),
        ("{rules: [{metric: a, min: 1, max: 2}]}", "exactly one of min, max"),
        ("{policy: p.yaml, rules: []}", "gate.rules: unknown key"),
    ],
)
def test_a_wrong_value_in_the_gate_is_named(tmp_path: Path, gate: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_yaml(scenario(tmp_path, gate), Scenario)
    assert message in str(caught.value)
    assert message.endswith("unknown key") or "unknown key" not in str(caught.value)


@pytest.mark.parametrize(
    "fields", [{"version": "true"}, {"version": "'1'"}, {"seed": "1.5"}, {"seed": "9" * 9000}]
)
def test_nothing_is_coerced(tmp_path: Path, fields: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        load_yaml(scenario(tmp_path, **fields), Scenario)
    assert len(str(caught.value)) < 400
