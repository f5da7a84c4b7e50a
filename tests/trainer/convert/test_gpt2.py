"""Hugging Face GPT-2 folders: Conv1D and fused attention, tied head, learned positions, byte-level BPE."""

import numpy as np
import pytest

from evalkit.errors import InputError
from tests.trainer.convert.sources import small_spec, small_weights, write_gpt2
from tests.trainer.reference import forward, log_softmax
from trainer.convert import convert
from trainer.convert.folder import read_folder
from trainer.export.graphs import ScoreGraph, dynamic_inputs, score_ports
from trainer.model.decoder import CausalLM
from trainer.model.weights import load_weights


@pytest.fixture(scope="module")
def model():
    spec = small_spec("gpt2")
    return spec, small_weights(spec)


@pytest.fixture
def folder(model, tmp_path):
    return write_gpt2(tmp_path / "gpt2", *model)


def test_the_weights_come_back_bit_for_bit(folder, model):
    spec, weights = model
    found = read_folder(folder)
    assert found.model == spec
    assert set(found.weights) == set(weights)
    assert all(np.array_equal(found.weights[name], value) for name, value in weights.items())
    assert (found.prefix_token, found.end_token) == (1, 2)


def gpt2_logits(tensors, layers, heads, ids, eps):
    """GPT-2 as its Hugging Face names say it: x · W + b, float64, one text."""

    def norm(x, name):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + eps) * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def conv(x, name):
        return x @ tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    x = tensors["wte.weight"][ids] + tensors["wpe.weight"][: len(ids)]
    hidden = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
    for layer in range(layers):
        q, k, v = np.split(conv(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn"), 3, -1)
        q, k, v = (part.reshape(len(ids), heads, -1).swapaxes(0, 1) for part in (q, k, v))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) + hidden
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        x = x + conv(mixed.swapaxes(0, 1).reshape(len(ids), -1), f"h.{layer}.attn.c_proj")
        up = conv(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
        up = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = x + conv(up, f"h.{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ tensors["wte.weight"].T


def test_log_probabilities_equal_gpt2s(folder, tmp_path):
    from safetensors.numpy import load_file

    checkpoint = convert(folder, tmp_path / "out")
    spec = checkpoint.meta.model
    model = CausalLM(spec)
    load_weights(model, checkpoint.path / "weights.safetensors")
    graph = ScoreGraph(model, spec)
    graph.set_train(False)
    graph.set_inputs(*dynamic_inputs(score_ports()[0]))
    from mindspore import Tensor

    ids = np.random.default_rng(3).integers(0, spec.vocab_size, 13).astype(np.int32)
    positions = np.arange(12, dtype=np.int32)[None]
    rows = (ids[None, :-1].copy(), ids[None, 1:].copy(), positions, np.ones_like(positions))
    found = graph(*(Tensor(row) for row in rows))[0].asnumpy()[0]

    tensors = {
        name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()
    }
    logits = gpt2_logits(tensors, spec.layers, spec.heads, ids[:-1], spec.norm_eps)
    expected = log_softmax(logits)[np.arange(12), ids[1:]]
    assert np.abs(found - expected).max() < 1e-4
    # The numpy model of the trainer's own tests agrees too: two implementations, one result.
    own = forward(spec, load_file(checkpoint.path / "weights.safetensors"), *rows[:1], *rows[2:])
    assert np.abs(log_softmax(own)[0][np.arange(12), ids[1:]] - expected).max() < 1e-6


def test_epsilon_and_inner_size_are_the_models_own(model, tmp_path):
    folder = write_gpt2(tmp_path / "a", *model, layer_norm_epsilon=1e-6, n_inner=64)
    found = read_folder(folder).model
    assert found.norm_eps == 1e-6 and found.intermediate_size == 64


def test_an_untied_head(tmp_path):
    spec = small_spec("gpt2", tied_head=False)
    weights = small_weights(spec)
    found = read_folder(write_gpt2(tmp_path / "a", spec, weights))
    assert not found.model.tied_head
    assert np.array_equal(found.weights["lm_head.weight"], weights["lm_head.weight"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"activation_function": "gelu"}, "activation_function 'gelu'; only gelu_new, the tanh form"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
        ({"add_cross_attention": True}, "add_cross_attention True"),
        ({"n_head": 3}, "don't divide"),
        ({"n_embd": "many"}, "hidden_size: Input should be a valid integer"),
        (
            {"n_layer": 3},
            r"model\.layers\.2\..*: weight is missing, transformer\.h\.2\.ln_1\.weight in this format",
        ),
        (
            {"n_positions": 40},
            r"transformer\.wpe\.weight: shape \(48, 16\), its configuration asks for \(40, 16\)",
        ),
        ({"vocab_size": 270}, r"transformer\.wte\.weight: shape"),
        ({"architectures": ["GPT2ForSequenceClassification"]}, "architecture GPT2ForSequenceClassification"),
    ],
)
def test_what_isnt_computed_or_doesnt_fit_is_refused(model, tmp_path, config, message):
    with pytest.raises(InputError, match=message):
        convert(write_gpt2(tmp_path / "a", *model, **config), tmp_path / "out")
    assert not (tmp_path / "out").exists()
