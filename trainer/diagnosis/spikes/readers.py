"""Read training logs of MindFormers, Megatron (and DeepSpeed), llm.c, nanoGPT and our own JSON Lines."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from trainer.diagnosis.plog import parse_time
from trainer.diagnosis.spikes.records import LogFormat, TrainingLog, TrainingStep
from trainer.regular_file import require_regular, shown_path, why_not_text

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf|NaN|Inf|NAN|INF)"
_MEGATRON = re.compile(r"\biteration\s+(?P<step>\d{1,15})\s*/\s*\d+\s*\|(?P<rest>.*)")
_MEGATRON_START = re.compile(r"\biteration\s+\d+\s*/\s*\d+")
_FIELDS = re.compile(r"[^|:]+:[^|:]*\|")
_OVERFLOW = re.compile(r"\bOVERFLOW!|overflow detected|Gradient overflow", re.IGNORECASE)
# Brackets get lost in logs in the wild: none of them is required.
_MINDFORMERS = re.compile(
    rf"Epoch\s*:\s*\[?\s*(?P<epoch>\d{{1,9}})\s*/\s*\d+\s*\]?\s*,?\s*step\s*:\s*\[?\s*(?P<step>\d{{1,15}})\s*/\s*(?P<per>\d{{1,15}})\s*\]?\s*,?"
    rf"\s*loss\s*:\s*\[?\s*(?P<loss>{_NUMBER})"
)
_MINDFORMERS_PARTS = {
    "learning_rate": re.compile(rf"\blr\s*:\s*\[?\s*({_NUMBER})"),
    "loss_scale": re.compile(rf"\bloss_scale\s*:\s*\[?\s*({_NUMBER})"),
    "grad_norm": re.compile(rf"\bglobal_norm\s*:\s*\[?\s*({_NUMBER})"),
    "ms": re.compile(rf"\bper_step_time\s*:\s*\[?\s*({_NUMBER})\s*ms"),
}
_OVERFLOW_CONDITION = re.compile(r"overflow cond\s*:\s*\[?\s*(True|False)")
_LLM_C = re.compile(
    rf"^s:(?P<step>\d{{1,15}})\s+trl:(?P<loss>{_NUMBER})(?:\s+lr:(?P<lr>{_NUMBER}))?(?:\s+norm:(?P<norm>{_NUMBER}))?"
)
_NANOGPT = re.compile(
    rf"\bstep:(?P<step>\d{{1,15}})/\d+\s+train_loss:(?P<loss>{_NUMBER})|\biter (?P<iter>\d{{1,15}}): loss (?P<loss2>{_NUMBER})(?:, time (?P<ms>{_NUMBER})ms)?"
)
_LONGEST_LINE = 100_000
_WRAPPED_LINES = 6


@dataclass
class _Counts:
    cut: int = 0
    zero_norms: int = 0
    no_scales: int = 0
    overflow_lines: int = 0


def read_training_log(path: Path | str) -> TrainingLog:
    """Read a log; lines that aren't steps are passed over.

    Raises:
        InputError: missing, a folder, no regular file, unreadable, compressed, empty, no UTF-8 text, or without any step that is recognised.
    """
    path = Path(path)
    counts = _Counts()
    formats: Counter[LogFormat] = Counter()
    steps: list[TrainingStep] = []
    require_regular(path)
    named = Path(shown_path(path))
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as stream:
            for kind, step in _steps(named, stream, counts):
                formats[kind] += 1
                steps.append(step)
        why = "" if steps else why_not_text(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, a training log is needed") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    if why:
        raise InputError(f"{path}: {why}; a training log as UTF-8 text is needed")
    if not steps:
        raise InputError(
            f"{path}: no training step was recognised; known are the logs of MindFormers, Megatron, llm.c, "
            "nanoGPT and trainer (log.jsonl)"
        )
    return TrainingLog(
        named,
        formats.most_common(1)[0][0],
        tuple(steps),
        counts.cut,
        counts.zero_norms,
        counts.no_scales,
        counts.overflow_lines,
    )


def _steps(path: Path, stream: Iterator[str], counts: _Counts) -> Iterator[tuple[LogFormat, TrainingStep]]:
    time: datetime | None = None
    overflow = False
    for number, text in _joined(stream):
        time = parse_time(text) or time
        if _OVERFLOW.search(text):
            counts.overflow_lines += 1
            overflow = True
            continue
        found = _step(path, number, text, counts)
        if found is None:
            continue
        kind, step = found
        # An overflow's line comes before the line of the step that it spoils.
        skipped = True if overflow else step.skipped
        overflow = False
        yield kind, _measured(replace(step, time=time, skipped=skipped), counts)


def _joined(stream: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; a Megatron line that a terminal wrapped is put together again."""
    pending, began, joined = "", 0, 0
    for number, text in enumerate(stream, start=1):
        text = text[:_LONGEST_LINE].rstrip("\r\n")
        if pending and joined < _WRAPPED_LINES and _continues(pending, text):
            pending, joined = pending + text, joined + 1
            continue
        if pending:
            yield began, pending
            pending = ""
        if _MEGATRON_START.search(text):
            pending, began, joined = text, number, 0
        else:
            yield number, text
    if pending:
        yield began, pending


def _continues(pending: str, text: str) -> bool:
    if not text.strip() or _MEGATRON_START.search(text):
        return False
    if text.startswith("[") and parse_time(text) is not None:
        return False
    # A line may be wrapped just behind a bar: it looks whole then, but fields follow.
    return not pending.rstrip().endswith("|") or _FIELDS.match(text) is not None


def _step(path: Path, number: int, text: str, counts: _Counts) -> tuple[LogFormat, TrainingStep] | None:
    if text.startswith("{") and (record := _json(text)) is not None:
        return "jsonl", _from_json(path, number, record)
    if found := _MEGATRON.search(text):
        return "megatron", _from_megatron(path, number, found, counts)
    if found := _MINDFORMERS.search(text):
        return "mindformers", _from_mindformers(path, number, found, text)
    if found := _LLM_C.match(text):
        return "llm.c", TrainingStep(
            path,
            number,
            int(found.group("step")),
            _float(found.group("loss")),
            _float(found.group("norm")),
            learning_rate=_float(found.group("lr")),
        )
    if found := _NANOGPT.search(text):
        ms = _float(found.group("ms"))
        return "nanogpt", TrainingStep(
            path,
            number,
            int(found.group("step") or found.group("iter")),
            _float(found.group("loss") or found.group("loss2")),
            seconds=ms / 1000 if ms is not None else None,
        )
    return None


def _from_megatron(path: Path, number: int, found: re.Match[str], counts: _Counts) -> TrainingStep:
    pieces = found.group("rest").split("|")
    if pieces[-1].strip():
        # Without its closing bar the last number may be cut.
        counts.cut += 1
    values = {}
    for piece in pieces[:-1]:
        key, colon, value = piece.rpartition(":")
        if colon:
            # Wrapping eats spaces: keys are compared without them.
            values[re.sub(r"[\s_-]", "", key).lower()] = value.strip()
    milliseconds = _float(values.get("elapsedtimeperiteration(ms)"))
    seconds = _float(values.get("elapsedtimeperiteration(s)"))
    if seconds is None and milliseconds is not None:
        seconds = milliseconds / 1000
    skips = _float(values.get("numberofskippediterations"))
    loss = values.get("lmloss", values.get("loss"))
    return TrainingStep(
        path,
        number,
        int(found.group("step")),
        _float(loss),
        _float(values.get("gradnorm")),
        _float(values.get("lossscale")),
        _float(values.get("learningrate")),
        bool(skips) if skips is not None else None,
        _int(values.get("globalbatchsize")),
        _int(values.get("consumedsamples")),
        seconds=seconds,
    )


def _from_mindformers(path: Path, number: int, found: re.Match[str], text: str) -> TrainingStep:
    parts = {name: pattern.search(text) for name, pattern in _MINDFORMERS_PARTS.items()}
    values = {name: _float(part.group(1)) if part else None for name, part in parts.items()}
    overflow = _OVERFLOW_CONDITION.search(text)
    epoch = int(found.group("epoch"))
    ms = values["ms"]
    return TrainingStep(
        path,
        number,
        (epoch - 1) * int(found.group("per")) + int(found.group("step")),
        _float(found.group("loss")),
        values["grad_norm"],
        values["loss_scale"],
        values["learning_rate"],
        overflow.group(1) == "True" if overflow else None,
        epoch=epoch,
        seconds=ms / 1000 if ms is not None else None,
    )


def _from_json(path: Path, number: int, record: dict[str, Any]) -> TrainingStep:
    overflow = record.get("overflow")
    elapsed = _plain(record.get("elapsed_ns"))
    ids = record.get("sample_ids")
    loss = _plain(record["loss"])
    if loss is None and overflow is not True:
        loss = math.nan  # JSON has no NaN: the log writes null for it
    return TrainingStep(
        path,
        number,
        record["step"],
        loss,
        _plain(record.get("grad_norm")),
        _plain(record.get("loss_scale")),
        _plain(record.get("learning_rate")),
        overflow if isinstance(overflow, bool) else None,
        epoch=record["epoch"] if isinstance(record.get("epoch"), int) else None,
        sample_ids=str(ids) if ids is not None else None,
        seconds=elapsed / 1e9 if elapsed is not None else None,
    )


def _json(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or "loss" not in record:
        return None
    step = record.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 10**15:
        return None
    loss = record["loss"]
    if isinstance(loss, str):
        record["loss"] = _float(loss)
    # A text that is no number, true, a list: whatever it is, it isn't the loss of a step.
    return record if loss is None or _plain(record["loss"]) is not None else None


def _measured(step: TrainingStep, counts: _Counts) -> TrainingStep:
    """Without the values that stand for "not measured"."""
    if step.grad_norm == 0:
        counts.zero_norms += 1
        step = replace(step, grad_norm=None)
    if step.loss_scale is not None and not step.loss_scale > 0:
        counts.no_scales += 1
        step = replace(step, loss_scale=None)
    return step


def _float(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float("".join(text.split()))
    except ValueError:
        return None


def _int(text: str | None) -> int | None:
    value = _float(text)
    return int(value) if value is not None and math.isfinite(value) else None


def _plain(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
