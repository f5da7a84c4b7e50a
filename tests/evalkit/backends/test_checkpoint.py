"""A model in memory scores like its exported graph, and its training goes on as if nobody had looked."""

import json

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
    return CheckpointBackend(
        model, vocab_size=SPEC.vocab_size, max_length=SPEC.max_length, model_digest="0" * 64
    )


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


def test_logits_of_another_width_are_one_line():
    backend = CheckpointBackend(random_model(SPEC), vocab_size=7, max_length=24, model_digest="0" * 64)
    with pytest.raises(InputError, match="can't score these rows"):
        backend.score(*packed_rows())


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
    backend = CheckpointBackend(
        model,
        vocab_size=spec.vocab_size,
        max_length=spec.max_length,
        model_digest=json.loads((stories_bundle.path / "manifest.json").read_text())["model_digest"],
    )
    worst, mean = check_against_references(stories_bundle, backend, references(shared_data, "stories260K"))
    assert worst < 1e-3 and mean < 1e-4
