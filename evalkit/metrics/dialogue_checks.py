"""What the checks of a dialogue say, kind by kind: consistency, pass rates of expectations, repeatability, blame."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from evalkit.metrics.dialogue_view import Unit, View, absent, mean, share
from evalkit.metrics.estimators import NamedEstimator
from evalkit.metrics.trials import Trial, TrialSet
from evalkit.runs.records import LedgerCheck, TurnRecord

_OUTCOMES = ("honoured", "contradicted", "forgotten")


def consistency(view: View) -> list[NamedEstimator]:
    """Share of recall probes and ledger checks that are honoured; the same probes in one turn, and the fall.

    By distance: turns since the fact was stated. A turn that wasn't played fails its probes, as any expectation.
    """
    units: list[Unit] = []
    asked: Counter[int] = Counter()
    outcomes: dict[str, Counter[int]] = {name: Counter() for name in _OUTCOMES}
    for trial in view.scored:
        for turn in trial.turns:
            for distance, outcome in _facts(turn):
                asked[distance] += 1
                outcomes[outcome][distance] += 1
                units.append((trial.dialogue_id, float(outcome == "honoured"), 1.0))
    by_distance = [
        {"turns": key, "asked": asked[key], **{name: outcomes[name][key] for name in _OUTCOMES}}
        for key in sorted(asked)
    ]
    details = {
        "by_distance": by_distance,
        **{name: sum(outcomes[name].values()) for name in _OUTCOMES},
    }
    found = [share(view, "dialogue/consistency", units, "no dialogue asks for a fact", details)]
    return found + _single_turn(view) if view.setup.single_turn_probes else found


def _facts(turn: TurnRecord) -> Iterator[tuple[int, str]]:
    """Distance and outcome of each recall probe, then of each statement that the reply makes by itself."""
    probes = [item for item in turn.expectations if item.kind == "recalls"]
    judged = [check for check in turn.ledger if check.probe]
    for index, (probe, distance) in enumerate(zip(probes, turn.probe_distance, strict=True)):
        yield distance, "honoured" if probe.passed else _failure(judged, index)
    for check in turn.ledger:
        if not check.probe:
            yield check.distance, check.outcome


def _failure(judged: list[LedgerCheck], index: int) -> str:
    outcome = judged[index].outcome if index < len(judged) else "forgotten"
    return "forgotten" if outcome == "honoured" else outcome


def _single_turn(view: View) -> list[NamedEstimator]:
    alone: list[Unit] = []
    falls: list[Unit] = []
    for trial in view.scored:
        for turn in trial.turns:
            probes = [item.passed for item in turn.expectations if item.kind == "recalls"]
            for held, passed in zip(turn.single_turn or (), probes, strict=False):
                alone.append((trial.dialogue_id, float(held), 1.0))
                falls.append((trial.dialogue_id, float(held) - float(passed), 1.0))
    none = "no recall probe was asked in a single turn"
    return [
        share(view, "dialogue/consistency_single_turn", alone, none),
        mean(view, "dialogue/consistency_fall", falls, none),
    ]


def expectation_rates(view: View) -> list[NamedEstimator]:
    """Share of the checks that held, by kind of expectation; kinds that no dialogue has are left out."""
    by_kind: defaultdict[str, list[Unit]] = defaultdict(list)
    for trial in view.scored:
        for turn in trial.turns:
            for item in turn.expectations:
                by_kind[item.kind].append((trial.dialogue_id, float(item.passed), 1.0))
    return [
        share(view, f"dialogue/expectation/{kind}", by_kind[kind], "nothing was checked")
        for kind in sorted(by_kind)
    ]


def repeatability(view: View) -> NamedEstimator:
    """Share of repeated turns whose reply is that of the first time: the same texts said before, greedy decoding.

    Copies are what is compared here, so every recorded trial counts. Tokens are compared where the server tells them.
    """
    name = "dialogue/repeatability"
    if not view.setup.greedy:
        return absent(view, name, "replies are drawn at random (temperature above 0)")
    units: list[Unit] = []
    different: set[str] = set()
    for key, trials in view.trials.by_dialogue.items():
        first: dict[tuple[object, ...], tuple[object, ...]] = {}
        for trial in trials:
            for history, reply in _histories(trial):
                known = first.setdefault(history, reply)
                if known is reply:
                    continue
                units.append((key, float(known == reply), 1.0))
                if known != reply:
                    different.add(key)
    details = {"different": sorted(different)}
    return share(view, name, units, "no conversation was repeated word for word", details)


def _histories(trial: Trial) -> Iterator[tuple[tuple[object, ...], tuple[object, ...]]]:
    """What was said before each answered turn, and the reply."""
    said: tuple[object, ...] = ()
    for turn in trial.turns:
        if turn.total_ns is None:
            return
        said = (*said, turn.user_text)
        reply = (turn.text, tuple(turn.token_ids))
        yield said, reply
        said = (*said, reply)


def blame(trials: TrialSet) -> dict[str, int]:
    """Trials without success, by who is to blame: the model for failed ones, the rest for missing ones."""
    found = dict.fromkeys(("model", "user", "harness", "infrastructure"), 0)
    for own in trials.by_dialogue.values():
        for trial in own:
            if trial.outcome == "failed":
                found["model"] += 1
            elif trial.outcome == "missing":
                lost = next((turn for turn in trial.turns if turn.status != "ok"), None)
                # A turn without a record: the journal lost it, or a caller left it out.
                found["harness" if lost is None else lost.blame or "infrastructure"] += 1
    return found
