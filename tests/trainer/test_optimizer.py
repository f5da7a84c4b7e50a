"""AdamW against a float64 reference, its groups, the schedules, and the padded vocabulary."""

import math
from itertools import pairwise

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from tests.trainer.models import random_model, small_spec
from tests.trainer.small_training import SmallTraining
from trainer.checkpoint import read_checkpoint
from trainer.config import load_config
from trainer.configuration.optimizer import OptimizerConfig
from trainer.loop import train
from trainer.model.weights import weights_of
from trainer.optimizer import AdamW, decaying, parameter_group
from trainer.schedule import learning_rate


def test_updates_are_adam_with_decoupled_decay():
    """Three updates of two parameters, compared with the formula in float64."""
    ms.set_context(mode=ms.GRAPH_MODE)
    random = np.random.default_rng(1)
    start = {"a.weight": random.normal(size=(3, 4)), "norm.weight": random.normal(size=4)}
    parameters = [Parameter(Tensor(value.astype(np.float32)), name=name) for name, value in start.items()]
    adam = AdamW(parameters, OptimizerConfig(learning_rate=1, weight_decay=0.1))
    values = [value.astype(np.float32).astype(np.float64) for value in start.values()]
    moments = [[np.zeros_like(value), np.zeros_like(value)] for value in values]
    for step in range(1, 4):
        rate = 0.01 * step
        gradients = [random.normal(size=value.shape).astype(np.float32) for value in values]
        adam(tuple(Tensor(gradient) for gradient in gradients), *adam.scalars(rate))
        for index, gradient in enumerate(gradients):
            first, second = moments[index]
            first += (1 - 0.9) * (gradient - first)
            second += (1 - 0.95) * (gradient.astype(np.float64) ** 2 - second)
            change = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.95**step)) + 1e-8)
            decay = 0.1 * values[index] if index == 0 else 0.0
            values[index] = values[index] - rate * (change + decay)
    for parameter, value in zip(parameters, values, strict=True):
        np.testing.assert_allclose(parameter.asnumpy(), value, rtol=2e-5, atol=1e-6)
    assert int(adam.global_step.asnumpy()) == adam.applied == 3


def test_each_parameter_has_its_group():
    groups = {}
    for family in ("llama-grouped-untied-window", "gpt2"):
        for parameter in random_model(small_spec(family)).trainable_params():
            groups.setdefault(parameter_group(parameter.name), set()).add(parameter.name)
    layer = "model.layers.1"
    assert groups["embedding"] == {"model.embed_tokens.weight", "model.embed_positions.weight"}
    assert {f"{layer}.self_attn.q_proj.bias", f"{layer}.mlp.down_proj.bias"} <= groups["bias"]
    assert all(name.split(".")[-2].endswith("norm") for name in groups["norm"])
    assert {f"{layer}.self_attn.q_proj.weight", f"{layer}.mlp.up_proj.weight"} <= groups[None]
    assert "lm_head.weight" in groups[None] and "model.norm.bias" in groups["norm"]


def test_what_decays_is_configured():
    parameters = random_model(small_spec("gpt2")).trainable_params()
    decays = dict(zip([p.name for p in parameters], decaying(parameters, ("norm", "bias")), strict=True))
    assert decays["model.embed_tokens.weight"] and not decays["model.norm.weight"]
    assert not decays["model.layers.0.mlp.up_proj.bias"] and decays["model.layers.0.mlp.up_proj.weight"]
    assert all(decaying(parameters, ())) and sum(decaying(parameters, ("embedding",))) == len(parameters) - 2


def rates(folder, steps, **optimizer):
    config = load_config(folder / "config.yaml")
    changed = config.optimizer.model_copy(update={"learning_rate": 1.0, **optimizer})
    config = config.model_copy(update={"optimizer": changed, "steps": steps})
    return [learning_rate(step, config) for step in range(1, steps + 1)]


def test_the_learning_rate_warms_up_and_falls(training_folder):
    cosine = rates(training_folder, 110, warmup_steps=10)
    assert cosine[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert max(cosine) == cosine[9] == 1.0 and cosine[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(cosine[9:])) and cosine[59] == pytest.approx(0.55)
    linear = rates(training_folder, 110, warmup_steps=10, schedule="linear")
    assert linear[9] == 1.0 and linear[-1] == pytest.approx(0.1) and linear[59] == pytest.approx(0.55)
    assert np.diff(linear[9:]) == pytest.approx(-0.009)
    assert set(rates(training_folder, 110, warmup_steps=10, schedule="constant")[9:]) == {1.0}
    assert rates(training_folder, 1, warmup_steps=0) == pytest.approx([0.1])


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_peak_grows_with_the_replicas_as_stated(training_folder, rule, factor):
    config = load_config(training_folder / "config.yaml")
    optimizer = config.optimizer.model_copy(update={"learning_rate_scaling": rule})
    parallel = config.parallel.model_copy(update={"data": 4})
    scaled = config.model_copy(update={"optimizer": optimizer, "parallel": parallel})
    assert learning_rate(5, scaled) == pytest.approx(factor * learning_rate(5, config))


def test_a_padded_vocabulary_changes_nothing_but_the_shape(training_folder):
    """299 tokens filled up to 304: the same loss, the same updates, and the rows added stay zero."""
    base = SmallTraining(training_folder).config
    model = base.model.model_copy(update={"vocab_multiple": 64})
    plain, padded = SmallTraining(training_folder), SmallTraining(training_folder, model=model)
    vocab = plain.data.tokenizer.vocab_size
    assert padded.model.rows % 64 == 0 and padded.model.rows > vocab == plain.model.rows
    for step in (1, 2, 3):
        one, other = (small.step(step, [small.batches[step]]) for small in (plain, padded))
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    table = weights_of(padded.model)["model.embed_tokens.weight"]
    assert not table[vocab:].any() and table.shape[0] == padded.model.rows
    np.testing.assert_allclose(table[:vocab], weights_of(plain.model)["model.embed_tokens.weight"], atol=1e-5)


def test_checkpoints_hold_no_padding_and_resume_exactly(training_folder, tmp_path):
    config = load_config(training_folder / "config.yaml")
    model = config.model.model_copy(update={"vocab_multiple": 64, "tied_head": False})
    config = config.model_copy(update={"model": model, "evaluation": None, "checkpoints": None, "steps": 4})
    config = config.model_copy(
        update={"optimizer": config.optimizer.model_copy(update={"schedule": "constant"})}
    )

    from tests.trainer.test_resume import StopAfter

    train(config, training_folder, tmp_path / "whole")
    train(config, training_folder, tmp_path / "parts", callbacks=[StopAfter(2)])
    train(config, training_folder, tmp_path / "parts", resume=True)
    ends = [read_checkpoint(tmp_path / name) for name in ("whole", "parts")]
    for name in ("weights.safetensors", "state.safetensors"):
        assert (ends[0].path / name).read_bytes() == (ends[1].path / name).read_bytes()
    from safetensors.numpy import load_file

    weights = load_file(ends[0].path / "weights.safetensors")
    vocab = ends[0].meta.model.vocab_size
    assert weights["lm_head.weight"].shape[0] == weights["model.embed_tokens.weight"].shape[0] == vocab
    assert math.prod(weights["lm_head.weight"].shape) == vocab * 16 and ends[0].meta.model.parameters == sum(
        value.size for value in weights.values()
    )
