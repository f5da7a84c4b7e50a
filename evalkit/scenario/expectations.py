"""Checks of replies against what a dialogue expects: pure functions, no model as judge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evalkit.runs.records import ExpectationResult
from evalkit.scenario.dialogue import Dialogue, Never, Turn, value_text
from evalkit.scenario.dialogue_files import DialogueSource
from evalkit.scenario.matching import normalise, states
from evalkit.scenario.variation import played

__all__ = [
    "NO_REPLY",
    "Reply",
    "check_dialogue",
    "check_turn",
    "normalise",
    "probe_distances",
    "self_test",
    "states",
]


@dataclass(frozen=True)
class Reply:
    """What came back for one user turn.

    Attributes:
        text: the reply; "" where none came.
        intent, handover: what the flow decided; None where no flow is loaded or no reply came.
        total_ms: time of the whole turn at the client; None where no reply came.
    """

    text: str
    intent: str | None = None
    handover: bool | None = None
    total_ms: float | None = None


NO_REPLY = Reply("")
"""Stands for the reply of a turn that the model failed: every expectation of the turn is still checked."""


def check_turn(dialogue: Dialogue, index: int, reply: Reply) -> list[ExpectationResult]:
    """Outcome of every expectation of turn `index` (from 0).

    A required hand-over is decided in the turn that brings it, or in the last turn that may bring it; in the
    turns between it isn't listed.
    """
    turn, text = dialogue.turns[index], reply.text
    expect = turn.expect
    results: list[ExpectationResult] = []
    if expect.intent is not None:
        results.append(
            ExpectationResult("intent", expect.intent, reply.intent, reply.intent == expect.intent)
        )
    results += _check_handover(dialogue, index, reply)
    for template in expect.contains:
        want = dialogue.fill(template, index)
        results.append(_stated("contains", want, text, states(text, want, whole_words=False)))
    for pattern in expect.matches:
        found = dialogue.fill_pattern(pattern, index).find(text)
        results.append(ExpectationResult("matches", pattern, found, found is not None))
    for template in expect.forbidden:
        want = dialogue.fill(template, index)
        results.append(_stated("forbidden", want, text, not states(text, want, whole_words=False)))
    for name, value in expect.slots.items():
        want = dialogue.fill(value_text(value), index)
        passed = states(text, want, whole_words=True)
        results.append(ExpectationResult("slots", {name: want}, want if passed else None, passed))
    for name in expect.recalls:
        want = dialogue.fact(name, index)
        passed = states(text, want, whole_words=True)
        results.append(ExpectationResult("recalls", want, want if passed else None, passed))
    if expect.max_ms is not None:
        in_time = reply.total_ms is not None and reply.total_ms <= expect.max_ms
        results.append(ExpectationResult("max_ms", expect.max_ms, reply.total_ms, in_time))
    return results


def check_dialogue(dialogue: Dialogue, replies: Sequence[Reply]) -> list[ExpectationResult]:
    """Outcome of the rules over the whole dialogue: never, order, end_state.

    Args:
        dialogue: the dialogue.
        replies: of the turns that were played, in order; `NO_REPLY` where the model failed a turn.
    """
    texts = [reply.text for reply in replies]
    results = [_check_never(dialogue, rule, texts) for rule in dialogue.never]
    if dialogue.order:
        wanted = [dialogue.fill(template) for template in dialogue.order]
        position = 0
        for text in texts:
            if position < len(wanted) and states(text, wanted[position], whole_words=False):
                position += 1
        results.append(ExpectationResult("order", wanted, wanted[:position], position == len(wanted)))
    state = dialogue.end_state
    if state.handed_over is not None:
        handed_over = any(reply.handover for reply in replies)
        passed = handed_over == state.handed_over
        results.append(
            ExpectationResult(
                "end_state", {"handed_over": state.handed_over}, {"handed_over": handed_over}, passed
            )
        )
    for name in state.stated:
        want = dialogue.fact(name)
        passed = any(states(text, want, whole_words=True) for text in texts)
        results.append(
            ExpectationResult("end_state", {"stated": want}, {"stated": want if passed else None}, passed)
        )
    return results


def probe_distances(dialogue: Dialogue, index: int) -> list[int]:
    """For each recall probe of turn `index`, in order: turns since the user last stated the fact."""
    distances = []
    for name in dialogue.turns[index].expect.recalls:
        stated = dialogue.stated_before(name, index)
        # The loader refuses a probe of a fact that wasn't stated.
        distances.append(index - (stated if stated is not None else 0))
    return distances


Agent = Callable[[Dialogue, int, str], Reply]
"""Answers one user text of one turn of a dialogue."""


def self_test(sources: Sequence[DialogueSource]) -> list[str]:
    """Check the dialogues themselves: the gold agent passes each, a null agent and an echo agent fail each.

    Intent and hand-over of the gold agent are those that the dialogue declares (the flow isn't running); the
    other two have none.

    Returns:
        One line a problem: file:line, dialogue and what to do; empty if all is well.
    """
    problems = []
    for source in sources:
        dialogue = source.dialogue
        where = f"{source.path}:{source.line}: {dialogue.id}"
        window = dialogue.handover_window
        for turn_index in sorted(set(window)) if window else [None]:
            for result in _play(dialogue, _gold_agent(turn_index)):
                if not result.passed:
                    what = f"{result.kind} {result.want!r}"
                    problems.append(f"{where}: the gold agent fails {what}; mend gold or the expectation")
        for name, agent in (("null", _null_agent), ("echo", _echo_agent)):
            if any(
                all(result.passed for result in results) for results in _play_paraphrases(dialogue, agent)
            ):
                problems.append(
                    f"{where}: the {name} agent passes; expect something that only a right reply holds"
                )
    return problems


def _play_paraphrases(dialogue: Dialogue, agent: Agent) -> list[list[ExpectationResult]]:
    most = max(len(turn.user) for turn in dialogue.turns)
    return [_play(dialogue, agent, paraphrase) for paraphrase in range(most)]


def _play(dialogue: Dialogue, agent: Agent, paraphrase: int = 0) -> list[ExpectationResult]:
    dialogue = played(dialogue, 0, 0)
    replies: list[Reply] = []
    results: list[ExpectationResult] = []
    for index, turn in enumerate(dialogue.turns):
        text = dialogue.fill(turn.user[paraphrase % len(turn.user)], index)
        replies.append(agent(dialogue, index, text))
        results += check_turn(dialogue, index, replies[-1])
        if replies[-1].handover:
            break
    return results + check_dialogue(dialogue, replies)


def _gold_agent(handover_turn: int | None) -> Agent:
    def answer(dialogue: Dialogue, index: int, user_text: str) -> Reply:
        turn: Turn = dialogue.turns[index]
        return Reply(
            dialogue.fill(turn.gold, index), turn.expect.intent, index == handover_turn, total_ms=0.0
        )

    return answer


def _null_agent(dialogue: Dialogue, index: int, user_text: str) -> Reply:
    return Reply("嗯。" if dialogue.locale == "zh" else "I see.", total_ms=0.0)


def _echo_agent(dialogue: Dialogue, index: int, user_text: str) -> Reply:
    return Reply(user_text, total_ms=0.0)


def _check_handover(dialogue: Dialogue, index: int, reply: Reply) -> list[ExpectationResult]:
    window = dialogue.handover_window
    if window is not None and window[0] <= index <= window[1] and (reply.handover or index == window[1]):
        return [
            ExpectationResult(
                "handover", f"required by turn {window[1] + 1}", reply.handover, bool(reply.handover)
            )
        ]
    wanted = dialogue.turns[index].expect.handover
    if wanted is not None and wanted.forbidden:
        return [ExpectationResult("handover", "forbidden", reply.handover, not reply.handover)]
    return []


def _check_never(dialogue: Dialogue, rule: Never, texts: Sequence[str]) -> ExpectationResult:
    if rule.matches is not None:
        pattern = dialogue.fill_pattern(rule.matches)
        want, broken = rule.matches, [text for text in texts if pattern.find(text) is not None]
    else:
        want = dialogue.fill(rule.contains or "")
        broken = [text for text in texts if states(text, want, whole_words=False)]
    return ExpectationResult("never", want, broken[0] if broken else None, not broken)


def _stated(kind: str, want: str, text: str, passed: bool) -> ExpectationResult:
    return ExpectationResult(kind, want, want if states(text, want, whole_words=False) else None, passed)
