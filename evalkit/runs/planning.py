"""Fixing a run before its first measurement: the content of plan.json."""

from typing import Any

from evalkit.bundle import Bundle
from evalkit.gate.policy import policy_digest, resolve_policy
from evalkit.runs.code_version import code_digests
from evalkit.runs.plan import SCHEMA, context_to_plan, describe_model, environment
from evalkit.runs.setup import RunSetup, data_digests


def build_plan(
    setup: RunSetup, inputs: dict[str, Any], *, run_id: str, created: str, look: int
) -> dict[str, Any]:
    """Everything that determines a run; equal content and code give equal plans.

    Args:
        setup: what is measured.
        inputs: where it was found, for `evalkit resume`; see `evalkit.runs.orchestrate`.
        run_id, created: the run's name and time.
        look: the how manieth look at the candidate it is, see `evalkit.runs.looks`.
    """
    loaded = setup.loaded
    models = {model.side: model for model in setup.models}
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "created": created,
        "scenario_file": loaded.name,
        "scenario": loaded.scenario.model_dump(mode="json"),
        "scenario_sha256": loaded.digest,
        "first_release": loaded.scenario.first_release,
        "look": look,
        "seed": loaded.scenario.seed,
        "policy": None if loaded.policy is None else resolve_policy(loaded.policy),
        "policy_sha256": None if loaded.policy is None else policy_digest(loaded.policy),
        "candidate": describe_model(models["candidate"].model),
        "baseline": describe_model(models["baseline"].model) if "baseline" in models else None,
        "data": {
            **data_digests(loaded),
            **(
                {"perturbed": {one.setup.name: one.digest for one in setup.perturbed}}
                if setup.perturbed
                else {}
            ),
        },
        # Of bundles; other models have their own.
        "backend": {"name": setup.backend, "precision": "fp32", "device": "CPU"}
        if any(isinstance(model.model, Bundle) for model in setup.models)
        else None,
        "measurement": {side: context_to_plan(model.context) for side, model in models.items()},
        "inputs": inputs,
        "code": code_digests(),
        "environment": environment(),
    }
