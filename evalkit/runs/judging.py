"""Judging a run folder: the pure judge fed from plan and evidence, and where its verdict is kept."""

from pathlib import Path
from typing import Any, TypedDict

from evalkit.errors import InputError
from evalkit.files import write_bytes_atomic
from evalkit.gate.judge import judge
from evalkit.gate.policy import check_policy, policy_problem
from evalkit.gate.verdict import Verdict
from evalkit.metrics.declared import declare
from evalkit.metrics.registry import robustness_specs
from evalkit.runs.derive import Derived, derive_from, run_policy
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.json_fields import Reader
from evalkit.runs.plan import context_from_plan, read_plan
from evalkit.scenario.dialogue_checks import blocking_on_turns
from evalkit.scenario.loader import policy_of_file
from evalkit.scenario.schema import Policy


class PlanFacts(TypedDict):
    """Arguments of the judge that the plan holds."""

    first_release: bool
    look: int


def checked_policy(folder: RunFolder, file: Path | None = None) -> Policy:
    """The policy to judge a run under, checked against everything that the run's scenario declares.

    Args:
        folder: the run.
        file: of another policy, or a scenario whose gate is one; None: the run's own, which may be older than a check.

    Raises:
        InputError: no policy at all, or a rule of it decides nothing; with file or plan, and the field.
    """
    plan = read_plan(folder)
    context = context_from_plan(plan)
    additions = declare(context)
    declared = {**additions.specs, **robustness_specs(context.robustness)}
    if file is not None:
        policy, source = policy_of_file(file)
        check_policy(policy, source, declared)
        metric = blocking_on_turns(policy, additions.own)
        if metric is not None and context.dialogues is not None and context.dialogues.model_users:
            raise InputError(
                f"{file}: a model played the user of {context.dialogues.model_users[0]} in {folder.path}, and the blocking "
                f"rule on {metric} would stand on it; give the rule severity: warn"
            )
        return policy
    policy = _own_policy(folder, plan)
    problem = policy_problem(policy, declared)
    if problem is not None:
        at = ".".join(map(str, problem[0]))
        advice = "judge it under a sound one with --policy FILE.yaml"
        raise InputError(f"{folder.plan}: policy.{at}: {problem[1]}; {advice}")
    return policy


def judge_run(
    folder: RunFolder,
    policy: Policy | None = None,
    baseline_run: Path | None = None,
    look: int | None = None,
) -> Verdict:
    """Judge a run from its evidence.

    Args:
        folder: the run.
        policy: judge under this policy; None: the run's own.
        baseline_run: compare with the candidate of this run instead of the run's own baseline.
        look: the how manieth at the candidate it is under the policy; None, or an earlier one: as the plan says.

    Raises:
        InputError: no policy at all, or plan or evidence is missing or damaged.
    """
    plan = read_plan(folder)
    policy = policy or _own_policy(folder, plan)
    baseline: Evidence | None = None
    if baseline_run is not None:
        other = RunFolder(baseline_run)
        other_plan = read_plan(other)
        measurement = {**plan["measurement"], "baseline": other_plan["measurement"]["candidate"]}
        plan = {**plan, "baseline": other_plan["candidate"], "measurement": measurement}
        baseline = read_evidence(other, "candidate")
    elif plan["baseline"] is not None:
        baseline = read_evidence(folder, "baseline")
    derived = derive_from(plan, read_evidence(folder, "candidate"), baseline, policy)
    return judge_derived(plan, derived, policy, look)


def _own_policy(folder: RunFolder, plan: dict[str, Any]) -> Policy:
    policy = run_policy(plan)
    if policy is None:
        raise InputError(
            f"{folder.path}: the run's scenario has no gate; name a policy with --policy FILE.yaml"
        )
    return policy


def judge_derived(
    plan: dict[str, Any], derived: Derived, policy: Policy | None = None, look: int | None = None
) -> Verdict:
    """Judge what was derived from a run's evidence.

    Args:
        plan: of the run.
        derived: under the policy in question.
        policy: None: the run's own.
        look: see `judge_run`.

    Raises:
        InputError: no policy at all.
    """
    policy = policy or run_policy(plan)
    if policy is None:
        raise InputError("the run's scenario has no gate; name a policy with --policy FILE.yaml")
    facts = plan_facts(plan)
    facts["look"] = max(facts["look"], look or 1)
    return judge(derived.results, derived.comparison, policy, **facts)


def plan_facts(plan: dict[str, Any]) -> PlanFacts:
    """What the judge must know of the plan.

    Raises:
        InputError: the plan lacks it.
    """
    reader = Reader(plan, "plan.json")
    return {
        "first_release": reader.flag("first_release"),
        "look": reader.integer("look") if "look" in plan else 1,
    }


def store_verdict(folder: RunFolder, verdict: Verdict) -> None:
    """Keep a verdict: one file a policy digest, and a copy as the latest."""
    content = verdict.to_bytes()
    write_bytes_atomic(folder.verdicts / f"{verdict.policy_sha256}.json", content)
    write_bytes_atomic(folder.verdict, content)
