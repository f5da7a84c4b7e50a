"""`text.robustness` through a whole run: evidence, results, rescore, verify, comparison, report."""

import json
from pathlib import Path

import numpy as np
import pytest

from evalkit.console import SilentProgress
from evalkit.errors import InputError
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.orchestrate import RunRequest, run_scenario
from evalkit.runs.rescore import rescore
from evalkit.runs.verify import verify
from evalkit.scenario.loader import load_scenario
from tests.evalkit.training.fixtures import write_tokenizer

BACKEND = """\
import hashlib

import numpy as np

from evalkit.backends.base import RowStats


class Bigram:
    name, precision, max_length, vocab_size = "bigram", "fp64", 256, 300

    def __init__(self, seed):
        table = np.random.default_rng(seed).normal(0, 1.5, (300, 300))
        self.table = table - np.log(np.exp(table).sum(1, keepdims=True))
        self.model_digest = hashlib.sha256(self.table.tobytes()).hexdigest()

    def score(self, token_ids, targets, positions, segments):
        logprobs = self.table[token_ids]
        target = np.take_along_axis(logprobs, targets[..., None], -1)
        others = logprobs.copy()
        np.put_along_axis(others, targets[..., None], -np.inf, -1)
        return RowStats(
            target[..., 0],
            -(np.exp(logprobs) * logprobs).sum(-1),
            target[..., 0] - others.max(-1),
            1 + (logprobs > target).sum(-1),
            logprobs.argmax(-1),
        )


def first():
    return Bigram(1)


def second():
    return Bigram(2)
"""
SCENARIO = """\
version: 1
name: perturbed
seed: 5
modules: modules
model: {backend: 'bigram:first', tokenizer: tokenizer.json}
baseline: {backend: 'bigram:second', tokenizer: tokenizer.json}
text:
  data: texts.jsonl
ROBUSTNESS
gate:
  rules:
    - {metric: perplexity/token, max: 1.0e+9}
RULE
"""
ROBUSTNESS = """\
  robustness:
    - {perturb: typos, rate: 0.2}
    - {perturb: dates}
    - {perturb: mix, data: foreign.jsonl}
    - {name: noisy, steps: [{perturb: typos}, {perturb: fullwidth, rate: 0.3}]}
"""
RULE = "    - {metric: robustness/typos/perplexity/token, max: 9.0}\n"


def write(folder: Path, robustness: str = ROBUSTNESS, rule: str = RULE) -> Path:
    (folder / "modules").mkdir(parents=True)
    (folder / "modules" / "bigram.py").write_text(BACKEND)
    write_tokenizer(folder)
    source = np.random.default_rng(3)
    words = [
        "the",
        "card",
        "was",
        "lost",
        "on",
        "Monday",
        "please",
        "transfer",
        "120",
        "euros",
        "to",
        "my",
        "account",
    ]
    lines = [
        {
            "id": f"t{index}" if index else "typos/t1",  # an id that looks like that of a perturbed text
            "text": ""
            if index == 7
            else " ".join(source.choice(words, size=int(source.integers(4, 20)))) + ".",
            "cluster": f"c{index // 2}",
            "tags": ["long" if index % 2 else "short"],
        }
        for index in range(64)
    ]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "foreign.jsonl").write_text('{"id": "a", "text": "The sea is calm. Ships sail."}\n')
    scenario = folder / "scenario.yaml"
    scenario.write_text(SCENARIO.replace("ROBUSTNESS\n", robustness).replace("RULE\n", rule))
    return scenario


def run(scenario: Path, out: Path) -> RunFolder:
    return run_scenario(RunRequest(load_scenario(scenario), out=out), SilentProgress()).folder


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("perturbed") / "scenario")


@pytest.fixture(scope="module")
def done(scenario: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(scenario, tmp_path_factory.mktemp("runs") / "run")


def metrics(folder: RunFolder) -> dict:
    content = json.loads(folder.results.read_text())
    return {(item["name"], item["slice"]): item for item in content["metrics"]}


def test_evidence_holds_each_text_under_each_perturbation(done: RunFolder) -> None:
    for side in ("candidate", "baseline"):
        records = read_evidence(done, side).samples
        clean = {record.sample_id: record for record in records if record.kind == "text"}
        assert len(clean) == 64
        for name in ("typos", "dates", "mix", "noisy"):
            changed = {record.source_id: record for record in records if record.perturbation == name}
            assert changed.keys() == clean.keys()
            assert all(clean[key].tags == record.tags for key, record in changed.items())
            assert changed["t7"].status == "skipped"
            if name == "dates":  # there are none in the texts
                assert all(record.nll == clean[key].nll for key, record in changed.items())
            if name == "mix":
                assert (
                    sum(
                        "sea is calm" in (r.text or "") or "Ships" in (r.text or "") for r in changed.values()
                    )
                    == 63
                )


def test_verify_and_rescore_compute_it_again(done: RunFolder) -> None:
    assert verify(done) == []
    before = done.results.read_bytes(), done.comparison.read_bytes()
    rescore(done)
    assert (done.results.read_bytes(), done.comparison.read_bytes()) == before


def test_clean_numbers_are_the_same_bits_without_it(done: RunFolder, tmp_path: Path) -> None:
    alone = metrics(run(write(tmp_path / "plain", "", ""), tmp_path / "run"))
    found = metrics(done)
    assert {key: item for key, item in found.items() if not key[0].startswith("robustness/")} == alone
    content = json.loads(done.results.read_text())
    assert content["conservation"]["texts"] == 64 and content["counts"]["text"]["ok"] == 63


def test_one_perturbation_doesn_t_move_another(done: RunFolder, tmp_path: Path) -> None:
    only = "  robustness:\n    - {perturb: typos, rate: 0.2}\n"
    alone = metrics(run(write(tmp_path / "one", only), tmp_path / "run"))
    name = ("robustness/typos/perplexity/token", None)
    assert alone[name] == metrics(done)[name]


def test_results_comparison_and_rule(done: RunFolder) -> None:
    found = metrics(done)
    typos = found["robustness/typos/perplexity/token", None]
    assert typos["value"] > 0 and typos["interval"]["low"] < typos["value"] < typos["interval"]["high"]
    assert typos["texts_changed"] <= typos["texts_compared"] == 63
    assert typos["worst_slice"] in ("long", "short") and "|perturb:" in typos["signature"]
    assert found["robustness/dates/perplexity/token", None]["value"] is None
    compared = {item["name"]: item for item in json.loads(done.comparison.read_text())["metrics"]}
    assert compared["robustness/typos/perplexity/token"]["absolute"]["interval"] is not None
    rules = json.loads(done.verdict.read_text())["rules"]
    # One text is empty: it is missing from the clean set and from this one.
    assert rules[1]["metric"] == "robustness/typos/perplexity/token" and rules[1]["outcome"] == "INCONCLUSIVE"
    assert "coverage" in rules[1]["reason"]


def test_reports_show_it(done: RunFolder) -> None:
    page = (done.reports / "report.html").read_text()
    markdown = (done.reports / "report.md").read_text()
    assert 'id="robustness"' in page and "content added, nothing lost" in page
    assert "the perturbation changes none of the 63 texts" in page
    assert "### Robustness" in markdown and "typos \\(" in markdown and "long" in markdown


def test_the_plan_names_the_perturbed_texts_and_the_scenario_their_settings(
    done: RunFolder, tmp_path: Path
) -> None:
    plan = json.loads(done.plan.read_text())
    assert plan["data"]["perturbed"].keys() == {"typos", "dates", "mix", "noisy"}
    digests = set()
    for index, (old, new) in enumerate([("x", "x"), ("0.2", "0.3"), ("noisy", "other")]):
        digests.add(load_scenario(write(tmp_path / str(index), ROBUSTNESS.replace(old, new))).digest)
    moved = write(tmp_path / "moved", ROBUSTNESS.replace("foreign", "elsewhere"))
    (moved.parent / "foreign.jsonl").rename(moved.parent / "elsewhere.jsonl")
    digests.add(load_scenario(moved).digest)
    assert len(digests) == 3  # a file's name is no content


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "perturb: typos",
            "perturb: typo",
            r"text\.robustness\.0: unknown perturbation 'typo'; did you mean typos\?",
        ),
        ("rate: 0.2", "rate: 0", r"text\.robustness\.0\.rate: .*greater than 0"),
        ("rate: 0.2", "rate: 1.5", r"text\.robustness\.0\.rate: .*less than or equal to 1"),
        ("rate: 0.2", "rat: 0.2", r"text\.robustness\.0\.rat: unknown key"),
        ("foreign.jsonl", "gone.jsonl", r"text\.robustness\.2\.data: .*gone\.jsonl: no such file"),
        ("foreign.jsonl", "tokenizer.json", r"text\.robustness\.2: .*tokenizer\.json"),
        ("{perturb: dates}", "{perturb: typos}", r"text: robustness names 'typos' twice"),
        ("{perturb: dates}", "{rate: 0.1}", r"text\.robustness\.1: name a perturbation"),
        ("{perturb: dates}", "dates", r"text\.robustness\.1: name a perturbation"),
        ("{perturb: dates}", "{perturb: dates, name: a/b}", r"text\.robustness\.1\.name"),
        ("[{perturb: typos}, ", "[{perturb: typos, name: x}, ", r"text\.robustness\.3: a step has no name"),
        (
            "{perturb: fullwidth,",
            "{perturb: fulwidth,",
            r"text\.robustness\.3\.steps\.1: .*did you mean fullwidth",
        ),
        (
            "{perturb: dates}",
            "{perturb: swap_entities, entities: [numbers, numbers]}",
            r"text\.robustness\.1: entities names 'numbers' twice",
        ),
        (
            "{perturb: dates}",
            "{perturb: swap_entities, entities: [terms]}",
            r"text\.robustness\.1: terms and glossary go together",
        ),
    ],
)
def test_bad_settings_name_their_field(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in ROBUSTNESS
    path = write(tmp_path / "bad", ROBUSTNESS.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"scenario\.yaml:\d+: {problem}") as caught:
        load_scenario(path)
    assert "\n" not in str(caught.value)


def test_a_rule_about_a_perturbation_that_isn_t_there(tmp_path: Path) -> None:
    path = write(tmp_path / "bad", rule=RULE.replace("typos", "typo"))
    with pytest.raises(
        InputError, match=r"gate\.rules\.1\.metric: .*did you mean robustness/typos/perplexity/token"
    ):
        load_scenario(path)
