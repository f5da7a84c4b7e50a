"""S37: how many dialogues are played side by side changes times only: whole runs, down to the verdict's file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalkit.console import SilentProgress
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.orchestrate import RunRequest, run_scenario
from evalkit.runs.records import TurnRecord
from evalkit.scenario.loader import load_scenario
from tests.sandbox.fixtures import INTENTS
from tests.sandbox.processes import SandboxProcess

LATENCIES = ("latency/first_token", "latency/turn_overhead")
RULES: list[dict[str, Any]] = [
    {"metric": "perplexity/token", "max": 1e9},
    {"metric": "dialogue/pass_hat_k", "k": 1, "min": 0.1},
    {"metric": "dialogue/pass_hat_k", "k": 2, "min": 0.9},
    {"metric": "dialogue/expectation/never", "min": 0.8},
    {"metric": "dialogue/expectation/contains", "min": 0.9},
    {"metric": "dialogue/expectation/intent", "min": 0.5},
    {"metric": "dialogue/handover_rate", "max": 0.4},
    {"metric": "dialogue/satisfaction", "min": 1.1, "severity": "warn"},
    *({"metric": name, "within_ms": 50, "share": 0.9, "severity": "warn"} for name in LATENCIES),
]
# What names the run, and not what it found.
_IDENTITY = ("run_id", "plan_sha256")


def _scenario(folder: Path, flow: Path, concurrency: int) -> Path:
    folder.mkdir()
    texts = [{"id": f"t{number}", "text": f"my card {number} is lost"} for number in range(12)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    dialogues = [
        {
            "id": f"d{number}",
            "facts": {"name": f"N{number}"},
            "turns": [
                # Random weights answer as they like: some replies hold the letter, some don't.
                {"user": ["hello, I am {name}", "{name} here"], "gold": "e", "expect": {"contains": ["e"]}},
                {"user": list(INTENTS["card_lost"]), "gold": "x", "expect": {"intent": "card_lost"}},
                {"user": list(INTENTS["balance"]), "gold": "x", "expect": {"intent": "balance"}},
            ],
            "never": ["<|end|>"],
        }
        for number in range(20)
    ]
    (folder / "talk.yaml").write_text(json.dumps({"dialogues": dialogues}))
    content = {
        "version": 1,
        "name": "side_by_side",
        "flow": str(flow),
        "text": {"data": "texts.jsonl"},
        "dialogues": {
            "include": ["talk.yaml"],
            "trials": 2,
            "variation": ["paraphrase", "typos"],
            "max_new_tokens": 8,
            "concurrency": concurrency,
        },
        "gate": {"rules": RULES},
    }
    (folder / "scenario.yaml").write_text(json.dumps(content))
    return folder / "scenario.yaml"


def _transcripts(folder: RunFolder) -> list[TurnRecord]:
    timeless = {"first_token_ns": None, "turn_overhead_ns": None, "total_ns": None}
    # What is reused depends on what the cache still holds.
    return [
        replace(turn, **timeless, reused_tokens=None) for turn in read_evidence(folder, "candidate").turns
    ]


def _verdict(folder: RunFolder) -> dict[str, Any]:
    """verdict.json without the run's identity and without the rules on latencies."""
    content = json.loads((folder.path / "verdict.json").read_bytes())
    for name in _IDENTITY:
        content.pop(name)
    content["rules"] = [rule for rule in content["rules"] if rule["metric"] not in LATENCIES]
    return dict(content)


def test_s37_transcripts_and_verdict_are_the_same_at_concurrency_1_4_and_16(
    flow_server: SandboxProcess, tiny_bundle: Path, flow_folder: Path, tmp_path: Path
) -> None:
    found = {}
    for concurrency in (1, 4, 16):
        scenario = load_scenario(_scenario(tmp_path / str(concurrency), flow_folder, concurrency))
        request = RunRequest(
            scenario,
            candidate=tiny_bundle,
            out=tmp_path / f"run{concurrency}",
            sandbox_address=flow_server.address,
        )
        found[concurrency] = run_scenario(request, SilentProgress()).folder
    alone = found[1]
    transcripts, verdict = _transcripts(alone), _verdict(alone)
    assert len(transcripts) == 20 * 2 * 3
    # Something is at stake: some rule passes, some doesn't, and none lacks a value.
    assert len({rule["outcome"] for rule in verdict["rules"]}) > 1
    assert len(verdict["rules"]) == len(RULES) - len(LATENCIES)
    assert all(rule["value"] is not None for rule in verdict["rules"])
    for crowded in (found[4], found[16]):
        assert _transcripts(crowded) == transcripts
        assert _verdict(crowded) == verdict
