"""The files that hold a folder's weights, and what is in them."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson
from safetensors import SafetensorError, deserialize

from trainer.convert.mindformers import read_mindspore_checkpoint
from trainer.convert.names import canonical, is_weight
from trainer.convert.pickles import pickle_refusal
from trainer.convert.source import Weights, refusal

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# MindFormers' own index: a name and its file, without `weight_map` around them.
_NAME_MAP = "param_name_map.json"

_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
_COMPLETE, _UNDAMAGED = "take a complete copy of the model", "take an undamaged copy of the model"


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights: an index's, model.safetensors, or the only one of its kind.

    Raises:
        InputError: none, several without an index, pickles instead, or an index that names files outside the folder
            or absent.
    """
    for index in (folder / INDEX, folder / _NAME_MAP):
        if index.is_file():
            return _shards(index)
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    for pattern in ("*.safetensors", "*.ckpt"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found
        if found:
            raise refusal(
                folder,
                f"{len(found)} files {pattern} and no index",
                "merge the shards (mindspore.merge_sliced_parameter, mindspore.unified_safetensors), or name one file",
            )
    pickled = sorted(file for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickled:
        raise pickle_refusal(pickled[0])
    raise refusal(folder, f"no {SINGLE}, {INDEX} or *.ckpt", _COMPLETE)


def read_weights(files: list[Path]) -> Weights:
    """All weights of the files as float32, by canonical names; buffers and training state are left out.

    Raises:
        InputError: a broken file, a repeated name, a weight that the index has elsewhere, or one that isn't of a float
            type.
    """
    weights: Weights = {}
    for file in files:
        read = read_mindspore_checkpoint if file.suffix == ".ckpt" else _read_safetensors
        for name, value in read(file).items():
            if name in weights:
                raise refusal(file, f"{name}: weight appears twice", _UNDAMAGED)
            weights[name] = value
    for index in {file.parent / name for file in files for name in (INDEX, _NAME_MAP)}:
        if len(files) > 1 and index.is_file():
            listed = {canonical(name) for name in _index(index) if is_weight(canonical(name))}
            if lost := sorted(listed - set(weights)):
                raise refusal(index, f"{lost[0]}: weight is in none of the files", _COMPLETE)
    return weights


def _shards(index: Path) -> list[Path]:
    names = sorted(set(_index(index).values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise refusal(
                index,
                f"names the file {name!r}",
                "only safetensors files of the folder itself are read; don't trust this model",
            )
        if not (index.parent / name).is_file():
            raise refusal(index.parent / name, "missing, though the index lists it", _COMPLETE)
    if not names:
        raise refusal(index, "lists no weight", _UNDAMAGED)
    return [index.parent / name for name in names]


def _index(file: Path) -> dict[str, str]:
    try:
        content = orjson.loads(file.read_bytes())
        found = content if file.name == _NAME_MAP else content["weight_map"]
        return {str(name): str(place) for name, place in found.items()}
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise refusal(file, "not an index of weights and their files", _UNDAMAGED) from None


def _read_safetensors(file: Path) -> Weights:
    try:
        entries = deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    except (SafetensorError, OSError) as error:
        raise refusal(file, f"not a safetensors file ({error})", _UNDAMAGED) from None
    return {
        canonical(name): _to_float32(file, name, entry)
        for name, entry in entries
        if is_weight(canonical(name))
    }


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
