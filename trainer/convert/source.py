"""What every reader of a foreign format gives, and the checks they share."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evalkit.bundle import ModelSpec
from evalkit.errors import InputError

Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class SourceModel:
    """A model read from a foreign format, in the terms of this project.

    Attributes:
        name: for reports.
        model: the architecture.
        weights: float32, by the names of `CausalLM`, exactly those that the architecture has.
        tokenizer_json: a Hugging Face `tokenizers` file.
        prefix_token: the BOS that the tokenizer puts before a text, or None.
        end_token: ends a text or a turn, or None.
        chat_template: Jinja, or None.
        origin: format, files and their digests, for the record.
    """

    name: str
    model: ModelSpec
    weights: Weights
    tokenizer_json: bytes
    prefix_token: int | None
    end_token: int | None
    chat_template: str | None
    origin: dict[str, Any]


def refusal(where: object, problem: str, advice: str) -> InputError:
    """The one line that a user reads: what is wrong, where, what to do."""
    return InputError(f"{where}: {problem}; {advice}")


def weight_shapes(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a Llama decoder; matrices are (outputs, inputs)."""
    hidden, inner, kv_size = model.hidden_size, model.intermediate_size, model.kv_heads * model.head_size
    projections = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (model.vocab_size, hidden)}
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}."
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        for name, shape in projections.items():
            shapes[f"{prefix}{name}.weight"] = shape
            if model.bias:
                shapes[f"{prefix}{name}.bias"] = shape[:1]
    shapes["model.norm.weight"] = (hidden,)
    if not model.tied_head:
        shapes["lm_head.weight"] = (model.vocab_size, hidden)
    return shapes


def check_weights(where: object, weights: Weights, model: ModelSpec) -> None:
    """Refuse weights that aren't exactly those of the architecture.

    Raises:
        InputError: names the missing, surplus, misshapen or undefined weight.
    """
    expected = weight_shapes(model)
    _check_names(where, expected, weights)
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise refusal(
                where,
                f"{name}: shape {weights[name].shape}, its configuration asks for {shape}",
                "weights and configuration belong to different models",
            )
        if not np.isfinite(weights[name]).all():
            raise refusal(where, f"{name}: holds NaN or infinity", "take an undamaged copy of the model")


def _check_names(where: object, expected: Iterable[str], found: Iterable[str]) -> None:
    if missing := sorted(set(expected) - set(found)):
        raise refusal(
            where,
            f"{missing[0]}: weight is missing ({len(missing)} missing in all)",
            "take a complete copy of the model",
        )
    if surplus := sorted(set(found) - set(expected)):
        raise refusal(
            where,
            f"{surplus[0]}: weight is unknown to a Llama decoder ({len(surplus)} unknown in all)",
            "the model has parts that this version doesn't compute",
        )
