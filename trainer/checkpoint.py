"""Checkpoints: folders that hold everything needed to export or use the model as it was at one step."""

import io
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evalkit.bundle import TOKEN_COUNTS, TOKENIZER, WEIGHTS, WORD_COUNTS, FileSpec, ModelSpec, TokenizerSpec
from evalkit.canonical import sha256_bytes
from evalkit.errors import InputError
from evalkit.files import folder_atomic, write_json_atomic

SCHEMA = "trainer.checkpoint/1"
META = "checkpoint.json"
PROBE = "probe.npz"
STATE = "state.safetensors"

_STEP_FOLDER = re.compile(r"step-([1-9]\d*)", re.ASCII)
_CONDEMNED = ".removed-"


class ResumeState(BaseModel):
    """Where a run stood, beside the tensors of state.safetensors.

    Attributes:
        step: steps done.
        epoch, batch: the place in the data after the last batch that was trained on.
        tokens, elapsed_ns: as in the last line of the log.
        updates: steps that weren't skipped.
        skipped_in_a_row: the last steps that were.
        loss_scale, loss_scale_counter: of the dynamic loss scale.
        best_step, best_value: the best validation so far.
        random: the scalars of the random number generators.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int
    epoch: int
    batch: int
    tokens: int
    elapsed_ns: int
    updates: int
    skipped_in_a_row: int
    loss_scale: float
    loss_scale_counter: int
    best_step: int | None
    best_value: float | None
    random: dict[str, float | None]


class CheckpointMeta(BaseModel):
    """`checkpoint.json`; `resume` is null where there is nothing to go on from (a converted model)."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["trainer.checkpoint/1"] = Field(default="trainer.checkpoint/1", alias="schema")
    name: str
    model: ModelSpec
    tokenizer: TokenizerSpec
    training: dict[str, Any]
    config: dict[str, Any]
    files: dict[str, FileSpec]
    resume: ResumeState | None = None


@dataclass(frozen=True)
class Probe:
    """Rows of real text on which an export is compared with its checkpoint; int32 [rows, length] each."""

    token_ids: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    segments: npt.NDArray[np.int32]

    @property
    def tokens(self) -> int:
        """Positions that aren't padding."""
        return int(np.count_nonzero(self.segments))

    def to_bytes(self) -> bytes:
        """An .npz archive; equal rows give equal bytes."""
        stream = io.BytesIO()
        np.savez_compressed(stream, **vars(self))
        return stream.getvalue()


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint folder. Get it from `read_checkpoint`, never directly.

    `passed_over` says what is wrong with later ones, where a search went past them.
    """

    path: Path
    meta: CheckpointMeta
    passed_over: tuple[str, ...] = ()

    @property
    def probe(self) -> Probe:
        """The rows for parity measurements."""
        with np.load(self.path / PROBE, allow_pickle=False) as archive:
            return Probe(
                **{name: archive[name] for name in ("token_ids", "targets", "positions", "segments")}
            )


@dataclass(frozen=True)
class RunFiles:
    """What stays the same in all checkpoints of a run; a converted model has no training frequencies."""

    name: str
    model: ModelSpec
    tokenizer: TokenizerSpec
    config: dict[str, Any]
    tokenizer_json: bytes
    token_counts: bytes | None
    word_counts: bytes | None
    probe: Probe

    def write(
        self,
        folder: Path,
        weights: bytes,
        training: dict[str, Any],
        state: tuple[ResumeState, bytes] | None = None,
    ) -> None:
        """Write the checkpoint folder; it appears whole or not at all.

        Args:
            folder: must not exist.
            weights: weights.safetensors.
            training: facts about the training.
            state: what a run needs to go on from here, and its state.safetensors.
        """
        contents = {WEIGHTS: weights, TOKENIZER: self.tokenizer_json, PROBE: self.probe.to_bytes()}
        counts = {TOKEN_COUNTS: self.token_counts, WORD_COUNTS: self.word_counts}
        contents |= {name: data for name, data in counts.items() if data is not None}
        if state is not None:
            contents[STATE] = state[1]
        files = {
            name: FileSpec(sha256=sha256_bytes(data), bytes=len(data)) for name, data in contents.items()
        }
        meta = CheckpointMeta(
            name=self.name,
            model=self.model,
            tokenizer=self.tokenizer,
            training=training,
            config=self.config,
            files=files,
            resume=None if state is None else state[0],
        )
        with folder_atomic(folder) as staging:
            for name, data in contents.items():
                (staging / name).write_bytes(data)
            write_json_atomic(staging / META, meta.model_dump(by_alias=True))


def step_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of a step lies in a run folder."""
    return run / "checkpoints" / f"step-{step}"


def saved_steps(run: Path) -> list[int]:
    """Steps that have a checkpoint in the run folder, ascending."""
    folder = run / "checkpoints"
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for name in names if (match := _STEP_FOLDER.fullmatch(name)))


def kept_checkpoint(run: Path) -> str:
    """What a run that ends early leaves behind, in words."""
    saved = saved_steps(run)
    return f"the last checkpoint is step-{saved[-1]}" if saved else "there is no checkpoint yet"


def prune(run: Path, keep_last: int, best: int | None) -> None:
    """Remove all checkpoints but the last few and the best."""
    for step in saved_steps(run)[:-keep_last]:
        if step != best:
            remove_step(run, step)


def remove_step(run: Path, step: int) -> None:
    """Remove a step's checkpoint, if there is one; an interruption leaves no half of it under its name."""
    folder = step_folder(run, step)
    if folder.exists():
        condemned = folder.with_name(f"{_CONDEMNED}{folder.name}")
        shutil.rmtree(condemned, ignore_errors=True)
        folder.rename(condemned)
        shutil.rmtree(condemned)


def remove_leftovers(run: Path) -> None:
    """Remove what a killed process left half-written or half-removed."""
    for entry in (run / "checkpoints").glob(".*step-*"):
        shutil.rmtree(entry, ignore_errors=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """Verify a checkpoint: a `step-N` folder, or a run folder (then its last step).

    Raises:
        InputError: missing, incomplete or corrupt; the message names the file.
    """
    if not path.is_dir():
        raise InputError(f"{path}: no such checkpoint folder; make one with `trainer train CONFIG.yaml`")
    folder = path
    if not (path / META).is_file():
        steps = saved_steps(path)
        if not steps:
            raise InputError(
                f"{path}: neither a checkpoint nor a run with checkpoints; train with `trainer train` first"
            )
        folder = step_folder(path, steps[-1])
    meta = _read_meta(folder / META)
    for name in {WEIGHTS, TOKENIZER, PROBE, *meta.files}:
        _check_file(folder / name, meta.files.get(name))
    return Checkpoint(path=folder, meta=meta)


def _read_meta(file: Path) -> CheckpointMeta:
    try:
        return CheckpointMeta.model_validate(orjson.loads(file.read_bytes()))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); take another checkpoint") from None
    except orjson.JSONDecodeError as error:
        raise InputError(
            f"{file}:{error.lineno}: broken JSON: {error.msg}; take another checkpoint"
        ) from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in problem["loc"])
        raise InputError(f"{file}: {field}: {problem['msg']}; take another checkpoint") from None


def _check_file(file: Path, spec: FileSpec | None) -> None:
    if spec is None or not file.is_file():
        raise InputError(f"{file}: missing; the checkpoint is incomplete, take another one")
    if sha256_bytes(file.read_bytes()) != spec.sha256:
        raise InputError(f"{file}: SHA-256 differs from {META}; the checkpoint is corrupt, take another one")
