"""Replay of many dialogues through an in-process sandbox: throughput, memory and its growth, kill -9 and resume.

`python -m benchmarks.replay [--dialogues 500] [--trials 5] [--concurrency 16] --out result.json`. The sandbox answers at once, so
that what is measured is the replay itself: the client, the checks, the journal.
"""

import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from evalkit.replay.client import SandboxClient
from evalkit.replay.runner import TrialId, run_dialogues
from evalkit.replay.trial import ReplaySettings
from evalkit.runs.journal import Journal, reopen_journals
from evalkit.runs.records import TurnRecord
from evalkit.scenario.dialogue import Dialogue
from tests.support.fake_sandbox import Answer, FakeSandbox, serve

_TURNS = 6


def make_dialogues(count: int) -> list[Dialogue]:
    """Dialogues in six turns with paraphrases, recall probes and a ledger."""
    turns: list[dict[str, Any]] = [
        {"user": "Hello, I am {name}.", "gold": "x", "expect": {"contains": ["hello"]}}
    ]
    turns += [
        {"user": [f"Please note item {n} for me.", f"Write down item {n}."], "gold": "x"}
        for n in range(_TURNS - 2)
    ]
    turns.append({"user": "Who am I?", "gold": "x", "expect": {"recalls": ["name"]}})
    return [
        Dialogue.model_validate(
            {"id": f"d{n:04}", "facts": {"name": f"N{n}"}, "ledger": {"name": r"I am (\w+)"}, "turns": turns}
        )
        for n in range(count)
    ]


def replay(journal_path: Path, dialogues: int, trials: int, concurrency: int) -> dict[str, Any]:
    """Play what the journal doesn't hold yet; figures of this process."""
    done = reopen_journals([journal_path])
    whole: dict[TrialId, int] = {}
    for dialogue_id, trial, _ in done.turns:
        key = TrialId(dialogue_id, trial)
        whole[key] = whole.get(key, 0) + 1
    finished = {key for key, turns in whole.items() if turns == _TURNS}
    sandbox = FakeSandbox(lambda session, text: Answer("hello: " + " ".join([*session.texts, text])))
    settings = ReplaySettings(1, trials, ("paraphrase", "typos"), concurrency=concurrency)
    rss: list[int] = []
    started = time.perf_counter()
    with serve(sandbox) as address, SandboxClient(address) as client, Journal(journal_path) as journal:

        def keep(records: list[TurnRecord]) -> None:
            journal.append(records)
            # The fake server remembers everything; only the replay's own memory is of interest.
            while sandbox.closed:
                sandbox.sessions.pop(sandbox.closed.pop(), None)
            sandbox.requests.clear()
            rss.append(_rss_kib())

        run_dialogues(make_dialogues(dialogues), settings, client, keep, done=finished)
    seconds = time.perf_counter() - started
    quarter = max(1, len(rss) // 4)
    return {
        "trials": len(rss),
        "seconds": round(seconds, 2),
        "turns_per_s": round(len(rss) * _TURNS / seconds, 1),
        "rss_mib_after_a_quarter": round(rss[quarter - 1] / 1024, 1) if rss else None,
        "rss_mib_at_the_end": round(rss[-1] / 1024, 1) if rss else None,
        "growth_ratio": round(rss[-1] / rss[quarter - 1], 3) if rss else None,
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def killed_and_resumed(dialogues: int, trials: int, concurrency: int) -> dict[str, Any]:
    """Kill a replay half-way, resume it, and compare with one that ran through."""
    with tempfile.TemporaryDirectory() as folder:
        broken, whole = Path(folder) / "broken.jsonl", Path(folder) / "whole.jsonl"
        half = dialogues * trials * _TURNS // 2
        process = _child(broken, dialogues, trials, concurrency)
        while process.poll() is None and _lines(broken) < half:
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kept = _lines(broken)
        resumed = replay(broken, dialogues, trials, concurrency)
        through = replay(whole, dialogues, trials, concurrency)
        return {
            "turns_kept": kept,
            "trials_resumed": resumed["trials"],
            "identical_but_for_times": _untimed(broken) == _untimed(whole),
            "through": through,
        }


def _child(path: Path, dialogues: int, trials: int, concurrency: int) -> "subprocess.Popen[bytes]":
    sizes = [str(number) for number in (dialogues, trials, concurrency)]
    return subprocess.Popen([sys.executable, "-m", "benchmarks.replay", "--child", str(path), *sizes])


def _untimed(path: Path) -> dict[tuple[str, int, int], tuple[str, str, str]]:
    turns = reopen_journals([path]).turns
    return {key: (turn.user_text, turn.text, turn.status) for key, turn in turns.items()}


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _rss_kib() -> int:
    with Path("/proc/self/statm").open() as stream:
        return int(stream.read().split()[1]) * resource.getpagesize() // 1024


@click.command()
@click.option("--dialogues", default=500, show_default=True)
@click.option("--trials", default=5, show_default=True)
@click.option("--concurrency", default=16, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Also write the JSON there.")
def main(dialogues: int, trials: int, concurrency: int, out: Path | None) -> None:
    """Measure and print one JSON object."""
    load = os.getloadavg()[0]
    result = {
        "dialogues": dialogues,
        "trials": trials,
        "turns_each": _TURNS,
        "concurrency": concurrency,
        "kill_and_resume": killed_and_resumed(dialogues, trials, concurrency),
        "machine": {
            "processors": os.cpu_count(),
            "load_before": round(load, 1),
            "python": platform.python_version(),
        },
    }
    text = json.dumps(result, indent=2)
    click.echo(text)
    if out is not None:
        out.write_text(text + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        replay(Path(sys.argv[2]), *(int(number) for number in sys.argv[3:6]))
    else:
        main()
