"""llama2.c files: float32 weights behind a short header, without names; tokenizer.bin beside them.

Source of both layouts: export.py and run.c of llama2.c, versions 0 (seven numbers) and 1 (magic `ak42`, 256 bytes).
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from evalkit.bundle import ModelSpec
from evalkit.canonical import sha256_file
from trainer.config import count_parameters
from trainer.convert.gguf_tokenizer import sentencepiece_tokenizer
from trainer.convert.hf_tokenizer import TOKENIZER_FILE, read_tokenizer_json
from trainer.convert.mapping import to_ours
from trainer.convert.names import Format
from trainer.convert.pickles import refuse_pickle
from trainer.convert.source import SourceModel, Weights, refusal

_MAGIC, _HEADER_BYTES = 0x616B3432, 256
_NORM_EPS, _THETA = 1e-5, 10000.0
# llama2.c ends a text where the token that begins one comes.
_BOS = 1
_DAMAGED = "take an undamaged copy of the model"
_ADVICE = "of .bin files only llama2.c's are read; convert a pickle to safetensors where you trust it"


@dataclass(frozen=True)
class _Header:
    version: int
    size: int  # bytes
    model: ModelSpec


def read_llama2c(file: Path) -> SourceModel:
    """Read a .bin file of llama2.c; the tokenizer is tokenizer.json beside it, or the one tok*.bin.

    Raises:
        InputError: a pickle, a quantised, foreign or damaged file, or no tokenizer.
    """
    refuse_pickle(file)
    data = file.read_bytes()
    header = _header(file, data)
    tensors = _tensors(file, data, header)
    tokenizer_file, tokenizer_json = _tokenizer(file, header.model.vocab_size)
    return SourceModel(
        name=file.stem,
        model=header.model,
        weights=to_ours(file, Format.LLAMA2C, tensors, header.model),
        tokenizer_json=tokenizer_json,
        prefix_token=_BOS,
        end_token=_BOS,
        chat_template=None,
        origin={
            "format": f"{Format.LLAMA2C.value} version {header.version}",
            "files": {part.name: sha256_file(part) for part in (file, tokenizer_file)},
        },
    )


def _header(file: Path, data: bytes) -> _Header:
    if len(data) < 28:
        raise refusal(file, "not a llama2.c file", _ADVICE)
    version, size, shared = 0, 28, True
    numbers = struct.unpack("<7i", data[:28])
    if struct.unpack("<I", data[:4])[0] == _MAGIC:
        version, size = struct.unpack("<i", data[4:8])[0], _HEADER_BYTES
        if version != 1 or len(data) < size:
            raise refusal(
                file, f"llama2.c version {version}", "only float32 files are read: export version 0 or 1"
            )
        numbers, shared = struct.unpack("<7i", data[8:36]), data[36] == 1
    hidden, inner, layers, heads, kv_heads, vocab_size, length = numbers
    if version == 0:
        # The sign of the vocabulary says whether the head is the embedding.
        shared, vocab_size = vocab_size > 0, abs(vocab_size)
    try:
        spec = ModelSpec(
            family="llama",
            hidden_size=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            intermediate_size=inner,
            vocab_size=vocab_size,
            max_length=length,
            norm="rmsnorm",
            norm_eps=_NORM_EPS,
            positions="rotary",
            rope_theta=_THETA,
            activation="swiglu",
            tied_head=shared,
            parameters=1,
            dtype="float32",
        )
    except ValidationError:
        raise refusal(file, f"not a llama2.c file (its header says {numbers})", _ADVICE) from None
    if hidden % heads or heads % kv_heads or (hidden // heads) % 2:
        raise refusal(file, f"not a llama2.c file (its header says {numbers})", _ADVICE)
    return _Header(version, size, spec.model_copy(update={"parameters": count_parameters(spec)}))


def _tensors(file: Path, data: bytes, header: _Header) -> Weights:
    model = header.model
    hidden, inner, layers = model.hidden_size, model.intermediate_size, model.layers
    kv_size, vocabulary = model.kv_heads * model.head_size, model.vocab_size
    norms = {"rms_att": (layers, hidden), "rms_ffn": (layers, hidden), "rms_final": (hidden,)}
    matrices = {
        "wq": (layers, hidden, hidden),
        "wk": (layers, kv_size, hidden),
        "wv": (layers, kv_size, hidden),
        "wo": (layers, hidden, hidden),
        "w1": (layers, inner, hidden),
        "w2": (layers, hidden, inner),
        "w3": (layers, inner, hidden),
    }
    shapes: dict[str, tuple[int, ...]] = norms | {"token_embedding": (vocabulary, hidden)} | matrices
    if header.version == 0:
        order = [
            "token_embedding",
            "rms_att",
            "wq",
            "wk",
            "wv",
            "wo",
            "rms_ffn",
            "w1",
            "w2",
            "w3",
            "rms_final",
        ]
        shapes = {name: shapes[name] for name in order}
        shapes |= dict.fromkeys(("freq_cos", "freq_sin"), (model.max_length, model.head_size // 2))
    if not model.tied_head:
        shapes["wcls"] = (vocabulary, hidden)

    wanted = header.size + 4 * sum(math.prod(shape) for shape in shapes.values())
    if len(data) != wanted:
        raise refusal(file, f"{len(data)} bytes, its header asks for {wanted}", _DAMAGED)
    numbers = np.frombuffer(data, dtype="<f4", offset=header.size)
    found, place = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        found[name] = numbers[place : place + size].reshape(shape)
        place += size
    if header.version == 0:
        _check_angles(file, found.pop("freq_cos"), found.pop("freq_sin"), model)
    layered = {"rms_att", "rms_ffn", *matrices}
    tensors: Weights = {name: value for name, value in found.items() if name not in layered}
    return tensors | {f"{name}.{layer}": found[name][layer] for name in layered for layer in range(layers)}


def _check_angles(
    file: Path, cosines: npt.NDArray[np.float32], sines: npt.NDArray[np.float32], model: ModelSpec
) -> None:
    # run.c computes the angles anew, with base 10000: a file trained with another base would speak nonsense there too.
    frequency = _THETA ** (-np.arange(0, model.head_size, 2) / model.head_size)
    angles = np.outer(np.arange(model.max_length), frequency)
    if np.abs(cosines - np.cos(angles)).max() > 1e-2 or np.abs(sines - np.sin(angles)).max() > 1e-2:
        raise refusal(
            file, f"its rotary angles aren't those of base {_THETA:.0f}", "convert the model it was made from"
        )


def _tokenizer(file: Path, size: int) -> tuple[Path, bytes]:
    ready = file.with_name(TOKENIZER_FILE)
    if ready.is_file():
        return ready, read_tokenizer_json(ready)
    found = sorted(file.parent.glob("tok*.bin"))
    if len(found) != 1:
        problem = f"{len(found)} files tok*.bin" if found else "no tokenizer"
        raise refusal(
            file.parent, problem, f"lay {TOKENIZER_FILE} or llama2.c's one tokenizer.bin beside the weights"
        )
    tokens, scores = _vocabulary(found[0], size)
    return found[0], sentencepiece_tokenizer(found[0], tokens, scores, unknown=0, space_first=True)


def _vocabulary(file: Path, size: int) -> tuple[list[str], list[float]]:
    data, place = file.read_bytes(), 4  # the length of the longest token stands first
    tokens, scores = [], []
    try:
        while place < len(data):
            score, length = struct.unpack_from("<fi", data, place)
            raw = data[place + 8 : place + 8 + length]
            if length < 0 or len(raw) != length:
                raise ValueError
            place += 8 + length
            tokens.append(raw.decode())
            scores.append(score)
    except (struct.error, ValueError):
        raise refusal(file, "not a tokenizer of llama2.c", "take an undamaged copy of it") from None
    if len(tokens) != size:
        raise refusal(
            file,
            f"{len(tokens)} tokens, the model has {size}",
            "tokenizer and weights belong to different models",
        )
    # The file has no place for what a token is for: 0 is unknown, 1 and 2 frame a text.
    return ["<unk>", "<s>", "</s>", *(token.replace(" ", "\u2581") for token in tokens[3:])], scores
