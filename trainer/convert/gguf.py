"""Llama-family GGUF files (the format of llama.cpp), read with the `gguf` package."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from evalkit.bundle import ModelSpec
from evalkit.canonical import sha256_file
from trainer.config import count_parameters
from trainer.convert.gguf_tokenizer import GgufTokenizer, read_tokenizer
from trainer.convert.mapping import to_ours
from trainer.convert.names import Format
from trainer.convert.source import SourceModel, Weights, refusal

if TYPE_CHECKING:
    from gguf import GGUFReader


class Metadata:
    """The key-value part of a GGUF file, with errors that name the key."""

    def __init__(self, file: Path, reader: "GGUFReader") -> None:
        self.file = file
        self._fields = reader.fields

    def get(self, key: str) -> Any:
        """The value of a key, or None."""
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def need(self, key: str) -> Any:
        """The value of a key that must be there."""
        value = self.get(key)
        if value is None:
            raise refusal(self.file, f"{key}: missing", "take an undamaged copy of the model")
        return value


def read_gguf(file: Path) -> SourceModel:
    """Read a GGUF file: weights dequantised to float32, tokenizer and chat template from its metadata.

    Raises:
        InputError: the `gguf` package isn't installed, the file is damaged, or its architecture isn't computed here.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise refusal(file, "reading GGUF needs the package gguf", 'pip install "evalkit[convert]"') from None
    try:
        reader = GGUFReader(file)
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as error:
        raise refusal(file, f"not a GGUF file ({error})", "take an undamaged copy of the model") from None
    metadata = Metadata(file, reader)
    architecture = metadata.need("general.architecture")
    if architecture != "llama":
        raise refusal(file, f"architecture {architecture!r} isn't supported", "only `llama` can be converted")
    tokenizer = read_tokenizer(metadata.get, file)
    names = [str(tensor.name) for tensor in reader.tensors]
    model = _model(metadata, names, tokenizer)
    return SourceModel(
        name=str(metadata.get("general.name") or file.stem),
        model=model,
        weights=to_ours(file, Format.GGUF, _tensors(file, reader), model),
        tokenizer_json=tokenizer.json,
        prefix_token=tokenizer.prefix_token,
        end_token=tokenizer.end_token,
        chat_template=tokenizer.chat_template,
        origin={"format": "gguf", "files": {file.name: sha256_file(file)}},
    )


def _model(metadata: Metadata, names: list[str], tokenizer: GgufTokenizer) -> ModelSpec:
    file = metadata.file
    if metadata.get("llama.expert_count"):
        raise refusal(file, "a mixture of experts", "only dense Llama decoders can be converted")
    scaling = metadata.get("llama.rope.scaling.type")
    if scaling not in (None, "none") or "rope_freqs.weight" in names:
        raise refusal(file, "its rotary positions are scaled", "only unscaled rotary positions are computed")
    heads, hidden = metadata.need("llama.attention.head_count"), metadata.need("llama.embedding_length")
    turned = metadata.get("llama.rope.dimension_count")
    widths = {
        turned,
        metadata.get("llama.attention.key_length"),
        metadata.get("llama.attention.value_length"),
    }
    if hidden % heads or widths - {None, hidden // heads}:
        raise refusal(
            file,
            f"heads aren't {hidden} / {heads} wide, or are turned in part",
            "this version computes heads of equal share, wholly turned",
        )
    try:
        spec = ModelSpec(
            family="llama",
            hidden_size=hidden,
            layers=metadata.need("llama.block_count"),
            heads=heads,
            kv_heads=metadata.get("llama.attention.head_count_kv") or heads,
            intermediate_size=metadata.need("llama.feed_forward_length"),
            vocab_size=tokenizer.size,
            max_length=metadata.need("llama.context_length"),
            norm="rmsnorm",
            norm_eps=_shortest(metadata.need("llama.attention.layer_norm_rms_epsilon")),
            positions="rotary",
            rope_theta=_shortest(metadata.get("llama.rope.freq_base") or 10000.0),
            activation="swiglu",
            tied_head="output.weight" not in names,
            bias="blk.0.attn_q.bias" in names,
            parameters=1,
            dtype="float32",
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise refusal(
            file, f"{problem['loc'][0]}: {problem['msg']}", "take an undamaged copy of the model"
        ) from None
    return spec.model_copy(update={"parameters": count_parameters(spec)})


def _shortest(value: float) -> float:
    # GGUF stores float32; 1e-5 stands there as 9.99999974e-06 and is meant as 1e-5.
    return float(str(np.float32(value)))


def _tensors(file: Path, reader: "GGUFReader") -> Weights:
    from gguf import quants

    tensors: Weights = {}
    for tensor in reader.tensors:
        try:
            value = np.asarray(quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except NotImplementedError:
            raise refusal(
                file,
                f"{tensor.name}: type {tensor.tensor_type.name} can't be dequantised",
                "take the model in another quantisation",
            ) from None
        tensors[str(tensor.name)] = value
    return tensors
