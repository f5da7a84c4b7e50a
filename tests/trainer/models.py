"""Small models and rows for the tests."""

import numpy as np
from mindspore import Tensor

from evalkit.bundle import ModelSpec
from trainer.config import ModelConfig
from trainer.model.decoder import CausalLM
from trainer.model.weights import weights_of

VOCAB = 40

FAMILIES = {
    "llama": {"family": "llama"},
    "llama-grouped-untied-window": {
        "family": "llama",
        "kv_heads": 2,
        "tied_head": False,
        "attention_window": 3,
    },
    "gpt2": {"family": "gpt2"},
    "gpt2-window": {"family": "gpt2", "attention_window": 2},
    "mixed": {
        "family": "llama",
        "norm": "layernorm",
        "positions": "learned",
        "activation": "gelu",
        "kv_heads": 1,
    },
}


def small_spec(name: str) -> ModelSpec:
    """Two layers of 16, four heads."""
    config = ModelConfig(hidden_size=16, layers=2, heads=4, max_length=24, **FAMILIES[name])
    return config.spec(VOCAB)


def random_model(spec: ModelSpec, seed: int = 0) -> CausalLM:
    """A model whose every parameter, biases and norms included, is random and large enough to matter."""
    random = np.random.default_rng(seed)
    model = CausalLM(spec)
    for parameter in model.get_parameters():
        value = parameter.asnumpy() + random.normal(0, 0.3, parameter.shape)
        parameter.set_data(Tensor(value.astype(np.float32)))
    model.set_train(False)
    return model


def packed_rows(seed: int = 0):
    """Three rows of 12: two texts packed into each, and padding at the end of the last."""
    random = np.random.default_rng(seed)
    token_ids = random.integers(0, VOCAB, (3, 12)).astype(np.int32)
    targets = random.integers(0, VOCAB, (3, 12)).astype(np.int32)
    positions = np.tile(np.r_[np.arange(7), np.arange(5)], (3, 1)).astype(np.int32)
    segments = np.tile(np.r_[np.full(7, 1), np.full(5, 2)], (3, 1)).astype(np.int32)
    token_ids[2, 9:], targets[2, 9:], positions[2, 9:], segments[2, 9:] = 0, 0, 0, 0
    return token_ids, targets, positions, segments


def tensors(*arrays):
    """MindSpore tensors of arrays."""
    return [Tensor(array) for array in arrays]


__all__ = ["FAMILIES", "VOCAB", "packed_rows", "random_model", "small_spec", "tensors", "weights_of"]
