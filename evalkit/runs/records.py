"""Evidence records: one a text, a decision or a turn. A record is a line of the journal and a row of the Parquet file.

Sums over tokens are fixed-point (see `evalkit.metrics.accumulators`), so that adding them is exact in any order.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SampleStatus = Literal["ok", "error", "skipped", "truncated"]
Blame = Literal["model", "user", "harness", "infrastructure"]
TurnStatus = Literal["ok", "model_fault", "infrastructure_fault"]


# Slots: tens of thousands of records are held at once.
@dataclass(frozen=True, slots=True)
class ClassSums:
    """Additive sums over the scored tokens of one class in one text; natural logarithms.

    Attributes:
        tokens: scored tokens.
        nll: sum of negative log-probabilities.
        entropy, margin, rank: sums of the per-token statistics; None where the backend can't know them.
        top1, top5: tokens whose rank is at most 1 and 5, or None.
        bytes: bytes that the scored tokens cover.
    """

    tokens: int = 0
    nll: float = 0.0
    entropy: float | None = 0.0
    margin: float | None = 0.0
    rank: float | None = 0.0
    top1: int | None = 0
    top5: int | None = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One text (kind "text"), one labelled decision (kind "risk"), or one text under a perturbation (kind "perturbed").

    Attributes:
        sample_id: the user's id, unique in its data file; of a perturbed text that with `<perturbation>/` before it.
        kind: text, risk or perturbed.
        digest: SHA-256 of the text (of prompt and target for a decision).
        cluster: samples of one cluster are not independent; its own id where the data names none.
        status, reason: anything but ok stays out of the sums and is counted by status.
        tokens, scored, unconditioned: encoded tokens = scored + unconditioned where status is ok.
        bytes, bytes_scored, words: of the source text.
        nll: sum over the scored tokens.
        classes: the partition; its sums add up to the totals exactly.
        top1_outcomes: for each class that holds a token, confidence and outcome of its tokens (see `evalkit.metrics.top1`).
        views: sums over the tokens of each user-defined view that holds one; they may overlap.
        tags: the user's tags, usable as slices.
        target, label_logprobs, part: only for decisions: the true label, ln p(label | prompt) of each label in the
            scenario's order, and "calibration" or "judged".
        worst: up to 8 most surprising tokens as [start_byte, end_byte, logprob].
        from_cache: whether any statistic of it was read from the result cache; cache_runs: the runs that computed
            those (a run id begins with its time).
    """

    sample_id: str
    kind: Literal["text", "risk", "perturbed"]
    digest: str
    cluster: str
    status: SampleStatus
    reason: str | None = None
    tokens: int = 0
    scored: int = 0
    unconditioned: int = 0
    bytes: int = 0
    bytes_scored: int = 0
    words: int = 0
    nll: float = 0.0
    classes: dict[str, ClassSums] = field(default_factory=dict)
    top1_outcomes: dict[str, str] = field(default_factory=dict)
    views: dict[str, ClassSums] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    target: str | None = None
    label_logprobs: list[float] | None = None
    part: Literal["calibration", "judged"] | None = None
    worst: list[tuple[int, int, float]] = field(default_factory=list)
    text: str | None = None
    from_cache: bool = False
    cache_runs: list[str] = field(default_factory=list)
    elapsed_ns: int = 0
    perturbation: str | None = None

    @property
    def source_id(self) -> str:
        """The user's id of the text, of a perturbed one too."""
        return self.sample_id if self.perturbation is None else self.sample_id[len(self.perturbation) + 1 :]


@dataclass(frozen=True, eq=False)
class WindowRecord:
    """One scored window of a text that needs more batches; only in the journal, while the text isn't finished.

    Attributes:
        digest: SHA-256 of the text.
        first_scored, end: the tokens that the window newly scores.
        logprob, entropy, margin: float32, shape (end - first_scored,). rank: int32, the same shape. None where the
            backend can't know it.
        elapsed_ns: the window's share of the time.
        cached_from: the run that computed it, where it was read from the result cache.
    """

    digest: str
    first_scored: int
    end: int
    logprob: "npt.NDArray[np.float32]"
    entropy: "npt.NDArray[np.float32] | None"
    margin: "npt.NDArray[np.float32] | None"
    rank: "npt.NDArray[np.int32] | None"
    elapsed_ns: int
    cached_from: str | None = None


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """One checked expectation of a turn (or of the whole dialogue: then turn_index is the last one)."""

    kind: str
    want: Any
    got: Any
    passed: bool


LedgerOutcome = Literal["honoured", "contradicted", "forgotten"]


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """A statement of a reply against what was stated before, see `evalkit.scenario.ledger`.

    Attributes:
        name: of the fact.
        want, got: the value in force and the one that the reply states; None where it states none, or where it is only
            looked for (a fact without an expression).
        distance: turns since it was stated.
        probe: whether the turn asks for it, a recall probe; else the reply states it by itself.
    """

    name: str
    outcome: LedgerOutcome
    want: str
    got: str | None
    distance: int
    probe: bool


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn of one trial of one dialogue, as the client saw it.

    Attributes:
        dialogue_id, trial, turn_index, turn_id: identity; exactly one record each. turn_index counts from 0.
        dialogue_turns: turns that the dialogue has; where the state ended early the missing ones count as failed.
        locale, tags: of the dialogue.
        status: model_fault counts as a failure, infrastructure_fault as missing.
        expectations: checks with their outcome; `recalls` ones are the recall probes.
        probe_distance: for each recall probe, in order, the turns since the fact was stated.
        satisfaction, intent, handover: what the flow answered; None where no flow is loaded.
        prompt_tokens .. total_ns: as in the reply; None where the turn failed, the tokens also where a served model
            doesn't tell them. first_token_ns, turn_overhead_ns and
            total_ns are measured at the client from the planned start.
        ledger: statements of the reply against earlier ones.
        single_turn: for each recall probe, in order, whether it holds where the facts and the question are all that is
            said, in one turn; None where that wasn't tried.
        blame: who is to blame for a turn that isn't ok: model, user (a served model that plays one), harness or
            infrastructure; None where it is ok.
    """

    dialogue_id: str
    trial: int
    turn_index: int
    turn_id: str
    dialogue_turns: int
    status: TurnStatus
    reason: str | None
    user_text: str
    text: str
    token_ids: list[int]
    finish_reason: str | None
    expectations: list[ExpectationResult]
    probe_distance: list[int]
    locale: str
    tags: list[str]
    intent: str | None
    intent_expected: str | None
    handover: bool | None
    handover_expected: bool | None
    satisfaction: float | None
    prompt_tokens: int | None
    reused_tokens: int | None
    generated_tokens: int | None
    first_token_ns: int | None
    turn_overhead_ns: int | None
    total_ns: int | None
    ledger: list[LedgerCheck] = field(default_factory=list)
    single_turn: list[bool] | None = None
    blame: Blame | None = None
