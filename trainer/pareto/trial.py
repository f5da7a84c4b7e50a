"""A configuration of a search: made from the fields' values, run, and read from what the run wrote."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from pydantic import ValidationError

from evalkit.canonical import sha256_json
from evalkit.errors import EvalkitError, IncompleteError, InputError
from evalkit.files import write_json_atomic
from trainer.config import TrainConfig
from trainer.pareto.runs import Run
from trainer.pareto.space import Search
from trainer.planning.pressure_trial import peak_mib
from trainer.run_log import EVALUATIONS, LOG, SCENARIO

_POLL_S, _RESULT = 0.05, "result.json"
# The first step compiles the graphs, the second may still allocate.
_WARM_UP_STEPS, _LEAST_STEPS = 2, 3


class UnknownFieldError(ValueError):
    """A dotted name that a training configuration doesn't have."""


def changed_config(
    base: Mapping[str, Any], search: Search, configuration: Mapping[str, Any], seed: int
) -> TrainConfig:
    """The training configuration of a trial.

    Args:
        base: the content of the configuration that is varied, as read.
        configuration: dotted field to value.

    Raises:
        UnknownFieldError: the configuration has no field of such a name.
        ValueError: the values don't fit together; one line.
    """
    value = json.loads(json.dumps(base))
    for name, choice in configuration.items():
        place = value
        *path, last = name.split(".")
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ValueError(f"{name}: {part} isn't a mapping in the configuration")
        place[last] = choice
    value["seed"] = seed
    if search.budget == "samples" and "steps" not in configuration:
        samples = base["steps"] * base["batch_size"] * base.get("accumulation", 1)
        value["steps"] = max(1, round(samples / (value["batch_size"] * value.get("accumulation", 1))))
    if value.get("evaluation") is not None:  # the end is what is judged
        value["evaluation"]["every"] = value["steps"]
    try:
        return TrainConfig.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        unknown = {".".join(map(str, item["loc"])) for item in problems if item["type"] == "extra_forbidden"}
        if misspelt := next((name for name in configuration if name in unknown), None):
            raise UnknownFieldError(f"{misspelt}: unknown key; remove it or correct its name") from None
        problem = problems[0]
        field = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise ValueError(f"{field}: {message}" if field else message) from None


def run_trial(
    config: TrainConfig, folder: Path, out: Path, search: Search, metric: str, configuration: dict[str, Any]
) -> Run:
    """One run, or what it gave before; a run that was broken off goes on from its last checkpoint.

    Args:
        folder: where the configuration's paths start.
        out: of this run; gets run/, child.log and, at the end, result.json.
        metric: the score.

    Raises:
        EvalkitError: the child failed for a reason that isn't the configuration's.
        InputError: the metric isn't measured by this configuration.
    """
    name, digest = f"seed {config.seed}", sha256_json(config.model_dump())
    if (out / _RESULT).is_file():
        kept = orjson.loads((out / _RESULT).read_bytes())
        if kept.pop("config_sha256") != digest:
            raise InputError(f"{out}: holds a run of another configuration; take another --out")
        return Run(**kept)
    out.mkdir(parents=True, exist_ok=True)
    code, why, memory = _run_child(config, folder, out, search)
    run = _outcome(config, out, code, why, metric, configuration, name)
    limit = search.limits.memory_mib
    if run.state == "ok" and limit is not None and memory is not None and memory > limit:
        why = f"{memory:,.0f} MiB, the limit is {limit:,.0f}"
        run = Run(configuration, name, run.score, run.speed, "infeasible", why)
    run = Run(**(run.to_json() | {"memory_mib": memory}))
    write_json_atomic(out / _RESULT, run.to_json() | {"config_sha256": digest})
    return run


def _run_child(config: TrainConfig, folder: Path, out: Path, search: Search) -> tuple[int, str, float | None]:
    """Exit code, last line of its messages, and peak memory in MiB."""
    command = [sys.executable, "-m", "trainer.pareto.child", str(os.getpid())]
    started, peak = time.monotonic(), None
    with (out / "child.log").open("wb") as log:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        try:
            assert child.stdin is not None
            told = {
                "config": config.model_dump(mode="json"),
                "folder": str(folder.resolve()),
                "out": str((out / "run").resolve()),
            }
            child.stdin.write(json.dumps(told).encode())
            child.stdin.close()
            while child.poll() is None:
                peak = peak_mib(child.pid) or peak
                if time.monotonic() - started > search.limits.timeout_s:
                    return -1, f"took more than {search.limits.timeout_s:g} s", peak
                time.sleep(_POLL_S)
        except BrokenPipeError:
            child.wait()
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
    lines = (out / "child.log").read_text(errors="replace").strip().splitlines()
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines
    return child.returncode, said[-1][:300] if said else "no message", peak


def _outcome(
    config: TrainConfig, out: Path, code: int, why: str, metric: str, configuration: dict[str, Any], name: str
) -> Run:
    if code == -1 and why.startswith("took more"):
        return Run(configuration, name, None, None, "infeasible", why)
    if code == 4:
        raise IncompleteError(f"{out}: the run was interrupted; give the same command again")
    if code == 2 and ("the loss is" in why or "aren't finite" in why):
        return Run(configuration, name, None, None, "nan", why)
    if code == 2:
        return Run(configuration, name, None, None, "infeasible", why)
    if code == -9:
        return Run(configuration, name, None, None, "infeasible", "killed, usually for want of memory")
    if code != 0:
        raise EvalkitError(f"{out}: the run ended with code {code}: {why}")
    score = read_score(out / "run", metric, config.steps)
    speed = read_speed(out / "run" / LOG)
    if speed is None:
        return Run(configuration, name, score, None, "unmeasured", "too few steps to measure a speed")
    if not math.isfinite(score):
        return Run(configuration, name, None, speed, "nan", f"{metric} isn't a number")
    return Run(configuration, name, score, speed)


def read_score(run: Path, metric: str, steps: int) -> float:
    """The metric after the last step; NaN where it was measured and is no number.

    Raises:
        InputError: the run doesn't measure it.
    """
    seen: set[str] = set()
    for file in (EVALUATIONS, SCENARIO):
        if not (run / file).is_file():
            continue
        for line in (run / file).read_bytes().splitlines():
            record = orjson.loads(line)
            for item in record["metrics"]:
                if item.get("slice") is None:
                    seen.add(item["name"])
                    if item["name"] == metric and record["step"] == steps:
                        return math.nan if item["value"] is None else float(item["value"])
    known = ", ".join(sorted(seen)) or "nothing: the configuration has no evaluation"
    raise InputError(f"score.metric {metric!r} isn't measured after the last step; measured is {known}")


def read_speed(log: Path) -> float | None:
    """Tokens a second: the median over steps, the first two left out; None where fewer than three are left."""
    values = [
        float(record["tokens_per_s"])
        for line in log.read_bytes().splitlines()
        if (record := orjson.loads(line))["step"] > _WARM_UP_STEPS
    ]
    return median(values) if len(values) >= _LEAST_STEPS else None
