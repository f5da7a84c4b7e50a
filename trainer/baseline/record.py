"""`baseline.json`: what one baseline run did."""

from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import ConfigDict, Field, ValidationError

from evalkit.errors import InputError
from trainer.configuration.strict import Listed, Strict


class BaselineStep(Strict):
    """One training step, as in log.jsonl."""

    step: int
    loss: float | None
    grad_norm: float | None
    learning_rate: float
    loss_scale: float
    sample_ids: Listed[str]


class Trend(Strict):
    """Something that a healthy run shows: whether it holds, and the numbers behind it."""

    name: str
    holds: bool
    evidence: str


class BaselineRecord(Strict):
    """The whole file.

    Attributes:
        config_sha256, data_sha256: of the resolved configuration and of the samples.
        environment: versions, machine, and variables that change how MindSpore computes.
        steps: the training steps.
        loss_before, loss_after: nats a token over all samples, before the first and after the last step.
        weights_sha256: after the last step.
        operators: how often each kernel ran in the recorded steps, by the profiler.
        graphs: lines of each graph that MindSpore compiled, in order.
        trends: what was checked.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["trainer.baseline/1"] = Field(default="trainer.baseline/1", alias="schema")
    name: str
    config: dict[str, Any]
    config_sha256: str
    data_sha256: str
    environment: dict[str, Any]
    steps: Listed[BaselineStep]
    loss_before: float | None
    loss_after: float | None
    weights_sha256: str
    operators: dict[str, int]
    graphs: Listed[int]
    trends: Listed[Trend]


def read_record(file: Path) -> BaselineRecord:
    """Read a record.

    Raises:
        InputError: missing or broken.
    """
    try:
        return BaselineRecord.model_validate(orjson.loads(file.read_bytes()))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    except (orjson.JSONDecodeError, ValidationError):
        raise InputError(f"{file}: not a baseline record; remove its folder and run again") from None
