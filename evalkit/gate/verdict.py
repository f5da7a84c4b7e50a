"""verdict.json: what was decided, rule by rule, and everything needed to decide it again."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from evalkit.canonical import canonical_json
from evalkit.errors import ExitCode, InputError
from evalkit.gate.condition import Kind
from evalkit.metrics.result import Direction, Interval
from evalkit.runs.json_fields import Reader, finite_or_none, read_json
from evalkit.runs.results_io import interval_from_dict
from evalkit.scenario.schema import Policy

SCHEMA = "evalkit.verdict/1"

Outcome = Literal["PASS", "FAIL", "INCONCLUSIVE"]
RuleOutcome = Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT_APPLIED"]
Severity = Literal["block", "warn"]

EXIT_CODES: dict[str, ExitCode] = {
    "PASS": ExitCode.OK,
    "FAIL": ExitCode.FAIL,
    "INCONCLUSIVE": ExitCode.INCONCLUSIVE,
}


@dataclass(frozen=True)
class RuleVerdict:
    """The outcome of one rule.

    Attributes:
        index: of the rule in the policy.
        kind, condition: e.g. change, max_relative_increase.
        within_ms: the latency budget of a `within` rule, else None.
        threshold: on the axis of `value`; an allowed decrease of 0.02 is -0.02.
        direction: the good side of the threshold.
        outcome: NOT_APPLIED is a change rule in a first release: shown, never counted as passed.
        value: what was measured; bound: its one-sided bound on the bad side.
        n, clusters, coverage: the evidence under the value.
        interval: the pair of one-sided bounds.
        needs_n: where undecided, the n at which the rule is decided with 95 % power if the value is true.
        action: what to do now; None where nothing is to be done.
    """

    index: int
    metric: str
    k: int | None
    slice: str | None
    kind: Kind
    condition: str
    within_ms: float | None
    threshold: float
    direction: Direction
    severity: Severity
    outcome: RuleOutcome
    value: float | None
    bound: float | None
    unit: str | None
    n: int | None
    clusters: int | None
    coverage: float | None
    interval: Interval | None
    reason: str
    needs_n: int | None
    action: str | None


@dataclass(frozen=True)
class Verdict:
    """verdict.json.

    Attributes:
        verdict: over the blocking rules: FAIL before INCONCLUSIVE before PASS.
        reason: the verdict in one sentence.
        policy: resolved; policy_sha256 is its digest.
        look: the how manieth look at the candidate it was, see `evalkit.runs.looks`.
        false_fail_probability: upper bound of the chance that at least one blocking rule fails although every
            true value is within its threshold; `false_fail_assumption` says how it was found.
        warning: about looking again, where something is undecided.
    """

    verdict: Outcome
    reason: str
    run_id: str
    plan_sha256: str
    model_digest: str
    baseline_model_digest: str | None
    policy_sha256: str
    policy: dict[str, Any]
    first_release: bool
    look: int
    rules: tuple[RuleVerdict, ...]
    false_fail_probability: float
    false_fail_assumption: str
    warning: str | None

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of a command that ends with this verdict."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """The content of verdict.json."""
        content = {"schema": SCHEMA, **{name: getattr(self, name) for name in self.__dataclass_fields__}}
        return {**content, "rules": [finite_or_none(asdict(rule)) for rule in self.rules]}

    def to_bytes(self) -> bytes:
        """The bytes of verdict.json: canonical JSON."""
        return canonical_json(self.to_dict())


def read_verdict(path: Path) -> Verdict:
    """Read a verdict strictly.

    Raises:
        InputError: missing, broken, or not what `to_bytes` writes.
    """
    reader = Reader(read_json(path), str(path))
    reader.one_of("schema", (SCHEMA,))
    probability = reader.number("false_fail_probability")
    if probability is None:
        raise InputError(f"{path}: false_fail_probability: a number is needed; the file is damaged")
    return Verdict(
        verdict=reader.one_of("verdict", get_args(Outcome)),
        reason=reader.text("reason"),
        run_id=reader.text("run_id"),
        plan_sha256=reader.text("plan_sha256"),
        model_digest=reader.text("model_digest"),
        baseline_model_digest=reader.text_or_none("baseline_model_digest"),
        policy_sha256=reader.text("policy_sha256"),
        policy=dict(reader.mapping("policy")),
        first_release=reader.flag("first_release"),
        look=reader.integer("look"),
        rules=tuple(
            _rule_from_dict(entry, f"{path}: rules[{index}]")
            for index, entry in enumerate(reader.sequence("rules"))
        ),
        false_fail_probability=probability,
        false_fail_assumption=reader.text("false_fail_assumption"),
        warning=reader.text_or_none("warning"),
    )


def embedded_policy(verdict: Verdict, where: str) -> Policy:
    """The policy that a verdict was judged by.

    Raises:
        InputError: what the verdict embeds isn't a policy.
    """
    try:
        return Policy.model_validate(verdict.policy)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in problem["loc"])
        raise InputError(f"{where}: policy.{field}: {problem['msg']}; the file is damaged") from None


def _rule_from_dict(entry: Any, where: str) -> RuleVerdict:
    reader = Reader(entry, where)
    index, threshold = reader.integer("index"), reader.number("threshold")
    if threshold is None:
        raise InputError(f"{where}: threshold: a number is needed; the file is damaged")
    return RuleVerdict(
        index=index,
        metric=reader.text("metric"),
        k=reader.integer_or_none("k"),
        slice=reader.text_or_none("slice"),
        kind=reader.one_of("kind", get_args(Kind)),
        condition=reader.text("condition"),
        within_ms=reader.number("within_ms"),
        threshold=threshold,
        direction=reader.one_of("direction", get_args(Direction)),
        severity=reader.one_of("severity", get_args(Severity)),
        outcome=reader.one_of("outcome", get_args(RuleOutcome)),
        value=reader.number("value"),
        bound=reader.number("bound"),
        unit=reader.text_or_none("unit"),
        n=reader.integer_or_none("n"),
        clusters=reader.integer_or_none("clusters"),
        coverage=reader.number("coverage"),
        interval=interval_from_dict(reader.field("interval"), f"{where}.interval"),
        reason=reader.text("reason"),
        needs_n=reader.integer_or_none("needs_n"),
        action=reader.text_or_none("action"),
    )
