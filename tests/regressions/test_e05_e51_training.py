"""Public faults of training harnesses: E05, E07, E13, E50, E51."""

import numpy as np
import pytest

from tests.trainer.small_training import SmallTraining, read_lines
from trainer.checkpoint import step_folder
from trainer.config import load_config
from trainer.data.documents import Document
from trainer.data.packing import batches, cut, pack
from trainer.data.pipeline import prepare
from trainer.generate import load_generator, prompt_ids
from trainer.loop import train
from trainer.model.weights import load_weights


def test_e05_e51_validation_perplexity_is_over_tokens_and_no_row_is_dropped(training_folder, tiny_run):
    small = SmallTraining(training_folder)
    validation = small.data.validation
    assert len(validation) > 1 and not validation[-1].segments.any(axis=1).all()  # the last batch isn't full
    tokens = sum(batch.weights.sum() for batch in validation)
    documents = prepare(small.config.model_copy(update={"batch_size": 1}), training_folder).validation
    assert sum(batch.weights.sum() for batch in documents) == tokens
    load_weights(small.model, step_folder(tiny_run, 12) / "weights.safetensors")
    one_row_batches = SmallTraining(training_folder, batch_size=1)
    load_weights(one_row_batches.model, step_folder(tiny_run, 12) / "weights.safetensors")
    logged = read_lines(tiny_run / "evaluations.jsonl")[-1]["metrics"][0]["value"]
    assert small.step.perplexity(validation) == logged
    assert one_row_batches.step.perplexity(one_row_batches.data.validation) == pytest.approx(logged, rel=1e-5)


def test_e07_a_genuine_padding_id_is_learned():
    """Padding is told by segment, never by id."""
    document = Document("a", np.array([1, 0, 0, 5], np.int32), np.array([False, True, True, True]))
    batch = next(batches(pack(cut([document], 8), 8, packing=True), 8, 1))
    assert batch.weights.sum() == 3 and batch.tokens == 3


def test_e13_the_prefix_token_stands_once(tiny_export):
    tokenizer = load_generator(tiny_export).tokenizer
    for chat in (True, False):
        assert prompt_ids(tokenizer, "Hello", chat=chat).count(1) == 1


def test_e50_evaluation_with_dropout_leaves_the_training_alone(training_folder, tmp_path):
    config = load_config(training_folder / "config.yaml")
    dropout = config.model.model_copy(update={"dropout": 0.3})
    losses = {}
    for name, evaluation in (("with", config.evaluation.model_copy(update={"every": 2})), ("without", None)):
        changed = config.model_copy(
            update={"model": dropout, "evaluation": evaluation, "checkpoints": None, "steps": 6}
        )
        train(changed, training_folder, tmp_path / name)
        losses[name] = [entry["loss"] for entry in read_lines(tmp_path / name / "log.jsonl")]
    assert losses["with"] == losses["without"]
