"""Faults of public harnesses around loading a model and calling it: BOS, batch size, a model that is being trained."""

import numpy as np
import pytest

from evalkit.backends.checkpoint import CheckpointBackend
from evalkit.backends.choice import open_backend
from tests.support.real_models import references
from tests.trainer.models import packed_rows, small_spec


def test_e13_e14_a_converted_model_gets_its_bos_exactly_once(stories_bundle, shared_data):
    """The tokenizer adds none by itself and the window adds the model's own: perplexity 3.9, not thousands."""
    tokenizer = stories_bundle.tokenizer
    for item in references(shared_data, "stories260K"):
        ids = tokenizer.encode(item["text"]).ids.tolist()
        assert [tokenizer.prefix_token, *ids] == item["token_ids"]
        assert ids.count(tokenizer.prefix_token) == 0


@pytest.mark.parametrize("name", ["mindir", "onnx"])
def test_e52_batch_size_and_padding_move_no_text_by_more_than_1e_6(stories_bundle, shared_data, name):
    """Each text alone in a row that fits it, beside all of them in one batch of padded rows."""
    backend = open_backend(name, stories_bundle)
    items = references(shared_data, "stories260K")
    length = max(len(item["token_ids"]) for item in items) + 20
    token_ids, targets, positions, segments = (np.zeros((len(items), length), np.int32) for _ in range(4))
    for row, item in enumerate(items):
        ids = np.array(item["token_ids"], np.int32)
        token_ids[row, : len(ids) - 1], targets[row, : len(ids) - 1] = ids[:-1], ids[1:]
        positions[row, : len(ids) - 1], segments[row, : len(ids) - 1] = np.arange(len(ids) - 1), 1
    together = backend.score(token_ids, targets, positions, segments).logprob
    for row, item in enumerate(items):
        place = (slice(row, row + 1), slice(0, len(item["token_ids"]) - 1))
        alone = backend.score(*(field[place].copy() for field in (token_ids, targets, positions, segments)))
        sums = [part.astype(np.float64).sum() for part in (alone.logprob, together[place])]
        assert sums[0] == pytest.approx(sums[1], rel=1e-6), item["kind"]


@pytest.mark.parametrize("training", [True, False])
def test_e50_scoring_puts_back_the_mode_of_every_part(training):
    """Dropout is off while scoring; afterwards each cell is in the mode it had, not in a common one."""
    from mindspore import Tensor

    from trainer.model.decoder import CausalLM

    spec = small_spec("llama")
    model, generator = CausalLM(spec, dropout=0.5), np.random.default_rng(0)
    for parameter in model.get_parameters():
        parameter.set_data(Tensor(generator.normal(0, 0.3, parameter.shape).astype(np.float32)))
    model.set_train(training)
    model.model.layers[0].set_train(not training)
    modes = [cell.training for _, cell in model.cells_and_names()]
    backend = CheckpointBackend(model, vocab_size=spec.vocab_size, max_length=spec.max_length)
    first, second = (backend.score(*packed_rows()).logprob for _ in range(2))
    # Dropout of one half would move them by nats; the operators themselves may move a padded place by an ulp.
    assert np.isfinite(first).all() and np.abs(first - second).max() < 1e-5
    assert [cell.training for _, cell in model.cells_and_names()] == modes
    assert [cell.get_flags()["training"] for _, cell in model.cells_and_names()] == modes
