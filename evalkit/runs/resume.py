"""Finish an interrupted run: the same code on the same content, beginning with what the journals hold."""

from pathlib import Path
from typing import Any

import orjson

from evalkit.backends.choice import DEFAULT
from evalkit.backends.models import MeasuredModel
from evalkit.bundle import load_bundle
from evalkit.console import Progress
from evalkit.errors import InputError
from evalkit.metrics.references import trusted_modules
from evalkit.replay.access import Access
from evalkit.runs.derive import derive
from evalkit.runs.folder import RunFolder
from evalkit.runs.interruption import resumable, terminable
from evalkit.runs.orchestrate import RunOutcome, close_run, complete_run
from evalkit.runs.plan import read_plan
from evalkit.runs.planning import build_plan
from evalkit.runs.setup import RunSetup, prepare
from evalkit.runs.verify import RUN_FILES, seal_differences
from evalkit.scenario.loader import LoadedScenario, load_scenario, scenario_from_texts
from evalkit.scenario.schema import Window

# What may differ between the attempts: names and places, and how many processors the machine has.
_SERVER = ("endpoint", "api_key_env", "concurrency", "timeout_s")
_FREE = frozenset(
    [
        *("run_id", "created", "scenario_file", "inputs"),
        *(f"{side}.{place}" for side in ("candidate", "baseline") for place in ("bundle", "endpoint")),
        *(f"scenario.{side}.{key}" for side in ("model", "baseline") for key in _SERVER),
    ]
)
_FREE_MACHINE = "environment.machine.cpus"
_SHOWN = 3


def resume_run(
    folder: RunFolder,
    progress: Progress,
    sandbox_address: str | None = None,
    sandbox_access: Access = Access(),  # noqa: B008
) -> RunOutcome:
    """Finish a run.

    Texts, decisions and dialogue trials that the journals hold are kept; the rest is measured, and every number equals
    that of an uninterrupted run to the bit. Only times differ. Of a run that is sealed already only the verdict and the
    reports are written again.

    Args:
        folder: of a run that was interrupted.
        progress: shows the work.
        sandbox_address: of a running sandbox for the candidate; None: the one that the run was begun with, if any.
        sandbox_access: TLS and token for it; the plan keeps neither.

    Raises:
        InputError: model, data, flow, scenario or code aren't those of the plan (each is named); evidence is damaged.
        IncompleteError: interrupted again.
    """
    plan = read_plan(folder)
    with terminable(), resumable(folder):
        _remove_staging(folder)
        if folder.seal.is_file():
            broken = seal_differences(folder)
            if broken:
                raise InputError(f"{folder.path}: the run is finished, but its seal is broken: {broken[0]}")
            return close_run(folder, plan, derive(folder))
        setup = _same_setup(folder, plan)
        with trusted_modules(setup.loaded.additions.modules):
            return complete_run(
                folder,
                plan,
                setup,
                progress,
                sandbox_address or _inputs(folder, plan)["sandbox"],
                sandbox_access,
            )


def _inputs(folder: RunFolder, plan: dict[str, Any]) -> dict[str, Any]:
    inputs = plan.get("inputs")
    if not isinstance(inputs, dict):
        raise InputError(
            f"{folder.plan}: inputs: is missing; the run was made by a version that couldn't resume"
        )
    return inputs


def _same_setup(folder: RunFolder, plan: dict[str, Any]) -> RunSetup:
    inputs = _inputs(folder, plan)
    loaded = _load(plan, inputs)
    candidate = _model(inputs["candidate"], loaded.candidate_model)
    if candidate is None:
        raise InputError(f"{folder.path}: the scenario names no model any more; put back what the plan names")
    with_baseline = plan["baseline"] is not None
    setup = prepare(
        loaded,
        candidate,
        _model(inputs["baseline"], loaded.baseline_model) if with_baseline else None,
        DEFAULT if plan["backend"] is None else plan["backend"]["name"],
    )
    now = orjson.loads(
        orjson.dumps(
            build_plan(
                setup, inputs, run_id=plan["run_id"], created=plan["created"], look=plan.get("look", 1)
            )
        )
    )
    differing = _differences(plan, now)
    if differing:
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise InputError(
            f"{folder.path}: can't be resumed, since it was begun differently: {'; '.join(differing[:_SHOWN])}{more}; "
            "put back what the plan names, or start a new run"
        )
    return setup


def _model(folder: str | None, other: MeasuredModel | None) -> MeasuredModel | None:
    return other if folder is None else load_bundle(Path(folder))


def _load(plan: dict[str, Any], inputs: dict[str, Any]) -> LoadedScenario:
    if inputs["scenario"] is not None:
        return load_scenario(Path(inputs["scenario"]))
    window = plan["scenario"]["text"]["window"]
    return scenario_from_texts(
        Path(inputs["texts"]), None if window is None else Window.model_validate(window)
    )


def _differences(old: Any, new: Any, field: str = "") -> list[str]:
    """Fields in which two plans differ, each with both values."""
    if field in _FREE or field == _FREE_MACHINE or old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        return [
            found
            for name in names
            for found in _differences(old.get(name), new.get(name), f"{field}.{name}" if field else name)
        ]
    return [f"{field} was {_shown(old)}, is {_shown(new)}"]


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    # Enough of a digest to recognise it.
    return text if len(text) <= 40 else f"{text[:12]}…"


def _remove_staging(folder: RunFolder) -> None:
    """Remove half-written files (`.NAME.SUFFIX`) that a kill left beside the ones they were to become."""
    for path in folder.path.rglob(".*"):
        target = path.with_name(path.name[1:].rpartition(".")[0])
        if RUN_FILES.fullmatch(target.relative_to(folder.path).as_posix()) and path.is_file():
            path.unlink()
