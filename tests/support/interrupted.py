"""Runs that are broken off anywhere and finished again, and what must be equal in the end."""

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from evalkit.bundle import load_bundle
from evalkit.console import SilentProgress
from evalkit.errors import IncompleteError
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.orchestrate import RunRequest, run_scenario
from evalkit.scenario.loader import load_scenario
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession, serve

SCENARIO = """\
version: 1
name: interrupted
text:
  data: texts.jsonl
  window: {length: 64, stride: 32, prefix: first}
risk: {data: applications.jsonl, labels: [approve, reject], high_risk: reject}
dialogues: {include: [talk.yaml], trials: 2, variation: [typos], max_new_tokens: 8}
gate: {rules: [{metric: perplexity/token, max: 1.0e9, min_coverage: 0.9}]}
"""
DIALOGUE = """\
id: {id}
persona: a customer
turns:
  - user: "my card is lost, please help me today"
    gold: "hello"
    expect: {{contains: [card]}}
  - user: "my account is 1234 and I am in a hurry"
    gold: "hello"
"""
JOURNALS = ("samples", "turns", "tokens")
_WORDS = [
    "please",
    "block",
    "my",
    "card",
    "fee",
    "rate",
    "account",
    "balance",
    "money",
    "the",
    "a",
    "is",
    "lost",
    "today",
    "我的卡丢了",
]


def write_scenario(folder: Path) -> Path:
    """Texts of every kind (short, equal, empty, one of many windows), decisions and dialogues; returns the scenario."""
    source = random.Random(7)

    def text(words: int) -> str:
        return " ".join(source.choice(_WORDS) for _ in range(words))

    texts = [text(source.randint(2, 30)) for _ in range(40)]
    texts += [texts[3], "", "a", text(900), text(120)]
    rows = [{"id": f"t{index:03d}", "text": content} for index, content in enumerate(texts)]
    decisions = [
        {"id": f"r{index:03d}", "prompt": text(8), "target": source.choice(["approve", "reject"])}
        for index in range(30)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "applications.jsonl").write_text("".join(json.dumps(row) + "\n" for row in decisions))
    talk = [DIALOGUE.format(id=f"d{number}") for number in range(4)]
    items = "".join("  - " + item.replace("\n", "\n    ").rstrip() + "\n" for item in talk)
    (folder / "talk.yaml").write_text("dialogues:\n" + items)
    (folder / "scenario.yaml").write_text(SCENARIO)
    return folder / "scenario.yaml"


@contextmanager
def fake_sandbox(bundle: Path) -> Iterator[str]:
    """A sandbox that claims to serve `bundle` and says back all that it was told."""

    def answer(session: FakeSession, text: str) -> Answer:
        return Answer("you said: " + " ".join([*session.texts, text]))

    with serve(FakeSandbox(answer, load_bundle(bundle).model_digest)) as address:
        yield address


@dataclass(frozen=True)
class Interrupted:
    """A scenario, what it is run on, an uninterrupted run of it and one with nothing but whole journals."""

    scenario: Path
    bundle: Path
    sandbox: str
    reference: RunFolder
    journals: RunFolder


@pytest.fixture(scope="session")
def interrupted(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interrupted]:
    """Made once, for tests that leave it as it is (the others take `begun`); the reference without any cache."""
    folder = tmp_path_factory.mktemp("interrupted")
    scenario = write_scenario(folder / "scenario")
    bundle = folder / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    with fake_sandbox(bundle) as sandbox:
        yield Interrupted(
            scenario,
            bundle,
            sandbox,
            run(scenario, bundle, folder / "reference", sandbox, use_cache=False),
            run_until_evidence(scenario, bundle, folder / "journals", sandbox),
        )


@pytest.fixture
def begun(interrupted: Interrupted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interrupted]:
    """The same for tests that change scenario, bundle or journals: they are put back afterwards."""
    places = (interrupted.scenario.parent, interrupted.bundle, interrupted.journals.path)
    pristine = tmp_path_factory.mktemp("pristine")
    for place in places:
        shutil.copytree(place, pristine / place.name)
    yield interrupted
    for place in places:
        shutil.rmtree(place)
        shutil.copytree(pristine / place.name, place)


def run(scenario: Path, bundle: Path, out: Path, sandbox: str, *, use_cache: bool = True) -> RunFolder:
    """A whole run, token rows included."""
    request = RunRequest(
        load_scenario(scenario),
        candidate=bundle,
        out=out,
        sandbox_address=sandbox,
        keep_tokens=True,
        use_cache=use_cache,
    )
    return run_scenario(request, SilentProgress()).folder


def run_until_evidence(scenario: Path, bundle: Path, out: Path, sandbox: str) -> RunFolder:
    """A run that stops when everything is measured and nothing but the journals is written."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evalkit.runs.measure.write_tokens", interrupt)
        with pytest.raises(IncompleteError, match="evalkit resume"):
            run(scenario, bundle, out, sandbox)
    return RunFolder(out)


def torn_copy(whole: RunFolder, path: Path, place: random.Random) -> RunFolder:
    """A copy whose journals end at a random byte, as a kill there would have left them."""
    shutil.copytree(whole.path, path)
    copy = RunFolder(path)
    files = {name: journal(copy, name) for name in JOURNALS}
    samples, turns = files["samples"].stat().st_size, files["turns"].stat().st_size
    at = place.randrange(samples + turns)
    if at < samples:
        _cut(files["samples"], at)
        files["turns"].unlink()
        # Token rows are written just before the records of their texts.
        _cut(files["tokens"], place.randrange(files["tokens"].stat().st_size))
    else:
        _cut(files["turns"], at - samples)
    return copy


def journal(folder: RunFolder, name: str) -> Path:
    """The journal of that name, of the candidate."""
    return folder.evidence("candidate") / f"{name}.journal.jsonl"


def assert_equal_runs(ours: RunFolder, theirs: RunFolder) -> None:
    """Equal to the bit but for the run's identity, for times and for where scores were read from."""
    assert _timeless(read_evidence(ours, "candidate")) == _timeless(read_evidence(theirs, "candidate"))
    assert ours.tokens("candidate").read_bytes() == theirs.tokens("candidate").read_bytes()
    assert _results(ours) == _results(theirs)
    assert {path.name for path in ours.evidence("candidate").iterdir()} == {
        "samples.parquet",
        "tokens.parquet",
        "turns.parquet",
    }


def _timeless(evidence: Evidence) -> Evidence:
    times = {"first_token_ns": None, "turn_overhead_ns": None, "total_ns": None}
    return Evidence(
        samples=tuple(
            replace(sample, elapsed_ns=0, from_cache=False, cache_runs=[]) for sample in evidence.samples
        ),
        turns=tuple(replace(turn, **times) for turn in evidence.turns),
    )


def _results(folder: RunFolder) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(folder.results.read_bytes())
    metrics: Sequence[dict[str, Any]] = content["metrics"]
    return {
        **content,
        "run_id": None,
        "plan_sha256": None,
        "metrics": [metric for metric in metrics if not metric["name"].startswith("latency/")],
    }


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as stream:
        stream.truncate(size)
