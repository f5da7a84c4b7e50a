"""Views, own metrics and business figures in a scenario: every mistake is one line with file, line and field."""

from pathlib import Path

import pytest

from evalkit.cli import main
from evalkit.errors import InputError
from evalkit.gate.policy import load_policy
from evalkit.scenario.loader import load_scenario

SCENARIO = """\
version: 1
name: small
modules: modules
text:
  data: texts.jsonl
  views: [{name: numbers, regex: '[0-9]+'}]
  classes: {own: ['mine:digits'], precedence: [oov, own/digits, frequency]}
metrics: ['mine:metric']
risk:
  {data: risk.jsonl, labels: [approve, reject], high_risk: reject, costs: {false_approve: 5, false_reject: 1}}
business:
  - {name: bits, from: bits_per_byte}
  - {name: load, from: perplexity/token, calibration: history.csv, fit: linear}
  - {name: money, from: own/metric, mapping: 'mine:mapping', version: 2}
gate:
  rules:
    - {metric: business/load, max: 9}
    - {metric: own/metric, min: 0.1}
    - {metric: perplexity/view/numbers, change: {max_relative_increase: 0.1}}
"""

MODULE = """\
from evalkit.metrics.mapping import OwnMapping
from evalkit.metrics.own import OwnMetric
from evalkit.metrics.own_classes import OwnClass

digits = OwnClass('own/digits', 'act', 0.1, token=bytes.isdigit)
again = OwnClass('own/digits', 'act', 0.1, spans=lambda text: [])
unnamed = OwnClass('digits', 'act', 0.1, token=bytes.isdigit)
both = OwnClass('own/both', 'act', 0.1, spans=len, token=len)
shy = OwnClass('own/shy', 'act', 0, token=len)
metric = OwnMetric('own/metric', 'u', 'higher', 'text', lambda r: (1.0,), lambda s: s[:, 0], 'act', 1.0)
mapping = OwnMapping('1', 'EUR', 'lower', False, lambda value: -value, 'act')
value = 3
"""


def write(folder: Path, old: str = "", new: str = "") -> Path:
    assert old in SCENARIO
    (folder / "modules").mkdir()
    (folder / "modules" / "mine.py").write_text(MODULE)
    (folder / "texts.jsonl").write_text('{"id": "a", "text": "hello"}\n')
    (folder / "risk.jsonl").write_text('{"id": "a", "prompt": "p", "target": "approve"}\n')
    (folder / "history.csv").write_text("offline,online\n" + "".join(f"{i},{2 * i}\n" for i in range(8)))
    (folder / "policy.yaml").write_text("rules: [{metric: business/absent, max: 1}]\n")
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO.replace(old, new) if old else SCENARIO)
    return path


def test_everything_is_declared(tmp_path):
    added = load_scenario(write(tmp_path)).additions
    assert {name: (spec.unit, spec.direction) for name, spec in added.declared.specs.items()} == {
        "perplexity/view/numbers": ("ratio", "lower"),
        "perplexity/own/digits": ("ratio", "lower"),
        "logits/entropy/own/digits": ("nats", "lower"),
        "logits/margin/own/digits": ("nats", "higher"),
        "logits/rank/own/digits": ("rank", "lower"),
        "logits/top_k_accuracy/own/digits": ("share", "higher"),
        "calibration/top1_ece/own/digits": ("share", "lower"),
        "calibration/top1_brier/own/digits": ("squared error", "lower"),
        "own/metric": ("u", "higher"),
        "business/bits": ("bits/byte", "lower"),
        "business/load": ("figure", "lower"),
        "business/money": ("EUR", "lower"),
    }
    assert [figure.version for figure in added.business] == [1, 1, 2]
    assert added.business[1].history.data == "history.csv"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("regex: '[0-9]+'", "regex: '[0-9'", r"scenario\.yaml:6: text\.views\.0: regex isn't a regular"),
        (
            "regex: '[0-9]+'",
            "regex: a, tag: b",
            r":6: text\.views\.0: give exactly one of .* \(found: regex, tag\)",
        ),
        (
            "regex: '[0-9]+'",
            "callable: 'mine:absent'",
            r":6: text\.views\.0: mine:absent: mine has no 'absent'",
        ),
        (
            "views: [{name: numbers, regex: '[0-9]+'}]",
            "views: [{name: a, tag: x}, {name: a, tag: y}]",
            r"views names 'a' twice",
        ),
        ("modules: modules", "modules: absent", r":3: modules: .*absent: no such folder"),
        (
            "modules: modules\n",
            "",
            r": text\.classes\.own\.0: mine:digits: no module 'mine'; name its folder",
        ),
        (
            "['mine:metric']",
            "['mine:value']",
            r":8: metrics\.0: mine:value: an evalkit\.metrics\.own\.OwnMetric",
        ),
        ("['mine:metric']", "['mine:metric', 'mine:metric']", "metrics names 'mine:metric' twice"),
        ("false_reject: 1", "false_reject: -1", r":10: risk\.costs\.false_reject: "),
        ("{false_approve: 5, false_reject: 1}", "{false_approve: 0, false_reject: 0}", "both costs are 0"),
        (
            "from: bits_per_byte",
            "from: bits_per_bite",
            r":12: business\.0\.from: unknown metric 'bits_per_bite'",
        ),
        ("from: bits_per_byte", "from: business/load", r":12: .*is a business figure; name the metric"),
        ("from: bits_per_byte", "from: dialogue/pass_hat_k", r":12: business\.0: k goes with"),
        (
            "from: bits_per_byte",
            "from: bits_per_byte, fit: linear",
            r":12: business\.0: fit goes with calibration",
        ),
        (
            "calibration: history.csv",
            "calibration: absent.csv",
            r":13: business\.1\.calibration: .*no such file",
        ),
        (
            "fit: linear",
            "fit: isotonic",
            r"history\.csv: 8 releases; the isotonic fit needs at least 10",
        ),
        (
            "fit: linear",
            "fit: linear, direction: higher",
            r":13: business\.1\.from: history\.csv: online doesn't fall",
        ),
        (
            "'mine:mapping'",
            "'mine:metric'",
            r":14: business\.2\.mapping: mine:metric: an evalkit\.metrics\.\w+\.OwnM",
        ),
        (
            "own/digits, frequency]",
            "frequency]",
            r":7: text\.classes\.own\.0: precedence doesn't name own/digits",
        ),
        (
            "own/digits, frequency]",
            "own/digit, own/digits, frequency]",
            r":7: text\.classes\.precedence\.1: no class of `own` is called own/digit \(there are: own/digits\)",
        ),
        (
            "oov, own/digits",
            "oovs, own/digits",
            r":7: text\.classes\.precedence\.0: isn't a class; choose from",
        ),
        (
            "['mine:digits']",
            "['mine:value']",
            r":7: text\.classes\.own\.0: mine:value: an evalkit\.metrics\.own_c",
        ),
        (
            "['mine:digits']",
            "['mine:unnamed']",
            r"mine:unnamed: name: 'digits' isn't possible \(it begins with own/",
        ),
        ("['mine:digits']", "['mine:both']", r"mine:both: own/both: give exactly one of spans and token"),
        ("['mine:digits']", "['mine:shy']", r"mine:shy: alarm: 0 isn't possible"),
        (
            "['mine:digits']",
            "['mine:digits', 'mine:again']",
            r":7: .*own\.1: two classes are called own/digits",
        ),
        ("['mine:digits']", "['mine:digits', 'mine:digits']", r"own names 'mine:digits' twice"),
        (
            "perplexity/view/numbers, change",
            "perplexity/own/letters, change",
            "doesn't declare perplexity/own/letters",
        ),
        ("name: money", "name: bits", "business names 'bits' twice"),
        (
            "business/load, max",
            "business/lod, max",
            r":17: gate\.rules\.0\.metric: the scenario doesn't declare",
        ),
        ("own/metric, min: 0.1", "own/metric, change: {max_increase: 1}", r":18: .* limits an improvement"),
        ("view/numbers", "view/words", "the scenario doesn't declare perplexity/view/words"),
    ],
)
def test_mistakes_exit_2_with_their_line(tmp_path, capsys, monkeypatch, old, new, message):
    path = write(tmp_path, old, new)
    with pytest.raises(InputError, match=message) as caught:
        load_scenario(path)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr("sys.argv", ["evalkit", "validate", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_policy_of_its_own_is_checked_against_the_scenario_that_uses_it(tmp_path):
    path = write(tmp_path)
    assert load_policy(tmp_path / "policy.yaml").rules[0].metric == "business/absent"
    head = SCENARIO[: SCENARIO.index("gate:")]
    path.write_text(head + "gate: {policy: policy.yaml}\n")
    with pytest.raises(InputError, match=r"policy\.yaml:1: rules\.0\.metric: the scenario doesn't declare"):
        load_scenario(path)
