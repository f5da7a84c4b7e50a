"""Arguments that can't be meant are refused where they are given, in one line that names them."""

import math
from types import SimpleNamespace

import pytest

from evalkit.errors import InputError
from evalkit.scenario.schema import Classes, Window
from evalkit.scoring.texts import TextItem
from evalkit.training.callback import EvalCallback
from evalkit.training.evaluation import validation
from evalkit.training.record import JsonlSink
from evalkit.training.selection import EarlyStop, KeepBest
from evalkit.training.triggers import EveryNSteps
from tests.evalkit.training.driver import Nowhere, network
from tests.evalkit.training.fixtures import small_validation, texts, write_tokenizer
from tests.evalkit.training.tutorial import LossCell


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("validation")


@pytest.fixture(scope="module")
def check(folder):
    return small_validation(folder)


@pytest.fixture(scope="module")
def net(check):
    return network(check)


def nothing(_):
    pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"confidence": 95}, r"confidence: a number above 0\.5 and below 1 .*got 95"),
        ({"confidence": math.nan}, "confidence: a number above"),
        ({"confidence": "0.95"}, "confidence: a number above"),
        ({"confidence": 1.0}, "confidence: a number above"),
        ({"seed": -1}, "seed: a whole number from 0 on"),
        ({"seed": 1.5}, "seed: a whole number"),
        ({"seed": True}, "seed: a whole number"),
        ({"seed": None}, "seed: a whole number"),
        ({"max_length": 0}, "max_length: a whole number from 2 on"),
        ({"max_length": "128"}, "max_length: a whole number"),
        ({"max_length": 128.0}, "max_length: a whole number"),
        ({"prefix_token": "<s>"}, "prefix_token: a whole number"),
        ({"prefix_token": -1}, "prefix_token: a whole number"),
        ({"prefix_token": 10**6}, r"prefix_token: a token id below \d+ is needed"),
        ({"window": (64, 64)}, r"window: evalkit\.scenario\.schema\.Window is needed"),
        ({"window": Window(length=256, stride=64)}, "256"),
        ({"classes": {"oov": None}}, r"classes: evalkit\.scenario\.schema\.Classes"),
        ({"classes": Classes(counts="counts.npz")}, r"classes\.counts: .*counts=FILE"),
        ({"counts": 7}, "counts: the path"),
        ({"counts": "gone.npz"}, r"gone\.npz"),
        ({"texts": []}, "there are none"),
        ({"texts": None}, "texts: a list of TextItem"),
        ({"texts": ["a text"]}, r"texts: 0: TextItem.*got 'a text'"),
        ({"texts": [TextItem(1, "a text", "c")]}, "texts: 0: id, text and cluster are texts"),
        ({"texts": [TextItem("a", "a text", "c", "cards")]}, "texts: 0: tags: a tuple of .*got 'cards'"),
        ({"texts": [TextItem("a", "a text", "c", ("x", 3))]}, "texts: 0: tags: a tuple of non-empty texts"),
        ({"texts": [*texts(2), *texts(1)]}, "texts: 2: the id 't000' is repeated"),
        ({"texts": "gone.jsonl"}, r"gone\.jsonl"),
        ({"tokenizer": None}, "tokenizer: the path"),
        ({"tokenizer": "gone.json"}, r"gone\.json: not a tokenizer file .*tokenizer\.json of this model"),
    ],
)
def test_a_validation(folder, settings, message):
    given = {"texts": texts(), "tokenizer": write_tokenizer(folder), "max_length": 128, **settings}
    with pytest.raises(InputError, match=message) as caught:
        validation(given.pop("texts"), given.pop("tokenizer"), **given)
    assert "\n" not in str(caught.value) and "bundle" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": None}, r"network: a mindspore\.nn\.Cell"),
        ({"validation": "validation.jsonl"}, "validation: what evalkit"),
        ({"sinks": JsonlSink}, "sinks: a list of sinks"),
        ({"sinks": "records.jsonl"}, "sinks: a list of sinks"),
        ({"sinks": [JsonlSink]}, r"sinks: 0: the class JsonlSink instead of an object; write JsonlSink\("),
        ({"sinks": [print]}, "sinks: 0: a sink with write, close"),
        ({"sinks": []}, r"sinks: there is none, so no record would be kept; give JsonlSink\("),
        ({"sinks": [SimpleNamespace(write=nothing, close=nothing)]}, "sinks: 0: close: a method without"),
        ({"sinks": [SimpleNamespace(write=None, close=list)]}, "sinks: 0: write: a method that takes a rec"),
        ({"triggers": EveryNSteps(5)}, "triggers: a list of triggers"),
        ({"triggers": [EveryNSteps]}, "triggers: 0: the class EveryNSteps instead of an object"),
        ({"triggers": [500]}, "triggers: 0: a trigger with name, forced, reads, see is needed"),
        ({"triggers": []}, "triggers: there is none"),
        ({"logits": 3}, "logits: a function"),
        ({"logits": lambda: 0}, "the function logits takes no network and no token ids"),
        ({"logits": lambda network: 0}, "the function logits takes 0 inputs"),
        ({"logits": lambda network, ids, places: 0}, r"the function logits takes 2 inputs.*give logits="),
        ({"logits": lambda network, ids, *, mask: 0}, "the function logits needs mask by name"),
        ({"logits": iter}, "the function logits doesn't tell its parameters"),
        ({"loss_scaler": object()}, r"loss_scaler: .*DynamicLossScaler"),
        ({"loss_scaler": "amp"}, r"loss_scaler: .*got 'amp'"),
        ({"metrics": "perplexity/token"}, "metrics: a list of metrics' names"),
        ({"metrics": []}, "metrics: there is none"),
        ({"metrics": [7]}, "metrics: a list of metrics' names"),
        (
            {"metrics": ["perplexity/tokn"]},
            "metrics: unknown metric 'perplexity/tokn'; did you mean perplexity/token",
        ),
        (
            {"metrics": ["bits_per_byte", "risk/auc"]},
            "metrics: 'risk/auc' isn't measured here; it must be one of",
        ),
        ({"metrics": ["robustness/typos/perplexity/token"]}, "isn't measured here"),
        ({"cooldown": -1}, "cooldown: a whole number from 0 on"),
        ({"cooldown": 2.5}, "cooldown: a whole number"),
        ({"cooldown": None}, "cooldown: a whole number"),
        ({"loss_scale_every": 0}, "loss_scale_every: a whole number from 1 on"),
        ({"early_stop": "perplexity/token"}, r"early_stop: EarlyStop\("),
        ({"keep_best": nothing}, r"keep_best: KeepBest\("),
        ({"keep_best": KeepBest("risk/auc", nothing)}, "keep_best: 'risk/auc' isn't measured here"),
        ({"early_stop": EarlyStop("robustness/typo/perplexity/token")}, "early_stop: .* isn't measured here"),
        ({"early_stop": EarlyStop("own/tone")}, "early_stop: unknown metric 'own/tone'"),
        (
            {"keep_best": KeepBest("perplexity/long_tail", nothing)},
            "keep_best: perplexity/long_tail will have no value: the model has no training token counts",
        ),
        ({"robustness": {"perturb": "typos"}}, "robustness: a list of mappings"),
        ({"robustness": ["typos"]}, r"robustness\.0"),
        ({"on_error": "ignore"}, "on_error: continue or stop"),
        ({"ranks": 2}, r"ranks: evalkit\.training\.Ranks"),
        ({"drift": [nothing]}, r"drift: evalkit\.training\.Drift"),
    ],
)
def test_a_callback(check, net, settings, message):
    given = {"network": net, "validation": check, "sinks": [Nowhere()], **settings}
    with pytest.raises(InputError, match=message) as caught:
        EvalCallback(given.pop("network"), given.pop("validation"), given.pop("sinks"), **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KeepBest("perplexity/tokn", nothing), "did you mean perplexity/token"),
        (lambda: KeepBest("perplexity/token", None), "save: a function"),
        (
            lambda: KeepBest("perplexity/token", lambda: 0),
            "save: a function of the step is needed .called with 1",
        ),
        (lambda: KeepBest("perplexity/token", lambda step, name: 0), "save: .*missing .*'name'"),
        (lambda: KeepBest(None, nothing), "metric: a metric's name"),
        (lambda: KeepBest("perplexity/token", nothing, best=3.0), "best: "),
        (lambda: KeepBest("perplexity/token", nothing, best=(1,)), r"best: \(step, value\) is needed"),
        (lambda: KeepBest("perplexity/token", nothing, best=(1, "x")), "best: value: a finite number"),
        (lambda: EarlyStop("perplexity/token", patience=0), "patience: a whole number from 1 on"),
        (lambda: EarlyStop("perplexity/token", patience=2.5), "patience: a whole number"),
        (lambda: EarlyStop("perplexity/token", best=math.nan), "best: a finite number"),
    ],
)
def test_decisions(make, message):
    with pytest.raises(InputError, match=message):
        make()


class Odd(EveryNSteps):
    """A trigger of somebody's own with something wrong."""

    def __init__(self, **fields) -> None:
        super().__init__(5)
        vars(self).update(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 7}, "triggers: 0: name: a text"),
        ({"forced": "no"}, "triggers: 0: forced: True or False"),
        ({"reads": frozenset({"losses"})}, "triggers: 0: reads: a set of loss, loss_scale, overflow"),
        ({"reads": "loss"}, "triggers: 0: reads: a set"),
        ({"see": None}, "triggers: 0: see: a method"),
        ({"see": lambda: None}, "triggers: 0: see: a method that takes a step's event"),
        ({"begin": nothing}, "triggers: 0: begin: a method without arguments"),
    ],
)
def test_a_trigger_of_ones_own(check, net, fields, message):
    with pytest.raises(InputError, match=message):
        EvalCallback(net, check, [Nowhere()], triggers=[Odd(**fields)])


def test_a_network_that_needs_a_function_is_told_where_the_callback_is_made(check, net):
    with pytest.raises(InputError, match=r"LossCell takes 2 inputs.*give logits="):
        EvalCallback(LossCell(net), check, [Nowhere()])
