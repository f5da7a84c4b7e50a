"""Weights of a Hugging Face folder: one safetensors file, or shards with an index."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson
from safetensors import SafetensorError, deserialize

from trainer.convert.source import Weights, refusal

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold a folder's weights; the index names each weight's file.

    Raises:
        InputError: none, pickled weights instead, or an index that names files outside the folder or absent.
    """
    if (folder / INDEX).is_file():
        return _shards(folder)
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickled:
        raise refusal(
            folder / pickled[0],
            "a pickle, and unpickling runs code",
            f"convert it to safetensors where you trust it and lay {SINGLE} into the folder",
        )
    raise refusal(folder, f"neither {SINGLE} nor {INDEX}", "take a complete copy of the model")


def read_weights(folder: Path) -> Weights:
    """All weights of a folder as float32, by the names in its files.

    Raises:
        InputError: a broken file, a repeated name, a weight that the index has elsewhere, or one that isn't of a float type.
    """
    files = weight_files(folder)
    weights: Weights = {}
    for file in files:
        for name, value in _read_file(file).items():
            if name in weights:
                raise refusal(
                    file, f"{name}: weight appears in two files", "take an undamaged copy of the model"
                )
            weights[name] = value
    if (folder / INDEX).is_file():
        listed = set(_index(folder / INDEX))
        if lost := sorted(listed - set(weights)):
            raise refusal(
                folder / INDEX,
                f"{lost[0]}: weight is in none of the files",
                "take a complete copy of the model",
            )
    return weights


def _shards(folder: Path) -> list[Path]:
    names = sorted(set(_index(folder / INDEX).values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise refusal(
                folder / INDEX,
                f"names the file {name!r}",
                "only safetensors files of the folder itself are read; don't trust this model",
            )
        if not (folder / name).is_file():
            raise refusal(
                folder / name, "missing, though the index lists it", "take a complete copy of the model"
            )
    return [folder / name for name in names]


def _index(file: Path) -> dict[str, str]:
    try:
        found = orjson.loads(file.read_bytes())["weight_map"]
        return {str(name): str(place) for name, place in found.items()}
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise refusal(
            file, "not an index with a `weight_map`", "take an undamaged copy of the model"
        ) from None


def _read_file(file: Path) -> Weights:
    try:
        entries = deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    except (SafetensorError, OSError) as error:
        raise refusal(
            file, f"not a safetensors file ({error})", "take an undamaged copy of the model"
        ) from None
    return {name: _to_float32(file, name, entry) for name, entry in entries}


def _to_float32(file: Path, name: str, entry: dict[str, object]) -> npt.NDArray[np.float32]:
    kind, data, shape = str(entry["dtype"]), entry["data"], entry["shape"]
    assert isinstance(data, bytes | bytearray) and isinstance(shape, list)
    if kind == "BF16":
        # bfloat16 is the upper half of a float32.
        halves = np.frombuffer(data, dtype="<u2").astype(np.uint32)
        return (halves << np.uint32(16)).view(np.float32).reshape(shape)
    if kind not in _FLOATS:
        raise refusal(
            file,
            f"{name}: weights of type {kind}",
            "only float types are read; take the unquantised model, or a GGUF file",
        )
    return np.frombuffer(data, dtype=_FLOATS[kind]).astype(np.float32).reshape(shape)
