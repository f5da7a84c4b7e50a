"""Imported dialogues run: three hundred of three corpora against a real sandbox, in bounded time."""

import json
import math
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from evalkit.bundle import load_bundle
from evalkit.chat import ChatRenderer
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.scenario.importers.convert import dump_dialogues, import_dialogues
from evalkit.yaml_source import YamlSource

SCENARIO = """\
version: 1
name: imported
flow: {flow}
dialogues: {{include: [imported.yaml], trials: 1, max_new_tokens: 2}}
"""
SHARES = {"sgd": 110, "crosswoz": 110, "tau2": 80}
SOURCES = {"sgd": "sgd_banks_payment", "crosswoz": "crosswoz/val.json.zip", "tau2": "tau2_banking"}


@pytest.mark.slow
def test_three_hundred_imported_dialogues_replay_in_bounded_time(
    shared_data: Path, tiny_bundle: Path, flow_folder: Path, tmp_path: Path
) -> None:
    dialogues = []
    for kind, count in SHARES.items():
        found = import_dialogues(kind, shared_data / "dialogues" / SOURCES[kind], tmp_path / kind)
        read = [one for name in found.files for one in YamlSource(tmp_path / kind / name).value["dialogues"]]
        dialogues += read[:count]
    (tmp_path / "imported.yaml").write_text(dump_dialogues(dialogues), encoding="utf-8")
    scenario = tmp_path / "scenario.yaml"
    # The tests' small flow knows three intents: without this it hands nearly every dialogue over.
    flow = shutil.copytree(flow_folder, tmp_path / "flow")
    text = (flow / "flow.yaml").read_text()
    (flow / "flow.yaml").write_text(text.replace("after_failed_turns: 2", "after_failed_turns: 100"))
    scenario.write_text(SCENARIO.format(flow=flow))
    command = [sys.executable, "-m", "evalkit", "run", str(scenario), "--model", str(tiny_bundle)]
    started = time.monotonic()
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run"), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert time.monotonic() - started < 600
    turns = read_evidence(RunFolder(tmp_path / "run"), "candidate").turns
    played = Counter(turn.dialogue_id for turn in turns)
    assert len(played) == 300 == sum(SHARES.values())
    # Whatever the model made of them: a result for each dialogue, but for those where a text alone is longer than its
    # 256 tokens. (How many of those are lost is the flow's affair: what it hands over at once never reaches the model.)
    renderer = ChatRenderer(load_bundle(tiny_bundle).tokenizer)
    too_long = {turn.dialogue_id for turn in turns if len(renderer.opening(None, turn.user_text)) + 2 > 256}
    assert len(too_long) < 30
    lost = {turn.dialogue_id: turn.reason or "" for turn in turns if turn.status == "infrastructure_fault"}
    assert lost.keys() <= too_long and all("don't fit into 256" in reason for reason in lost.values())
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    passed = next(one for one in results["metrics"] if one["name"] == "dialogue/pass_hat_k")
    assert passed["n"] == 300 - len(lost) and math.isclose(passed["coverage"], 1 - len(lost) / 300)
