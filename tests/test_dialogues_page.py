"""docs/dialogues.md: its dialogue reads, its users read, and its gold agent passes."""

import re
from pathlib import Path

import pytest
import yaml

from evalkit.errors import InputError
from evalkit.scenario.dialogue_files import read_dialogue_file
from evalkit.scenario.expectations import self_test
from evalkit.scenario.loader import load_scenario

PAGE = Path(__file__).resolve().parent.parent / "docs" / "dialogues.md"


def blocks() -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_dialogue_of_the_page_passes_its_self_test(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(blocks()[0])
    assert self_test(read_dialogue_file(path)) == []


def test_the_user_of_the_page_belongs_to_it(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(blocks()[0].replace("name: Maria,", "name: Maria, account: 17,") + blocks()[1])
    talk = read_dialogue_file(path)[0].dialogue
    assert talk.user is not None and talk.user.kind == "rules"
    assert self_test(read_dialogue_file(path)) == []


@pytest.mark.parametrize(("severity", "may_block"), [("block", False), ("warn", False), ("block", True)])
def test_a_model_that_plays_the_user_blocks_no_release_by_default(
    tmp_path: Path, severity: str, may_block: bool
) -> None:
    user = {"kind": "model", "endpoint": "http://x/v1", "model": "m", "declare": "m", "may_block": may_block}
    turns = [{"user": "hi", "gold": "hello", "expect": {"contains": ["hello"]}}]
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({"id": "d", "turns": turns, "user": user}))
    rule = {"metric": "dialogue/pass_hat_k", "k": 1, "min": 0.5, "severity": severity}
    scenario = {
        "version": 1,
        "name": "s",
        "model": {"bundle": "b"},
        "dialogues": {"include": ["d.yaml"]},
        "gate": {"rules": [rule]},
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(scenario))
    if severity == "block" and not may_block:
        with pytest.raises(InputError, match=r"d.yaml:1: d: a model plays the user, .*severity: warn"):
            load_scenario(tmp_path / "s.yaml")
    else:
        assert load_scenario(tmp_path / "s.yaml").dialogues


@pytest.mark.parametrize("evidence", ["turn", "text"])
def test_a_metric_of_ones_own_over_what_a_model_said_blocks_no_release_either(
    tmp_path: Path, evidence: str
) -> None:
    user = {"kind": "model", "endpoint": "http://x/v1", "model": "m", "declare": "m"}
    turns = [{"user": "hi", "gold": "hello", "expect": {"contains": ["hello"]}}]
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({"id": "d", "turns": turns, "user": user}))
    module = f"mine_{evidence}"
    (tmp_path / f"{module}.py").write_text(
        "from evalkit.metrics.own import OwnMetric\n"
        f"metric = OwnMetric('own/words', 'words', 'lower', {evidence!r}, lambda record: (1.0, 1.0),\n"
        "    lambda sums: sums[:, 0] / sums[:, 1], 'read them.', 9.0)\n"
    )
    scenario = {
        "version": 1,
        "name": "s",
        "modules": ".",
        "metrics": [f"{module}:metric"],
        "dialogues": {"include": ["d.yaml"]},
        "gate": {"rules": [{"metric": "own/words", "max": 5}]},
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(scenario))
    if evidence == "turn":
        with pytest.raises(InputError, match=r"a model plays the user, and the blocking rule on own/words"):
            load_scenario(tmp_path / "s.yaml")
    else:
        assert load_scenario(tmp_path / "s.yaml").dialogues
