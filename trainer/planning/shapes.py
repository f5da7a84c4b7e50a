"""A decoder-only transformer by its numbers, as far as memory and time depend on them."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from evalkit.errors import InputError
from evalkit.files import read_text
from trainer.configuration.strict import Strict

# Far above any model, so that a slip of the keyboard is told as one and not as a table of 20 digits.
Width = Annotated[int, Field(gt=0, le=1 << 24)]
Heads = Annotated[int, Field(gt=0, le=1 << 16)]
Vocabulary = Annotated[int, Field(gt=1, le=1 << 26)]
Length = Annotated[int, Field(gt=1, le=1 << 27)]
# Names of decoders whose layers are of these two kinds: gated with RMSNorm and rotary positions, or GPT-2's.
_GATED = ("llama", "mistral", "qwen2", "qwen3")
_TAKE_NUMBERS = "give the model by its numbers (hidden_size, layers, heads, ...) instead"


class ModelShape(Strict):
    """What is left out follows the common habit of gated (llama) models.

    Attributes:
        kv_heads: heads of keys and values; fewer than `heads` is grouped-query attention.
        head_size: width of a head; default hidden_size / heads.
        intermediate_size: width of the feed-forward part.
        vocab_size: with padding, as it lies in memory.
        bias: biases in all matrices and norms; `qkv_bias` on queries, keys and values only.
        qk_norm: each head's queries and keys are normed (Qwen3).
    """

    hidden_size: Width
    layers: int = Field(gt=0, le=4096)
    heads: Heads
    kv_heads: Heads | None = None
    head_size: Width | None = None
    intermediate_size: Width
    vocab_size: Vocabulary
    max_length: int = Field(default=4096, gt=1, le=1 << 40)
    activation: Literal["swiglu", "gelu"] = "swiglu"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    positions: Literal["rotary", "learned"] = "rotary"
    tied_head: bool = False
    bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    @model_validator(mode="after")
    def _heads_fit(self) -> "ModelShape":
        if self.head_size is None and self.hidden_size % self.heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} isn't a multiple of heads {self.heads}; give head_size"
            )
        if self.heads % self.kv_head_count:
            raise ValueError(f"heads {self.heads} isn't a multiple of kv_heads {self.kv_heads}")
        return self

    @property
    def kv_head_count(self) -> int:
        """Heads of keys, and of values."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.head_size or self.hidden_size // self.heads

    @property
    def query_size(self) -> int:
        """Width of all queries together."""
        return self.heads * self.head_width

    @property
    def kv_size(self) -> int:
        """Width of all keys (or all values) together."""
        return self.kv_head_count * self.head_width

    @property
    def up_matrices(self) -> int:
        """Matrices from the hidden to the intermediate width: gate and up, or one."""
        return 2 if self.activation == "swiglu" else 1


def read_huggingface_shape(path: Path) -> ModelShape:
    """The shape in a Hugging Face config.json (or the folder that holds one).

    Raises:
        InputError: no such file, a value is missing or wrong, or an architecture whose layers aren't known here.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _read_json(file)
    kind = str(config.get("model_type") or "")
    if any(config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts")):
        raise InputError(f"{file}: a mixture of experts, whose layers aren't counted; take a dense model")
    try:
        if kind == "gpt2":
            return _gpt2(config)
        if kind in _GATED:
            return _gated(config, kind)
    except KeyError as error:
        raise InputError(f"{file}: {error.args[0]}: missing; {_TAKE_NUMBERS}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{file}: {where + ': ' if where else ''}{first['msg']}; {_TAKE_NUMBERS}") from None
    raise InputError(
        f"{file}: model_type {kind!r} isn't one of {', '.join((*_GATED, 'gpt2'))}; {_TAKE_NUMBERS}"
    )


def _read_json(file: Path) -> dict[str, Any]:
    # The reader of `trainer convert` says the same, but its package loads MindSpore.
    try:
        config = json.loads(read_text(file))
    except RecursionError:
        raise InputError(f"{file}: broken JSON (nested too deeply); take an undamaged copy") from None
    except ValueError as error:
        raise InputError(f"{file}: broken JSON ({error}); take an undamaged copy") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: not a JSON object; give a model's config.json")
    return config


def _gated(config: dict[str, Any], kind: str) -> ModelShape:
    return ModelShape(
        hidden_size=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config.get("num_key_value_heads"),
        head_size=config.get("head_dim"),
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_length=config.get("max_position_embeddings", 4096),
        tied_head=_flag(config, "tie_word_embeddings", default=False),
        # Qwen2's biases stand in no key of its configuration.
        qkv_bias=kind == "qwen2" or _flag(config, "attention_bias", default=False),
        qk_norm=kind == "qwen3",
    )


def _flag(config: dict[str, Any], name: str, *, default: bool) -> Any:
    # Passed on as it is: of "false" bool() would make True.
    value = config.get(name)
    return default if value is None else value


def _gpt2(config: dict[str, Any]) -> ModelShape:
    width = config["n_embd"]
    return ModelShape(
        hidden_size=width,
        layers=config["n_layer"],
        heads=config["n_head"],
        intermediate_size=config.get("n_inner") or (4 * width if isinstance(width, int) else width),
        vocab_size=config["vocab_size"],
        max_length=config.get("n_positions") or config["n_ctx"],
        activation="gelu",
        norm="layernorm",
        positions="learned",
        tied_head=_flag(config, "tie_word_embeddings", default=True),
        bias=True,
    )
