"""The plan: everything that determines a run, written before the first measurement.

`derive` rebuilds every number from the plan and the evidence alone, so that a second person needs neither the model nor
the scenario's files.
"""

import os
import platform
import secrets
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import orjson

from evalkit.backends.models import MeasuredModel
from evalkit.bundle import Bundle
from evalkit.canonical import sha256_json
from evalkit.errors import InputError
from evalkit.metrics.context import (
    BusinessSetup,
    ClassSetup,
    DialogueSetup,
    History,
    MetricContext,
    OwnSetup,
    RiskSetup,
    RobustnessSetup,
    ViewSetup,
)
from evalkit.runs.folder import RunFolder, Side
from evalkit.scenario.schema import Policy

SCHEMA = "evalkit.plan/1"
_PACKAGES = ("evalkit", "mindspore", "numpy", "scikit-learn", "tokenizers", "grpcio", "pyarrow")


def describe_model(model: MeasuredModel) -> dict[str, Any]:
    """Identity of a measured model: what it is called, its digests, how it was made."""
    if not isinstance(model, Bundle):
        return model.describe()
    bundle, manifest = model, model.manifest
    return {
        "bundle": str(bundle.path),
        "name": manifest.name,
        "model_digest": manifest.model_digest,
        "identity": "verified",
        "tokenizer_sha256": manifest.tokenizer.sha256,
        "graphs": bundle.graph_digests,
        "model": manifest.model.model_dump(),
        "parity": {role: parity.model_dump() for role, parity in manifest.parity.items()},
        "training": manifest.training,
    }


def environment() -> dict[str, Any]:
    """Versions and machine, for the record."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    machine = {"system": platform.system(), "architecture": platform.machine(), "cpus": os.cpu_count()}
    return {"versions": versions, "machine": machine}


def new_run_id() -> str:
    """A name for a run: its time, and eight random hex digits against two runs in one second."""
    return f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-{secrets.token_hex(4)}"


def now_utc() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_plan(folder: RunFolder) -> dict[str, Any]:
    """Read plan.json.

    Raises:
        InputError: not a run folder, or the plan is broken.
    """
    if not folder.path.is_dir():
        raise InputError(
            f"{folder.path}: no such run folder; make one with `evalkit run SCENARIO.yaml --out {folder.path}`"
        )
    if not folder.plan.is_file():
        raise InputError(f"{folder.plan}: no such file; the folder isn't a run")
    try:
        plan = orjson.loads(folder.plan.read_bytes())
    except orjson.JSONDecodeError as error:
        raise InputError(
            f"{folder.plan}:{error.lineno}: broken JSON: {error.msg}; the file is damaged"
        ) from None
    if not isinstance(plan, dict) or plan.get("schema") != SCHEMA:
        raise InputError(
            f"{folder.plan}: schema: {SCHEMA!r} is needed; the file is damaged or of another version"
        )
    return plan


def plan_digest(plan: dict[str, Any]) -> str:
    """SHA-256 over the canonical JSON of the plan."""
    return sha256_json(plan)


def context_to_plan(context: MetricContext) -> dict[str, Any]:
    """The measurement settings as JSON values."""
    value: dict[str, Any] = orjson.loads(orjson.dumps(asdict(context)))
    return value


def context_from_plan(plan: dict[str, Any], side: Side = "candidate") -> MetricContext:
    """The measurement settings that the plan holds for one model.

    The two differ only in what follows from the model itself: signatures, and which metrics can't have a value.

    Raises:
        InputError: the plan's settings aren't those of this version.
    """
    try:
        stored = dict(plan["measurement"][side])
        risk, dialogues = stored.pop("risk"), stored.pop("dialogues")
        if risk is not None:
            risk = RiskSetup(**{**risk, "labels": tuple(risk["labels"])})
        if dialogues is not None:
            dialogues = DialogueSetup(**{**dialogues, "dialogue_ids": tuple(dialogues["dialogue_ids"])})
        stored["k_values"] = tuple(stored["k_values"])
        stored["within"] = tuple((name, float(ms)) for name, ms in stored["within"])
        stored["slices"] = tuple(stored["slices"])
        stored["views"] = tuple(ViewSetup(**view) for view in stored["views"])
        stored["classes"] = tuple(ClassSetup(**one) for one in stored["classes"])
        stored["own"] = tuple(OwnSetup(**metric) for metric in stored["own"])
        stored["business"] = tuple(map(_business_setup, stored["business"]))
        stored["robustness"] = tuple(RobustnessSetup(**one) for one in stored["robustness"])
        return MetricContext(risk=risk, dialogues=dialogues, **stored)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"plan.json: measurement: {error}; the file is damaged or of another version"
        ) from None


def _business_setup(stored: dict[str, Any]) -> BusinessSetup:
    history, own = stored["history"], stored["own"]
    if history is not None:
        rows = tuple((float(offline), float(online)) for offline, online in history["rows"])
        history = History(**{**history, "rows": rows})
    return BusinessSetup(**{**stored, "history": history, "own": None if own is None else OwnSetup(**own)})


def context_for_policy(context: MetricContext, policy: Policy | None) -> MetricContext:
    """`context` with what a policy asks for: its confidence, k values, budgets and slices."""
    if policy is None:
        return context
    settings = {item: getattr(context, item) for item in MetricContext.__dataclass_fields__}
    asked_k = {rule.k for rule in policy.rules if rule.k is not None}
    asked_within = {(rule.metric, rule.within_ms) for rule in policy.rules if rule.within_ms is not None}
    asked_slices = {rule.slice for rule in policy.rules if rule.slice is not None}
    settings.update(
        confidence=policy.confidence,
        k_values=tuple(sorted({*context.k_values, *asked_k})),
        within=tuple(sorted({*context.within, *asked_within})),
        slices=tuple(sorted({*context.slices, *asked_slices})),
    )
    return MetricContext(**settings)
