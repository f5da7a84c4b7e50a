"""A model in memory scores like its exported graph, and its training goes on as if nobody had looked."""

import numpy as np
import pytest

from evalkit.backends.base import Backend
from evalkit.backends.checkpoint import CheckpointBackend
from evalkit.errors import InputError
from tests.support.real_models import check_against_references, references
from tests.trainer.models import packed_rows, random_model, small_spec, weights_of
from tests.trainer.reference import forward, log_softmax

SPEC = small_spec("llama-grouped-untied-window")


def backend_of(model) -> CheckpointBackend:
    return CheckpointBackend(model, vocab_size=SPEC.vocab_size, max_length=SPEC.max_length)


def expected_logprobs(model, rows):
    token_ids, targets, positions, segments = rows
    logprobs = log_softmax(forward(SPEC, weights_of(model), token_ids, positions, segments))
    return np.take_along_axis(logprobs, targets[..., None], -1)[..., 0]


def test_it_gives_the_models_own_log_probabilities():
    model, rows = random_model(SPEC), packed_rows()
    backend: Backend = backend_of(model)
    stats = backend.score(*rows)
    real = rows[3] > 0
    assert np.abs(stats.logprob - expected_logprobs(model, rows))[real].max() < 2e-4
    assert stats.rank.dtype == np.int32 and stats.top_id.shape == rows[0].shape


def test_later_training_steps_are_seen():
    from mindspore import Tensor

    model, rows = random_model(SPEC), packed_rows()
    backend = backend_of(model)
    before = backend.score(*rows).logprob
    for parameter in model.get_parameters():
        parameter.set_data(Tensor(parameter.asnumpy() * np.float32(0.5)))
    after, real = backend.score(*rows).logprob, rows[3] > 0
    assert np.abs(after - expected_logprobs(model, rows))[real].max() < 2e-4
    assert np.abs(after - before)[real].max() > 1e-2


def test_the_names_of_the_parameters_stay():
    model = random_model(SPEC)
    names = [parameter.name for parameter in model.get_parameters()]
    backend_of(model).score(*packed_rows())
    assert [parameter.name for parameter in model.get_parameters()] == names


def test_logits_narrower_than_the_vocabulary_are_refused():
    with pytest.raises(InputError, match="the tokenizer has 1000 ids"):
        CheckpointBackend(random_model(SPEC), vocab_size=1000, max_length=24)


def test_wider_logits_keep_their_width():
    model, rows = random_model(SPEC), packed_rows()
    backend = CheckpointBackend(model, vocab_size=SPEC.vocab_size - 3, max_length=SPEC.max_length)
    assert backend.vocab_size == SPEC.vocab_size
    difference = np.abs(backend.score(*rows).logprob - backend_of(model).score(*rows).logprob)
    assert difference[rows[3] > 0].max() < 1e-6


def test_a_function_calls_a_network_that_takes_one_text_a_row():
    """The texts of a packed row are scored apart, padded behind their ends, and come back to their places."""
    from mindspore import Tensor

    def alone(network, token_ids):
        places = np.tile(np.arange(token_ids.shape[1], dtype=np.int32), (token_ids.shape[0], 1))
        return network(token_ids, Tensor(places), Tensor(np.ones_like(places)))

    model, rows = random_model(SPEC), packed_rows()
    apart = CheckpointBackend(
        model, vocab_size=SPEC.vocab_size, max_length=SPEC.max_length, logits=alone
    ).score(*rows)
    packed, real = backend_of(model).score(*rows), rows[3] > 0
    assert np.abs(apart.logprob - packed.logprob)[real].max() < 1e-5
    assert np.array_equal(apart.top_id[real], packed.top_id[real])


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (lambda network, ids, mask: None, "takes 2 inputs"),
        (lambda network, ids: 3.0, "two tokens give a float"),
        (lambda network, ids: ids.sum(), "a tensor of shape"),
        (lambda network, ids: network(ids), "can't be called on token ids"),
    ],
)
def test_what_gives_no_logits_is_refused_with_what_to_do(logits, message):
    with pytest.raises(InputError, match=message) as caught:
        CheckpointBackend(random_model(SPEC), vocab_size=10, max_length=24, logits=logits)
    assert "logits=FUNCTION" in str(caught.value) and "\n" not in str(caught.value)


def test_probabilities_are_refused():
    from mindspore import ops

    with pytest.raises(InputError, match="gives probabilities"):
        CheckpointBackend(
            random_model(SPEC),
            vocab_size=10,
            max_length=24,
            logits=lambda network, ids, places, segments: ops.softmax(network(ids, places, segments), -1),
        )


def test_logits_that_are_no_tensor_are_refused():
    with pytest.raises(
        InputError, match="give a ndarray instead of a MindSpore tensor; give logits=FUNCTION"
    ):
        CheckpointBackend(
            random_model(SPEC),
            vocab_size=10,
            max_length=24,
            logits=lambda network, ids, places, segments: network(ids, places, segments).asnumpy(),
        )


def test_the_digest_follows_the_weights():
    from mindspore import Tensor

    model = random_model(SPEC)
    backend, parameter = backend_of(model), next(iter(model.get_parameters()))
    before = backend.model_digest
    assert backend.model_digest == before
    parameter.set_data(Tensor(parameter.asnumpy() * np.float32(2)))
    assert backend.model_digest != before


def test_an_adapter_brings_in_another_signature():
    from mindspore import nn

    class Adapter(nn.Cell):
        def __init__(self, model):
            super().__init__(auto_prefix=False)
            self.model = model

        def construct(self, token_ids, positions, segments):
            logits = self.model(token_ids, positions, segments)
            return logits.reshape(*token_ids.shape, -1)

    model, rows = random_model(SPEC), packed_rows()
    real = rows[3] > 0
    plain, adapted = (backend_of(cell).score(*rows).logprob for cell in (model, Adapter(model)))
    assert np.abs(plain - adapted)[real].max() < 1e-6


def test_stories260k_in_memory(stories_bundle, shared_data):
    from trainer.model.decoder import CausalLM
    from trainer.model.weights import load_weights

    spec = stories_bundle.model
    model = CausalLM(spec)
    load_weights(model, stories_bundle.path / "weights.safetensors")
    backend = CheckpointBackend(model, vocab_size=spec.vocab_size, max_length=spec.max_length)
    worst, mean = check_against_references(stories_bundle, backend, references(shared_data, "stories260K"))
    assert worst < 1e-3 and mean < 1e-4
