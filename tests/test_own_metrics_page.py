"""docs/own-metrics.md works as written: its module, history and scenario make a run that can be verified."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalkit.console import SilentProgress
from evalkit.errors import InputError
from evalkit.report import write_reports
from evalkit.runs.derive import derive
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.judging import checked_policy
from evalkit.runs.orchestrate import RunRequest, run_scenario
from evalkit.runs.verify import verify
from evalkit.scenario.loader import load_scenario

PAGE = Path(__file__).resolve().parent.parent / "docs" / "own-metrics.md"


def block(language: str) -> str:
    """The first code block of a language in the page."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None
    return found[1]


def write_example(folder: Path) -> Path:
    (folder / "modules").mkdir(parents=True)
    (folder / "modules" / "support_metrics.py").write_text(block("python"), encoding="utf-8")
    (folder / "history.csv").write_text(block("csv"), encoding="utf-8")
    texts = [
        {
            "id": f"t{index}",
            "text": f"Maria pays €{7 * index} from Bonn, fee {index}.",
            "tags": ["fees"] if index % 3 == 0 else [],
        }
        for index in range(40)
    ]
    lines = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts)
    (folder / "texts.jsonl").write_text(lines, encoding="utf-8")
    scenario = folder / "scenario.yaml"
    scenario.write_text(block("yaml"), encoding="utf-8")
    return scenario


@pytest.fixture(scope="module")
def run(tiny_export: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The page's scenario, run on a tiny model."""
    scenario = write_example(tmp_path_factory.mktemp("page"))
    request = RunRequest(load_scenario(scenario), candidate=tiny_export, out=scenario.parent / "run")
    return run_scenario(request, SilentProgress()).folder


@pytest.fixture(scope="module")
def metrics(run: RunFolder) -> dict[str, dict[str, Any]]:
    content = json.loads(run.results.read_text())
    return {item["name"]: item for item in content["metrics"] if item["slice"] is None}


def test_every_declared_metric_has_a_value_and_says_how_it_was_made(metrics):
    for name in ("perplexity/view/numbers", "perplexity/view/fees", "perplexity/view/amounts"):
        assert metrics[name]["value"] > 1
        assert metrics[name]["overlapping"] is True
        assert "|view:" in metrics[name]["signature"]
        assert metrics[name]["interval"]["low"] < metrics[name]["value"] < metrics[name]["interval"]["high"]
    own = metrics["own/surprising_texts"]
    assert own["n"] == own["clusters"] == 40
    assert own["interval"]["method"] == "exact-binomial"
    assert own["action"].startswith("above 0.2: read these texts")
    assert "|own:" in own["signature"]


def test_views_overlap(metrics):
    """Every sum of money is a number: the two views share tokens, and 14 of 40 texts are about fees."""
    assert metrics["perplexity/view/amounts"]["n"] > 0
    assert metrics["perplexity/view/numbers"]["n"] > 40
    assert metrics["perplexity/view/fees"]["clusters"] == 14


def test_own_classes_are_part_of_the_partition(run, metrics):
    """The sums of all classes, the page's two included, are the totals to the last bit."""
    samples = read_evidence(run, "candidate").samples
    assert all(sum(part.nll for part in one.classes.values()) == one.nll for one in samples)
    assert all(sum(part.tokens for part in one.classes.values()) == one.scored for one in samples)
    assert all(sum(part.bytes for part in one.classes.values()) == one.bytes_scored for one in samples)
    money, digits = metrics["perplexity/own/money"], metrics["perplexity/own/digits"]
    # "money" comes first in the precedence, so that the class is the view of the same function.
    assert money["n"] == metrics["perplexity/view/amounts"]["n"] > 0
    assert money["value"] == metrics["perplexity/view/amounts"]["value"]
    assert 0 < digits["n"] < metrics["perplexity/view/numbers"]["n"]
    named = [metrics.get(f"perplexity/{name}") for name in ("head", "middle", "long_tail", "oov", "other")]
    rest = sum(metric["n"] for metric in named if metric is not None)
    assert money["n"] + digits["n"] + rest == metrics["perplexity/token"]["n"]
    assert money["action"].startswith("10 % above the baseline: sums are garbled")
    assert money["signature"] == metrics["perplexity/token"]["signature"]
    assert metrics["logits/entropy/own/digits"]["n"] == digits["n"]


def test_business_figures_carry_the_interval_through(metrics):
    source, cost = metrics["own/surprising_texts"], metrics["business/reading_cost"]
    assert cost["value"] == 12.5 + 400 * source["value"]
    assert cost["interval"]["low"] == 12.5 + 400 * source["interval"]["low"]
    assert cost["bounds"]["high"] == 12.5 + 400 * source["bounds"]["high"]
    assert (cost["unit"], cost["direction"]) == ("EUR a day", "lower")
    bits = metrics["business/bits"]
    for field in ("value", "interval", "bounds", "unit", "direction", "n"):
        assert bits[field] == metrics["bits_per_byte"][field]


def test_a_calibrated_figure_names_its_data(metrics):
    figure = metrics["business/complaints_a_week"]
    assert figure["calibration"]["data"] == "history.csv" and figure["calibration"]["releases"] == 6
    assert figure["unit"] == "complaints" and figure["source_value"] == metrics["bits_per_byte"]["value"]
    assert figure["interval"]["method"].endswith("+linear-prediction")
    assert figure["interval"]["low"] < figure["value"] < figure["interval"]["high"]


def test_rules_and_reports_use_them(run):
    verdict = json.loads(run.verdict.read_text())
    judged = {rule["metric"]: rule for rule in verdict["rules"]}
    assert all(rule["value"] is not None for rule in judged.values())
    assert {"own/surprising_texts", "business/reading_cost", "perplexity/own/money"} <= judged.keys()
    report = (run.path / "reports" / "report.html").read_text()
    for shown in (
        "Complaints a week",
        "own/surprising_texts",
        "perplexity/view/amounts",
        "perplexity/own/money",
    ):
        assert shown in report


def test_the_run_is_verified_with_its_code_and_only_with_it(run, tmp_path, monkeypatch):
    monkeypatch.delenv("EVALKIT_MODULES", raising=False)
    with pytest.raises(InputError, match="EVALKIT_MODULES"):
        derive(run)
    write_reports(run, ["html"])
    with pytest.raises(InputError, match="EVALKIT_MODULES"):  # can't be checked, which is no difference
        verify(run)
    monkeypatch.setenv("EVALKIT_MODULES", str(run.path.parent / "modules"))
    assert verify(run) == []
    other = tmp_path / "modules"
    other.mkdir()
    (other / "support_metrics.py").write_text(block("python").replace("3.0", "2.0"), encoding="utf-8")
    monkeypatch.setenv("EVALKIT_MODULES", str(other))
    with pytest.raises(InputError, match="isn't the code of the run"):
        derive(run)


def test_other_code_or_data_make_another_scenario(tmp_path):
    def digest(name: str, change: Callable[[Path], None]) -> str:
        scenario = write_example(tmp_path / name)
        change(scenario.parent)
        return load_scenario(scenario).digest

    def edit(file: str, old: str, new: str) -> Callable[[Path], None]:
        def apply(folder: Path) -> None:
            path = folder / file
            path.write_text(path.read_text().replace(old, new))

        return apply

    same = digest("a", lambda folder: None)
    assert same == digest("b", lambda folder: None)
    changes = [
        edit("modules/support_metrics.py", "3.0", "2.0"),
        edit("history.csv", "230", "231"),
        edit("scenario.yaml", r"\d+", r"\d"),
        edit("scenario.yaml", "{name: bits, from: bits_per_byte}", "{name: bits, from: perplexity/byte}"),
        edit("scenario.yaml", "unit: complaints", "unit: complaints, version: 2"),
    ]
    digests = {digest(f"c{index}", change) for index, change in enumerate(changes)}
    assert len(digests) == len(changes) and same not in digests


def test_the_order_of_the_texts_changes_no_number(run, tiny_export, tmp_path):
    scenario = write_example(tmp_path / "shuffled")
    texts = scenario.parent / "texts.jsonl"
    texts.write_text("\n".join(texts.read_text().splitlines()[::-1]) + "\n")
    request = RunRequest(load_scenario(scenario), candidate=tiny_export, out=tmp_path / "run")
    again = run_scenario(request, SilentProgress()).folder
    first, second = (json.loads(folder.results.read_text())["metrics"] for folder in (run, again))
    assert first == second


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("{metric: own/surprising_texts, max: 0.5}", None),
        ("{metric: own/surprising_texts, min: 0.5}", "own/surprising_texts is better when lower"),
        ("{metric: business/reading_cost, min: 100}", "business/reading_cost is better when lower"),
        ("{metric: perplexity/own/money, min: 3}", "perplexity/own/money is better when lower"),
        ("{metric: own/surprising_text, max: 0.5}", "did you mean own/surprising_texts?"),
        ("{metric: logits/entropy/own/money, min: 0.1}", None),
    ],
)
def test_a_policy_is_judged_against_what_the_run_declares(run, tmp_path, monkeypatch, rule, says):
    monkeypatch.setenv("EVALKIT_MODULES", str(run.path.parent / "modules"))
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"rules:\n  - {rule}\n")
    if says is None:
        assert len(checked_policy(run, policy).rules) == 1
        return
    with pytest.raises(InputError, match=r"policy.yaml:2: rules.0") as caught:
        checked_policy(run, policy)
    assert says in str(caught.value)
