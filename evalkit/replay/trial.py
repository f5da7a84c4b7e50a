"""Replay of one trial of one dialogue.

A unit of work is a dialogue and a trial number; with the settings it determines what the user says and the
seeds, so that neither order nor concurrency changes anything but times. Every planned turn gets exactly one
record.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from evalkit.replay.blame import blame_of_fault
from evalkit.replay.client import Sampling, SandboxClient, SandboxError, TurnReply
from evalkit.replay.probes import probe_alone
from evalkit.replay.prompt_check import PromptCheck
from evalkit.replay.users import GAVE_UP, UserError, make_user
from evalkit.runs.records import Blame, TurnRecord
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.expectations import NO_REPLY, Reply, check_dialogue, check_turn, probe_distances
from evalkit.scenario.ledger import check_ledger
from evalkit.scenario.user_schema import RuleUser
from evalkit.scenario.variation import Variation, played, trial_seed, user_texts


@dataclass(frozen=True)
class ReplaySettings:
    """How dialogues are replayed.

    Attributes:
        seed: of the run; each trial derives its own.
        trials: of each dialogue.
        variation: what differs between trials.
        temperature: of sampling; 0 is greedy.
        max_new_tokens: longest reply.
        concurrency: dialogues side by side. One by default: an engine computes one step at a time, so that more
            gain no time (measured: 35 s against 38 s for 20 turns) and each waits for the other's tokens.
        turn_timeout_s: deadline of one attempt of a turn.
        single_turn_probes: ask each recall probe of trial 0 once more, with its facts in one turn.
    """

    seed: int
    trials: int = 1
    variation: tuple[Variation, ...] = ()
    temperature: float = 0.0
    max_new_tokens: int = 64
    concurrency: int = 1
    turn_timeout_s: float = 60.0
    single_turn_probes: bool = False


@dataclass(frozen=True)
class TrialResult:
    """What became of one trial.

    Attributes:
        records: one a turn of the dialogue, in order.
        lost_to: gRPC status of the fault that broke the trial off before its first answer, else None.
    """

    records: list[TurnRecord]
    lost_to: str | None = None


def run_trial(
    dialogue: Dialogue,
    trial: int,
    settings: ReplaySettings,
    client: SandboxClient,
    nonce: str,
    stop: threading.Event,
    prompts: PromptCheck | None = None,
) -> TrialResult:
    """Play one trial in a session of its own.

    What the model or the flow does wrong counts as a failure of the turn (and of the turns that it makes
    impossible); what breaks around them makes the turn, and those after it, missing. `prompts` adds its check to each
    answered turn.
    """
    plan = _Plan(dialogue, trial, settings)
    session_id = f"{nonce}-{plan.seed:016x}"
    try:
        client.open(session_id, dialogue.locale)
    except SandboxError as error:
        return _broken_off(plan, [], error, "the session wasn't opened: ")
    try:
        result = _play(plan, settings, client, session_id, stop, prompts)
    finally:
        # What was answered is kept whatever happens to the session; the server's idle limit frees it at last.
        with suppress(SandboxError):
            client.close(session_id)
    if settings.single_turn_probes and trial == 0 and result.lost_to is None:
        records = [
            probe_alone(plan.dialogue, record, client, session_id, settings) for record in result.records
        ]
        return replace(result, records=records)
    return result


class _Plan:
    """What one trial says, and the empty records of its turns; `texts` are what is planned to be said."""

    def __init__(self, dialogue: Dialogue, trial: int, settings: ReplaySettings) -> None:
        self.dialogue = played(dialogue, settings.seed, trial)
        self.texts = user_texts(self.dialogue, settings.seed, trial, settings.variation)
        self.seed = trial_seed(settings.seed, dialogue.id, trial)
        self.user = make_user(self.dialogue, settings.seed, trial, settings.variation, self.seed)
        self._trial = trial

    def turn_id(self, index: int) -> str:
        """Idempotency key of a turn within its session."""
        return f"{self.seed:016x}-{index}"

    def blank(self, index: int) -> TurnRecord:
        """The record of a turn that got no reply."""
        dialogue, window = self.dialogue, self.dialogue.handover_window
        return TurnRecord(
            dialogue_id=dialogue.id,
            trial=self._trial,
            turn_index=index,
            turn_id=self.turn_id(index),
            dialogue_turns=len(dialogue.turns),
            status="infrastructure_fault",
            reason=None,
            user_text=self.texts[index],
            text="",
            token_ids=[],
            finish_reason=None,
            expectations=[],
            probe_distance=[],
            locale=dialogue.locale,
            tags=list(dialogue.tags),
            intent=None,
            intent_expected=dialogue.turns[index].expect.intent,
            handover=None,
            handover_expected=window is not None and window[0] <= index <= window[1],
            satisfaction=None,
            prompt_tokens=None,
            reused_tokens=None,
            generated_tokens=None,
            first_token_ns=None,
            turn_overhead_ns=None,
            total_ns=None,
        )


def _play(
    plan: _Plan,
    settings: ReplaySettings,
    client: SandboxClient,
    session_id: str,
    stop: threading.Event,
    prompts: PromptCheck | None,
) -> TrialResult:
    done: list[TurnRecord] = []
    for index in range(len(plan.texts)):
        if stop.is_set():
            return TrialResult(_missing(plan, done, "the run was stopped", "harness"))
        try:
            text = plan.user.say(index, [_reply(record) for record in done])
        except UserError as error:
            return TrialResult(_missing(plan, done, f"user: {error}", "user"))
        if text is None:
            assert isinstance(plan.dialogue.user, RuleUser)
            return TrialResult(_checked(plan, done, GAVE_UP.format(count=plan.dialogue.user.gives_up_after)))
        plan.texts[index] = text
        sampling = Sampling(settings.max_new_tokens, settings.temperature, (plan.seed + index) & (2**63 - 1))
        # The user speaks as soon as the reply before is there: the turn is due now.
        planned_ns = time.perf_counter_ns()
        try:
            reply = client.turn(
                session_id,
                plan.turn_id(index),
                text,
                sampling,
                timeout_s=settings.turn_timeout_s,
                planned_ns=planned_ns,
            )
        except SandboxError as error:
            if error.code == "FAILED_PRECONDITION":
                return TrialResult(_checked(plan, done, f"the session takes no more turns: {error.message}"))
            return _broken_off(plan, done, error)
        laid_out = [] if prompts is None else prompts.check(done, text, reply)
        done.append(replace(_answered(plan.blank(index), reply), expectations=laid_out))
        if reply.handover or reply.state == "SESSION_HANDED_OVER":
            return TrialResult(_checked(plan, done, f"handed over in turn {index + 1}"))
        if reply.state != "OPEN":
            why = f"the server ended the session in turn {index + 1} ({reply.state})"
            return TrialResult(_missing(plan, done, why))
    return TrialResult(_checked(plan, done, None))


def _checked(plan: _Plan, done: Sequence[TurnRecord], over: str | None) -> list[TurnRecord]:
    """Records of all turns, every expectation checked; `over` says why turns were left unplayed."""
    dialogue = plan.dialogue
    records = _with_ledger(dialogue, [_with_expectations(dialogue, record) for record in done])
    as_planned = bool(done) and bool(done[-1].handover) and bool(done[-1].handover_expected)
    for index in range(len(done), len(plan.texts)):
        if as_planned:
            records.append(replace(plan.blank(index), status="ok", reason=f"not played: {over}, as expected"))
            continue
        failed = replace(plan.blank(index), status="model_fault", reason=f"not played: {over}", blame="model")
        records.append(_with_expectations(dialogue, failed))
    whole = check_dialogue(dialogue, [_reply(record) for record in done])
    records[-1] = replace(records[-1], expectations=[*records[-1].expectations, *whole])
    return records


def _broken_off(plan: _Plan, done: Sequence[TurnRecord], error: SandboxError, step: str = "") -> TrialResult:
    blame = blame_of_fault(error.code)
    records = _missing(plan, done, f"{step}{error.code}: {error.message}", blame)
    return TrialResult(records, None if done else error.code)


def _missing(
    plan: _Plan, done: Sequence[TurnRecord], reason: str, blame: Blame = "infrastructure"
) -> list[TurnRecord]:
    """Records of a trial that broke off: what was answered stays checked, the rest is missing."""
    records = _with_ledger(plan.dialogue, [_with_expectations(plan.dialogue, record) for record in done])
    for index in range(len(done), len(plan.texts)):
        cause = reason if index == len(done) else f"not played: {reason}"
        records.append(replace(plan.blank(index), reason=cause, blame=blame))
    return records


def _with_expectations(dialogue: Dialogue, record: TurnRecord) -> TurnRecord:
    reply = NO_REPLY if record.total_ns is None else _reply(record)
    index = record.turn_index
    return replace(
        record,
        expectations=[*record.expectations, *check_turn(dialogue, index, reply)],
        probe_distance=probe_distances(dialogue, index),
    )


def _with_ledger(dialogue: Dialogue, records: list[TurnRecord]) -> list[TurnRecord]:
    checks = check_ledger(dialogue, [record.text for record in records])
    return [replace(record, ledger=found) for record, found in zip(records, checks, strict=True)]


def _reply(record: TurnRecord) -> Reply:
    total_ms = None if record.total_ns is None else record.total_ns / 1e6
    return Reply(record.text, record.intent, record.handover, total_ms)


def _answered(blank: TurnRecord, reply: TurnReply) -> TurnRecord:
    empty = not reply.text.strip()
    reason = "the reply is empty" if empty else None
    if reason is None and reply.dropped_turns:
        reason = f"{reply.dropped_turns} earlier turns no longer fit into the context"
    return replace(
        blank,
        status="model_fault" if empty else "ok",
        reason=reason,
        blame="model" if empty else None,
        text=reply.text,
        token_ids=list(reply.token_ids),
        finish_reason=reply.finish_reason,
        intent=reply.intent,
        handover=reply.handover,
        satisfaction=reply.satisfaction,
        prompt_tokens=reply.prompt_tokens,
        reused_tokens=reply.reused_tokens,
        generated_tokens=reply.generated_tokens,
        first_token_ns=reply.first_token_ns,
        # Clocks of two processes: a difference of nanoseconds below zero would be noise.
        turn_overhead_ns=max(0, reply.total_ns - reply.model_ns),
        total_ns=reply.total_ns,
    )
