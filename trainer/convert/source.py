"""What every reader of a foreign format gives."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

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


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file of the source.

    Raises:
        InputError: missing, broken, or something else than an object.
    """
    if not file.is_file():
        raise refusal(file, "no such file", "take a complete copy of the model")
    try:
        content = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise refusal(
            f"{file}:{error.lineno}", f"broken JSON: {error.msg}", "take an undamaged copy of the model"
        ) from None
    if not isinstance(content, dict):
        raise refusal(file, "not a JSON object", "take an undamaged copy of the model")
    return content
