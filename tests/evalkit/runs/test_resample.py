"""`text.resample` from the scenario to the verdict: the slice, its evidence, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from evalkit.cli import main
from evalkit.console import SilentProgress
from evalkit.errors import InputError
from evalkit.runs.orchestrate import RunRequest, run_scenario
from evalkit.runs.power import scenario_power
from evalkit.runs.rescore import rescore
from evalkit.runs.results_io import read_results
from evalkit.runs.verify import verify
from evalkit.scenario.loader import load_scenario

QUESTIONS = ("Where is my card?", "Why was the fee taken?", "How do I close it?", "Is the card lost?")
ORDERS = ("Send $120 to account 12345678.", "Pay 40 euros on 3 March.", "Move $75 and $80 to savings.")

SCENARIO = """\
version: 1
name: drift
seed: 5
text:
  data: texts.jsonl
  classes: {frequency: null, oov: null, precedence: []}
  resample: {target: traffic.jsonl, RESAMPLE}
gate:
  rules:
    - {metric: perplexity/token, slice: resampled, max: 100000}
"""


def texts(seed: int, count: int, share: float) -> list[dict]:
    """Questions and, a `share` of them, orders with entities."""
    generator = np.random.default_rng(seed)
    found = []
    for index in range(count):
        pool = ORDERS if generator.random() < share else QUESTIONS
        found.append({"id": f"t{index:03d}", "text": str(generator.choice(pool))})
    return found


def write(folder: Path, resample: str = "features: [entity_density]", share: float = 0.7, **changes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    files = {"texts.jsonl": texts(1, 160, 0.3), "traffic.jsonl": texts(2, 300, share), **changes}
    for name, items in files.items():
        (folder / name).write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items))
    (folder / "mine.py").write_text("def words(text):\n    return len(text.split())\nbroken = 3\n")
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO.replace("RESAMPLE", resample).replace("seed: 5", "seed: 5\nmodules: ."))
    return path


def run(bundle: Path, path: Path, name: str = "run"):
    request = RunRequest(load_scenario(path), candidate=bundle, out=path.parent / name)
    return run_scenario(request, SilentProgress())


@pytest.fixture(scope="module")
def done(tiny_bundle, tmp_path_factory):
    return run(tiny_bundle, write(tmp_path_factory.mktemp("drift") / "run"))


def test_the_slice_stands_beside_the_plain_numbers(done):
    results = read_results(done.folder.results)
    plain, shifted = results.find("perplexity/token"), results.find("perplexity/token", slice="resampled")
    assert plain.value != shifted.value
    assert shifted.interval.low < shifted.value < shifted.interval.high
    assert "|resample:" in shifted.signature and "|resample:" not in plain.signature
    details = shifted.details
    assert 50 < details["effective_sample_size"] < 160
    assert details["uncovered_mass"] == 0
    assert details["marginal_after"]["entity_density"] < 0.01 < details["marginal_before"]["entity_density"]
    assert details["joint_after"] < details["joint_before"]
    assert details["target_texts"] == 300
    assert done.verdict_text == "PASS"


def test_the_value_is_the_mean_over_the_targets_texts(done):
    """Every text of the pools is seen on both sides: the weighted sums are those of the traffic's own texts."""
    results = read_results(done.folder.results)
    traffic = texts(2, 300, 0.7)
    shares = {text: sum(item["text"] == text for item in traffic) for text in (*QUESTIONS, *ORDERS)}
    plan = json.loads((done.folder.path / "plan.json").read_text())
    weights = plan["measurement"]["candidate"]["resample"]["weights"]
    own = {item["id"]: item["text"] for item in texts(1, 160, 0.3)}
    # Density tells questions from orders; within those the sample's own shares stay.
    orders = sum(weights[name] for name, text in own.items() if text in ORDERS) / 160
    assert orders == pytest.approx(sum(shares[text] for text in ORDERS) / 300, abs=1e-6)
    assert results.find("perplexity/token", slice="resampled").n == results.find("perplexity/token").n


def test_verify_and_rescore_need_neither_target_nor_model(done):
    assert verify(done.folder) == []
    before = (done.folder.path / "results.json").read_bytes()
    rescore(done.folder)
    assert (done.folder.path / "results.json").read_bytes() == before


def test_the_report_shows_what_the_weights_are_worth(done):
    text = (done.folder.path / "reports" / "report.html").read_text()
    assert "perplexity/token [resampled]" in text
    assert "effective sample size" in text and "entity_density" in text


def test_a_target_out_of_reach_is_inconclusive(tiny_bundle, tmp_path):
    far = [{"id": f"x{index}", "text": "1; 2; 3; 4; 5; 6"} for index in range(200)]
    outcome = run(tiny_bundle, write(tmp_path, **{"traffic.jsonl": far}))
    assert outcome.verdict_text == "INCONCLUSIVE"
    metric = read_results(outcome.folder.results).find("perplexity/token", slice="resampled")
    assert metric.value is None and "100.0% of the target lies where no validation text is" in metric.reason
    assert metric.details["uncovered_mass"] == 1
    assert "100.0% of the target" in outcome.verdict.rules[0].reason
    assert verify(outcome.folder) == []


def test_a_draw_and_a_feature_of_the_user(tiny_bundle, tmp_path):
    path = write(tmp_path, "features: ['mine:words', entity_density, token_length], size: 120, bins: 2")
    outcome = run(tiny_bundle, path)
    metric = read_results(outcome.folder.results).find("perplexity/token", slice="resampled")
    weights = json.loads((outcome.folder.path / "plan.json").read_text())["measurement"]["candidate"][
        "resample"
    ]
    counts = {round(weight * 120 / 160, 9) for weight in weights["weights"].values()}
    assert all(count == int(count) for count in counts) and sum(weights["weights"].values()) == pytest.approx(
        160
    )
    assert set(metric.details["marginal_after"]) == {"mine:words", "entity_density", "token_length"}
    again = run(tiny_bundle, path, "again")
    assert read_results(again.folder.results).metrics == read_results(outcome.folder.results).metrics


def test_numbers_and_terms_as_features_of_their_own(tiny_bundle, tmp_path):
    path = write(tmp_path, "features: [number_density, term_density]")
    (tmp_path / "terms.txt").write_text("card\nsavings\n")
    classes = "domain: {glossary: terms.txt}, precedence: [domain]"
    path.write_text(path.read_text().replace("precedence: []", classes))
    details = (
        read_results(run(tiny_bundle, path).folder.results)
        .find("perplexity/token", slice="resampled")
        .details
    )
    assert set(details["marginal_before"]) == {"number_density", "term_density"}
    assert all(
        left < 0.01 < details["marginal_before"][name] for name, left in details["marginal_after"].items()
    )


@pytest.mark.parametrize(
    ("resample", "changes", "problem"),
    [
        (
            "features: [token_length, term_density]",
            {},
            r"scenario\.yaml:8: text\.resample\.features\.1: 'term_density': there is no glossary",
        ),
        ("features: []", {}, r"scenario\.yaml:8: text\.resample\.features: "),
        (
            "features: [token_lengths]",
            {},
            r"text\.resample\.features\.0: 'token_lengths': unknown; choose from",
        ),
        ("features: ['mine:absent']", {}, r"text\.resample\.features\.0: mine:absent: mine has no 'absent'"),
        (
            "features: ['mine:broken']",
            {},
            r"text\.resample\.features\.0: mine:broken: a function from a text",
        ),
        ("features: [token_length, token_length]", {}, "names 'token_length' twice"),
        ("size: 0", {}, r"text\.resample\.size: "),
        ("cap: 1", {}, r"text\.resample\.cap: "),
        ("method: magic", {}, r"text\.resample\.method: "),
        ("colour: red", {}, r"text\.resample\.colour: "),
        ("bins: 4", {"traffic.jsonl": []}, r"text\.resample\.target: .*empty"),
        ("bins: 4", {"traffic.jsonl": [{"id": "a", "text": " "}]}, "no text of the target can be scored"),
        ("bins: 4", {"traffic.jsonl": [{"id": "a"}]}, r"traffic\.jsonl:1: text: is required"),
        (
            "bins: 4",
            {"texts.jsonl": [{"id": "a", "text": "b", "tags": ["resampled"]}]},
            r"text\.resample: text 'a' has the tag 'resampled'",
        ),
        ("bins: 4", {"texts.jsonl": [{"id": "a", "text": " "}]}, "no text can be scored"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tiny_bundle, tmp_path, resample, changes, problem):
    path = write(tmp_path, resample, **changes)
    with pytest.raises(InputError, match=problem):
        run(tiny_bundle, path)
    assert not (tmp_path / "run").exists()


def test_a_missing_target_is_named_by_validate(tmp_path, capsys, monkeypatch):
    path = write(tmp_path)
    (tmp_path / "traffic.jsonl").unlink()
    monkeypatch.setattr("sys.argv", ["evalkit", "validate", str(path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "scenario.yaml:8: text.resample.target:" in message and "no such file" in message


def test_the_digest_follows_target_and_features(tmp_path):
    plain = load_scenario(write(tmp_path / "a")).digest
    assert load_scenario(write(tmp_path / "b")).digest == plain
    assert load_scenario(write(tmp_path / "c", share=0.5)).digest != plain
    assert load_scenario(write(tmp_path / "d", "features: [token_length]")).digest != plain


def test_power_says_that_it_cannot_know(tmp_path):
    (power,) = scenario_power(load_scenario(write(tmp_path)), None).rules
    assert power.power is None and "isn't known before a run" in power.reason
