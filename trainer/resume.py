"""Which checkpoint a resumed run goes on from."""

from pathlib import Path
from typing import Any

import orjson

from evalkit.errors import InputError
from trainer.checkpoint import Checkpoint, read_checkpoint, saved_steps, step_folder
from trainer.config import TrainConfig
from trainer.data.pipeline import TrainingData

# What may change between two parts of a run: none of it touches what the first part computed, or how.
_FREE = ("out", "callbacks", "checkpoints", "evaluation", "on_nan", "profile")


def find_checkpoint(out: Path, config: TrainConfig, data: TrainingData, digest: str) -> Checkpoint | None:
    """The newest whole checkpoint of a run folder; None where there is none at all.

    A damaged checkpoint is passed over and named in `Checkpoint.passed_over`; a foreign one is an error, because what
    the user meant is then unclear.

    Args:
        out: the run folder.
        config, data: of this run.
        digest: SHA-256 of the tokenizer's file.

    Raises:
        InputError: the newest whole checkpoint belongs to another configuration or other data, or none is whole.
    """
    damage: list[str] = []
    foreign: str | None = None
    for step in reversed(saved_steps(out)):
        try:
            checkpoint = read_checkpoint(step_folder(out, step))
        except InputError as error:
            damage.append(str(error))
            continue
        problem = _difference(checkpoint, config, data, digest)
        if problem is None and foreign is None:
            return Checkpoint(checkpoint.path, checkpoint.meta, passed_over=tuple(damage))
        if problem is None:
            raise InputError(
                f"{foreign}; {checkpoint.path.name} is the newest that fits: remove the later ones to go on from it"
            )
        foreign = foreign or f"{checkpoint.path}: {problem}"
    if foreign is not None:
        raise InputError(f"{foreign}; restore what was, or train into another folder")
    if damage:
        raise InputError(f"{damage[0]} (no checkpoint of this run is whole; remove {out} to begin anew)")
    return None


def _difference(checkpoint: Checkpoint, config: TrainConfig, data: TrainingData, digest: str) -> str | None:
    """Why a run can't go on from a checkpoint; None where it can."""
    meta = checkpoint.meta
    if meta.resume is None:
        return "holds no optimizer state (a converted model), a run can't go on from it"
    wanted = orjson.loads(orjson.dumps(config.model_dump()))
    if field := _first_difference(meta.config, wanted, ()):
        old, new = (_value(side, field) for side in (meta.config, wanted))
        return f"was trained with {'.'.join(field)} {_shown(old)}, the configuration says {_shown(new)}"
    if meta.training.get("data_sha256") != data.train_sha256:
        return "was trained on other data (the SHA-256 of a file of data.train differs)"
    if meta.training.get("validation_sha256") != data.validation_sha256:
        return "was trained with other validation data (the SHA-256 of a file of data.validation differs)"
    if meta.tokenizer.sha256 != digest:
        return "has another tokenizer"
    return None


def _first_difference(old: Any, new: Any, field: tuple[str, ...]) -> tuple[str, ...]:
    if old == new:
        return ()
    if not isinstance(old, dict) or not isinstance(new, dict):
        return field
    for name in sorted({*old, *new}):
        if not field and name in _FREE:
            continue
        if name not in old or name not in new:
            return (*field, name)
        if found := _first_difference(old[name], new[name], (*field, name)):
            return found
    return ()


def _value(side: Any, field: tuple[str, ...]) -> Any:
    for name in field:
        side = side.get(name, "nothing") if isinstance(side, dict) else side
    return side


def _shown(value: Any) -> str:
    return f"{value!s:.60}"
