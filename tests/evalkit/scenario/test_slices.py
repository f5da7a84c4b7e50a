"""Slices in rules and figures: tags of the data or `resampled`; what holds no sample is refused, misspellings named."""

import pytest
from click.testing import CliRunner

from evalkit.cli import cli
from evalkit.errors import InputError
from evalkit.scenario.loader import load_scenario

SCENARIO = """\
version: 1
name: small
model: {{bundle: candidate}}
text:
  data: texts.jsonl
  {resample}
gate:
  {gate}
"""
RULE = "- {{metric: perplexity/token, slice: {}, max: 20}}"
RESAMPLE = "resample: {target: target.jsonl}"


@pytest.fixture
def make(tmp_path):
    def write(slice, resample=RESAMPLE, tags='["cards"]', policy=False):
        (tmp_path / "texts.jsonl").write_text(f'{{"id": "a", "text": "hello", "tags": {tags}}}\n')
        (tmp_path / "target.jsonl").write_text('{"id": "b", "text": "hello"}\n')
        rule = RULE.format(slice)
        (tmp_path / "policy.yaml").write_text(f"confidence: 0.95\nrules:\n  {rule}\n")
        gate = "policy: policy.yaml" if policy else f"rules:\n    {rule}"
        path = tmp_path / "scenario.yaml"
        path.write_text(SCENARIO.format(resample=resample, gate=gate))
        return path

    return write


@pytest.mark.parametrize("name", ["resampld", "re-sampled", "resample", "Resampled", "reampled"])
def test_a_misspelling_is_named(make, name):
    with pytest.raises(
        InputError, match=r"scenario\.yaml:9: gate\.rules\.0\.slice: .*did you mean resampled\?"
    ) as caught:
        load_scenario(make(name))
    assert repr(name) in str(caught.value)


def test_the_line_is_that_of_the_policys_file(make):
    with pytest.raises(InputError, match=r"policy\.yaml:3: rules\.0\.slice: .*did you mean resampled"):
        load_scenario(make("resampld", policy=True))


def test_without_re_weighting_there_is_no_such_slice(make):
    with pytest.raises(
        InputError, match=r"slice: 'resampled': the scenario re-weights no texts; add text\.resample"
    ):
        load_scenario(make("resampled", resample="window: {length: 8, stride: 8}"))


@pytest.mark.parametrize(
    ("name", "tags"), [("resampled", "[]"), ("resample", '["resample"]'), ("cards", '["cards"]')]
)
def test_the_slice_itself_and_tags_are_sound(make, name, tags):
    load_scenario(make(name, tags=tags))


def test_validate_tells_it(make):
    done = CliRunner().invoke(cli, ["validate", str(make("resampld"))])
    assert "did you mean resampled" in str(done.exception)


@pytest.mark.parametrize(("policy", "at"), [(False, "scenario.yaml:9: gate."), (True, "policy.yaml:3: ")])
def test_a_slice_that_no_text_belongs_to_is_refused_by_validate(make, policy, at):
    """In the scenario's own gate and in a policy file of another team, with that file's line."""
    path = make("card", policy=policy)
    done = CliRunner().invoke(cli, ["validate", str(path)])
    assert done.exit_code != 0
    assert str(done.exception).endswith(
        f"{at}rules.0.slice: 'card': no sample under perplexity/token has this tag (did you mean cards?)"
    )


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ('["a1", "b2"]', "(there are: a1, b2)"),
        ("[]", "(they have no tags at all)"),
        ('["1", "2", "3", "4", "5", "6", "7", "8", "9"]', "(there are: 1, 2, 3, 4, 5, 6, 7, 8 and others)"),
    ],
)
def test_the_slices_that_there_are_are_named(make, tags, says):
    with pytest.raises(InputError) as caught:
        load_scenario(make("vip", resample="window: {length: 8, stride: 8}", tags=tags))
    assert str(caught.value).endswith(says)


def test_a_tag_of_texts_is_no_slice_of_dialogues_or_decisions(make, tmp_path):
    path = make("cards")
    (tmp_path / "d.yaml").write_text("id: d\ntags: [zh]\nturns: [{user: hi, gold: hello}]\n")
    text = path.read_text().replace("gate:", "dialogues: {include: [d.yaml]}\ngate:")
    for metric, slice, says in (
        ("dialogue/consistency", "zh", None),
        ("dialogue/consistency", "cards", "(there are: zh)"),
        ("perplexity/token", "zh", "(there are: cards, resampled)"),
        ("calibration/ece", "cards", "(decisions have no tags)"),
        (
            "dialogue/consistency",
            "resampled",
            "texts are re-weighted, and dialogue/consistency doesn't stand on texts",
        ),
    ):
        side = "min" if metric.startswith("dialogue") else "max"
        rule = f"{{metric: {metric}, slice: {slice}, {side}: {20 if 'perplexity' in metric else 0.5}}}"
        path.write_text(text.replace("{metric: perplexity/token, slice: cards, max: 20}", rule))
        if says is None:
            load_scenario(path)
            continue
        with pytest.raises(InputError) as caught:
            load_scenario(path)
        assert str(caught.value).endswith(says)


def test_the_slice_of_a_figure_is_looked_at_too(make):
    path = make("cards")
    figure = "business:\n  - {name: load, from: perplexity/token, slice: crads}\n"
    path.write_text(path.read_text().replace("gate:", figure + "gate:"))
    with pytest.raises(InputError, match=r"scenario.yaml:8: business.0.slice: 'crads': .*did you mean cards"):
        load_scenario(path)
