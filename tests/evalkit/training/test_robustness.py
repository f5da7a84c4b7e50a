"""The perturbations of a scenario, at evaluations in a training."""

import pytest

from evalkit.errors import InputError
from evalkit.training.evaluation import with_robustness
from evalkit.training.record import metric_entry
from evalkit.training.selection import EarlyStop
from tests.evalkit.training.fixtures import small_validation
from tests.evalkit.training.test_description import TableBackend

SPECS = [{"perturb": "typos", "rate": 0.3}, {"perturb": "swap_entities"}]


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    return small_validation(tmp_path_factory.mktemp("validation"))


def test_each_evaluation_measures_the_perturbed_texts_too(check):
    backend = TableBackend(check.tokenizer.vocab_size, 128)
    robust = with_robustness(check, SPECS)
    plain, found = check.measure(backend), robust.measure(backend)
    assert [item for item in found.metrics if not item.name.startswith("robustness/")] == list(plain.metrics)
    result = found.find("robustness/typos/perplexity/token")
    assert result.value is not None and result.interval is not None
    entry = metric_entry(result)
    assert entry["clean"] == plain.find("perplexity/token").value and entry["texts_compared"] == 24
    assert entry["signature"].startswith(check.context.signatures["text"] + "|perturb:")
    # A choice of the texts is perturbed as all of them are.
    some = robust.measure(backend, robust.items[:12])
    assert len(some.evidence.samples) == 3 * 12


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"perturb": "typo"}, r"robustness\.1: unknown perturbation 'typo'; did you mean typos"),
        ({"perturb": "typos", "name": "a", "rate": 2.0}, r"robustness\.1\.rate: .*less than or equal"),
        ({"perturb": "typos"}, r"^robustness names 'typos' twice"),
        ({"perturb": "mix", "data": "gone.jsonl"}, r"gone\.jsonl"),
        ("typos", r"robustness\.1: name a perturbation"),
    ],
)
def test_bad_settings_are_one_line(check, spec, message):
    with pytest.raises(InputError, match=message) as caught:
        with_robustness(check, [SPECS[0], spec])
    assert "\n" not in str(caught.value)


def test_selection_takes_the_names(check):
    EarlyStop("robustness/typos/perplexity/token")
    with pytest.raises(InputError, match="unknown metric"):
        EarlyStop("robustness/typos/perplexity/tokn")
