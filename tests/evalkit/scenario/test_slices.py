"""The slice `resampled` in rules and figures: refused where nothing is re-weighted, its misspellings named."""

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
    ("name", "tags"), [("resampled", "[]"), ("resample", '["resample"]'), ("cards", "[]")]
)
def test_the_slice_itself_and_tags_are_sound(make, name, tags):
    load_scenario(make(name, tags=tags))


def test_validate_tells_it(make):
    done = CliRunner().invoke(cli, ["validate", str(make("resampld"))])
    assert "did you mean resampled" in str(done.exception)
