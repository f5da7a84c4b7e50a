"""A model that nobody here trained, against log-probabilities that nobody here computed."""

import json

import numpy as np
import pytest

from tests.trainer.models import tensors
from trainer.config import ModelConfig
from trainer.export.graphs import ScoreGraph, export_mindir, load_mindir, score_ports
from trainer.model.decoder import CausalLM
from trainer.model.weights import load_weights


@pytest.fixture(scope="module")
def stories(shared_data, tmp_path_factory):
    """Its items, and its score graph loaded from a MindIR."""
    folder = shared_data / "models" / "stories260K"
    config = json.loads((folder / "hf" / "config.json").read_text())
    spec = ModelConfig(
        family="llama",
        hidden_size=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        intermediate_size=config["intermediate_size"],
        max_length=config["max_position_embeddings"],
        norm_eps=config["rms_norm_eps"],
        tied_head=config["tie_word_embeddings"],
    ).spec(config["vocab_size"])
    assert spec.parameters == 260_032
    model = CausalLM(spec)
    load_weights(model, folder / "hf" / "model.safetensors")
    file, ports = tmp_path_factory.mktemp("stories") / "score.mindir", score_ports()[0]
    export_mindir(ScoreGraph(model, spec), ports, file)
    return json.loads((folder / "reference.json").read_text())["items"], load_mindir(file, ports)


def test_log_probabilities_equal_the_reference(stories):
    items, graph = stories
    worst = 0.0
    for item in items:
        ids = np.array([item["token_ids"]], np.int32)
        length = ids.shape[1] - 1
        positions = np.arange(length, dtype=np.int32)[None]
        rows = tensors(ids[:, :-1].copy(), ids[:, 1:].copy(), positions, np.ones_like(positions))
        logprob, _, _, _, top_id = (output.asnumpy()[0] for output in graph(*rows))
        worst = max(worst, float(np.abs(logprob - np.array(item["logprobs"])).max()))
        assert np.mean(top_id == np.array(item["argmax_ids"])) > 0.99
    assert worst < 1e-4


def test_e06_e08_packed_rows_give_the_same_numbers(stories):
    """All texts packed one behind the other into one row: nobody sees a neighbour."""
    items, graph = stories
    pieces = [np.array(item["token_ids"], np.int32) for item in items]
    token_ids = np.concatenate([ids[:-1] for ids in pieces])[None]
    targets = np.concatenate([ids[1:] for ids in pieces])[None]
    positions = np.concatenate([np.arange(len(ids) - 1, dtype=np.int32) for ids in pieces])[None]
    segments = np.concatenate([np.full(len(ids) - 1, n + 1, np.int32) for n, ids in enumerate(pieces)])[None]
    logprob = graph(*tensors(token_ids, targets, positions, segments))[0].asnumpy()[0]
    expected = np.concatenate([item["logprobs"] for item in items])
    assert np.abs(logprob - expected).max() < 1e-4
