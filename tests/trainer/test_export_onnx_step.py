"""The ONNX twin of the step graph: every family, prefill and decode, and no size of the sample left in it."""

import numpy as np
import pytest

from evalkit.backends.onnx_session import open_session
from evalkit.errors import InputError
from tests.trainer.models import FAMILIES, random_model, small_spec, weights_of
from tests.trainer.reference import forward
from trainer.export.graphs import StepGraph, step_ports
from trainer.export.onnx_axes import model_sizes
from trainer.export.onnx_step import export_onnx_step, sample_sizes
from trainer.export.step_calls import onnx_step

onnx = pytest.importorskip("onnx", reason='pip install "evalkit[onnx]"')


@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_teacher_forcing(family, tmp_path):
    """Two texts of different length: padded prefill, then two tokens a step, then one, with empty slots in the cache."""
    spec = small_spec(family)
    model = random_model(spec)
    export_onnx_step(StepGraph(model, spec), spec, tmp_path / "step.onnx")
    step = onnx_step(tmp_path / "step.onnx")
    token_ids = np.random.default_rng(5).integers(0, spec.vocab_size, (2, 9)).astype(np.int32)
    positions = np.tile(np.arange(9, dtype=np.int32), (2, 1))
    expected = forward(spec, weights_of(model), token_ids, positions, np.ones_like(positions))

    prompt = np.where(positions[:, :5] < [[5], [3]], positions[:, :5], -1).astype(np.int32)
    cache = [np.zeros((2, spec.kv_heads, 0, spec.head_size), np.float32)] * (2 * spec.layers)
    past = np.zeros((2, 0), np.int32)
    for now, last in (
        (prompt, [4, 2]),
        (np.array([[5, 6], [3, 4]], np.int32), [1, 0]),
        (np.array([[7], [5]], np.int32), [0, 0]),
    ):
        ids = np.take_along_axis(token_ids, np.maximum(now, 0), 1)
        logits, *new = step([ids, now, past, np.array(last, np.int32), *cache])
        at = np.take_along_axis(now, np.array(last)[:, None], 1)[:, 0]
        assert np.abs(logits - expected[[0, 1], at]).max() < 2e-4
        assert new[0].shape == (2, spec.kv_heads, now.shape[1], spec.head_size)
        past = np.concatenate((past, now), 1)
        cache = [np.concatenate(pair, 2) for pair in zip(cache, new, strict=True)]


def test_names_and_axes_are_those_of_the_manifest(tmp_path):
    spec = small_spec("llama-grouped-untied-window")
    export_onnx_step(StepGraph(random_model(spec), spec), spec, tmp_path / "step.onnx")
    session = open_session(tmp_path / "step.onnx")
    for found, ports in zip((session.get_inputs(), session.get_outputs()), step_ports(spec), strict=True):
        assert [value.name for value in found] == [port.name for port in ports]
        for value, port in zip(found, ports, strict=True):
            assert [None if isinstance(size, str) else size for size in value.shape] == port.shape, value.name
    assert session.get_inputs()[0].shape == ["rows", "new_tokens"]
    assert session.get_inputs()[-1].shape == ["rows", 2, "past_tokens", 4]
    assert session.get_outputs()[-1].shape == ["rows", 2, "new_tokens", 4]


def test_the_samples_sizes_occur_nowhere_else():
    spec = small_spec("llama").model_copy(
        update={"hidden_size": 5 * 7 * 11 * 2, "heads": 2, "kv_heads": 1, "attention_window": 13}
    )
    rows, new, past = sample_sizes(spec)
    both = new + past
    assert (rows, new, both) == (17, 19, 23) and past not in model_sizes(spec)
    with pytest.raises(InputError, match="no sample sizes fit"):
        product = 1
        for number in range(5, 200):
            product *= number
        sample_sizes(spec.model_copy(update={"hidden_size": product, "heads": 1}))
