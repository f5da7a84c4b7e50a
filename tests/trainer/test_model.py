"""The model against an independent float64 forward pass, and its hand-written derivatives against differences."""

import mindspore as ms
import numpy as np
import pytest

from tests.trainer.models import FAMILIES, packed_rows, random_model, small_spec, tensors, weights_of
from tests.trainer.reference import forward, log_softmax
from trainer.config import count_parameters
from trainer.model.attention import HIDDEN, attention_mask
from trainer.step import NllCell


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_the_reference(name):
    spec = small_spec(name)
    model = random_model(spec)
    token_ids, _, positions, segments = packed_rows()
    logits = model(*tensors(token_ids, positions, segments)).asnumpy().reshape(3, 12, -1)
    expected = forward(spec, weights_of(model), token_ids, positions, segments)
    real = segments > 0
    assert np.abs(logits[real] - expected[real]).max() < 2e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_are_counted(name):
    spec = small_spec(name)
    assert (
        spec.parameters
        == count_parameters(spec)
        == sum(value.size for value in weights_of(random_model(spec)).values())
    )


@pytest.mark.parametrize("name", ["llama-grouped-untied-window", "gpt2"])
def test_gradients_equal_differences_of_the_reference(name):
    spec = small_spec(name)
    model = random_model(spec)
    token_ids, targets, positions, segments = packed_rows()
    weights = (segments > 0).astype(np.float32)
    parameters = model.trainable_params()
    differentiate = ms.value_and_grad(NllCell(model), None, parameters)
    loss, gradients = differentiate(*tensors(token_ids, targets, positions, segments, weights))

    def reference_loss(values):
        logprobs = log_softmax(forward(spec, values, token_ids, positions, segments))
        return -(np.take_along_axis(logprobs, targets[..., None], -1)[..., 0] * weights).sum()

    values = {key: value.astype(np.float64) for key, value in weights_of(model).items()}
    assert float(loss.asnumpy()) == pytest.approx(reference_loss(values), rel=1e-5)
    random = np.random.default_rng(0)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        # One random direction tests all entries of a parameter at once.
        direction = random.normal(size=parameter.shape)
        step = 1e-5
        ends = []
        for sign in (1, -1):
            ends.append(
                reference_loss({**values, parameter.name: values[parameter.name] + sign * step * direction})
            )
        slope = (ends[0] - ends[1]) / (2 * step)
        assert (gradient.asnumpy() * direction).sum() == pytest.approx(slope, rel=2e-3, abs=2e-3), (
            parameter.name
        )


def test_a_token_sees_its_own_text_up_to_the_window():
    positions, segments = np.array([[0, 1, 2, 0, 1]], np.int32), np.array([[1, 1, 1, 2, 2]], np.int32)
    args = tensors(positions, segments, positions, segments)
    seen = attention_mask(*args, 2).asnumpy()[0, 0] > HIDDEN / 2
    assert seen.astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]
    assert attention_mask(*args, None).asnumpy()[0, 0, 2, 0] == 0


def test_packing_and_padding_leave_a_text_alone():
    """A text scored alone, after another one, or before padding has the same logits."""
    spec = small_spec("llama")
    model = random_model(spec)
    token_ids, _, positions, segments = packed_rows()
    packed = model(*tensors(token_ids, positions, segments)).asnumpy().reshape(3, 12, -1)
    alone = model(*tensors(token_ids[:1, 7:], positions[:1, 7:], segments[:1, 7:])).asnumpy()
    assert np.abs(packed[0, 7:] - alone).max() < 1e-5
