"""The release policy: read from its file, checked against the registry, named by its digest."""

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalkit.canonical import sha256_json
from evalkit.errors import InputError
from evalkit.gate.condition import Condition
from evalkit.metrics.registry import spec_for
from evalkit.metrics.spec import MetricSpec, is_declared
from evalkit.scenario.schema import Policy, Rule
from evalkit.yaml_source import FieldPath, YamlSource


def resolve_policy(policy: Policy) -> dict[str, Any]:
    """The policy with its defaults written out, as the verdict embeds it; `Policy` reads it back."""
    return policy.model_dump(mode="json", exclude_none=True)


def policy_digest(policy: Policy) -> str:
    """SHA-256 over the canonical JSON of the resolved policy, wherever it is written."""
    return sha256_json(resolve_policy(policy))


def load_policy(path: Path, declared: Mapping[str, MetricSpec] | None = None) -> Policy:
    """Read a policy from a file of its own.

    Args:
        path: the file.
        declared: see `check_policy`.

    Raises:
        InputError: the first problem, with file, line and field path.
    """
    source = YamlSource(path)
    policy = source.parse(Policy)
    check_policy(policy, source, declared)
    return policy


def check_policy(
    policy: Policy, source: YamlSource, declared: Mapping[str, MetricSpec] | None = None
) -> None:
    """Check what the schema can't: that every rule can fail at all, only a model that is worse, and stands once.

    Args:
        policy: to be checked.
        source: the file that holds it, for line numbers.
        declared: metrics of the scenario's own; None where no scenario is at hand.

    Raises:
        InputError: the first problem.
    """
    problem = policy_problem(policy, declared)
    if problem is not None:
        field, message = problem
        raise source.error((*policy_field(source), *field), message)


def policy_field(source: YamlSource) -> FieldPath:
    """Where in its file a policy stands: at the top of a file of its own, else at the gate of a scenario."""
    return () if "rules" in source.value else ("gate",)


def policy_problem(
    policy: Policy, declared: Mapping[str, MetricSpec] | None = None
) -> tuple[FieldPath, str] | None:
    """The first field of a policy with something wrong, and what; or None."""
    for index, rule in enumerate(policy.rules):
        problem = rule_problem(rule, declared)
        if problem is not None:
            return ("rules", index, *problem[0]), problem[1]
        first = policy.rules.index(rule)
        if first < index:
            return ("rules", index), f"the same rule as rules.{first}; remove one of the two"
    return None


def rule_problem(
    rule: Rule, declared: Mapping[str, MetricSpec] | None = None
) -> tuple[FieldPath, str] | None:
    """The field and what is wrong with it, or None."""
    condition = Condition.of(rule)
    if is_declared(rule.metric):
        if declared is None:
            return None
        if rule.metric not in declared:
            near = difflib.get_close_matches(rule.metric, declared, n=3, cutoff=0.6)
            hint = (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"it declares: {', '.join(declared) or 'none'}"
            )
            return (("metric",), f"the scenario doesn't declare {rule.metric} ({hint})")
    try:
        spec = (declared or {}).get(rule.metric) or spec_for(rule.metric)
    except InputError as error:
        return (("metric",), str(error))
    if condition.kind == "change" and condition.direction != spec.direction:
        return (
            condition.field,
            f"{rule.metric} is better when {spec.direction}: this limits an improvement, not a regression",
        )
    if condition.kind == "within" and not rule.metric.startswith("latency/"):
        return (
            ("within_ms",),
            f"{rule.metric} isn't a latency; a share within a budget is that of a latency/ metric",
        )
    problem = _wrong_side(rule, condition, spec) or _out_of_reach(rule, condition, spec)
    return None if problem is None else (condition.field, problem)


def undecided(policy: Policy, *, first_release: bool = False) -> tuple[str, str] | None:
    """Why no run can ever pass or fail under a sound policy, and what to do about it; or None.

    Args:
        policy: the rules.
        first_release: of the scenario; rules about change are not applied then.
    """
    blocking = [rule for rule in policy.rules if rule.severity == "block"]
    if not blocking:
        return "every rule is `severity: warn`", "let one rule block"
    if first_release and all(rule.change is not None for rule in blocking):
        why = "every blocking rule is about change, which a first release doesn't apply"
        return why, "let one block on the value itself"
    return None


def _wrong_side(rule: Rule, condition: Condition, spec: MetricSpec) -> str | None:
    """Why a limit stands on the side on which the metric may go as far as it likes."""
    if condition.kind != "absolute" or spec.two_sided or condition.direction == spec.direction:
        return None
    right = "max" if spec.direction == "lower" else "min"
    return (
        f"{rule.metric} is better when {spec.direction}: `{condition.name}` would fail a good model and pass a bad "
        f"one; write `{right}: {condition.threshold:g}` if that is the limit"
    )


def _out_of_reach(rule: Rule, condition: Condition, spec: MetricSpec) -> str | None:
    """Why a threshold decides nothing, whatever is measured: 10 where 10 % is meant, for instance."""
    low, high = spec.support
    if condition.relative and low < 0:
        return None
    if condition.relative:
        low, high = -1.0, math.inf
    elif condition.kind == "change":
        low, high = low - high, high - low
    # Nothing lies beyond the worst value; at the best one only perfection is good enough, which may be meant.
    worst = high if condition.direction == "lower" else low
    if low <= condition.threshold <= high and condition.threshold != worst:
        return None
    what = "values"
    if condition.kind == "change":
        what = "relative changes" if condition.relative else "changes"
    return (
        f"{what} of {rule.metric} lie between {low:g} and {high:g}: this rule decides nothing"
        f"{' (10 % is written 0.1)' if spec.support == (0, 1) or condition.relative else ''}"
    )
