"""The power of a scenario: what it plans, counted from its own files, and a pilot run's spread."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evalkit.gate.families import evidence_kinds
from evalkit.gate.power import RulePower, Units, power_of_rules
from evalkit.metrics.context import DialogueSetup
from evalkit.metrics.resampled import SLICE
from evalkit.runs.folder import RunFolder
from evalkit.runs.pilot import read_pilot
from evalkit.scenario.loader import LoadedScenario
from evalkit.scenario.schema import Rule
from evalkit.scenario.setup import dialogue_setup
from evalkit.scoring.decisions import DecisionItem, read_decisions, split_parts
from evalkit.scoring.texts import TextItem, read_texts

# Expectations that a turn states, so that the dialogues with one can be counted.
_TURN_KINDS = ("intent", "contains", "matches", "forbidden", "slots", "recalls", "max_ms")


@dataclass(frozen=True)
class ScenarioPower:
    """What a run of a scenario can decide.

    Attributes:
        rules: of its gate.
        warnings: what whoever plans should know of the pilot, one line each.
    """

    rules: list[RulePower]
    warnings: list[str]


def scenario_power(loaded: LoadedScenario, pilot: Path | None) -> ScenarioPower:
    """The power of every rule of a scenario's gate.

    Args:
        loaded: the scenario.
        pilot: a finished run, of this scenario or one like it, whose values and spreads are taken for true.

    Raises:
        InputError: the scenario has no gate, or data or pilot can't be read.
    """
    policy = loaded.policy
    if policy is None:
        raise loaded.error(("gate",), "there is no rule to decide; give the scenario a gate")
    measured, warnings = None, list[str]()
    if pilot is not None:
        measured, warnings = read_pilot(RunFolder(pilot), loaded, policy)
    first = loaded.scenario.first_release
    return ScenarioPower(power_of_rules(policy, _Counter(loaded), measured, first_release=first), warnings)


class _Counter:
    """Counts the independent units of a scenario: clusters of texts and decisions, dialogues."""

    def __init__(self, loaded: LoadedScenario) -> None:
        risk = loaded.scenario.risk
        self._texts: Sequence[TextItem] = () if loaded.text_data is None else read_texts(loaded.text_data)
        self._resampled = loaded.resample is not None
        self._judged: list[DecisionItem] = []
        self._high_risk = None if risk is None else risk.high_risk
        if risk is not None and loaded.risk_data is not None:
            decisions = read_decisions(loaded.risk_data, risk.labels)
            parts = split_parts(decisions, risk.calibration, loaded.scenario.seed)
            self._judged = [item for item in decisions if parts[item.cluster] == "judged"]
        self._dialogues = [item.dialogue for item in loaded.dialogues]
        self._setup = dialogue_setup(loaded)

    def __call__(self, rule: Rule) -> Units:
        """See `evalkit.gate.power.UnitCounter`."""
        kinds = evidence_kinds(rule.metric)
        if kinds == ("text",) and self._resampled and rule.slice == SLICE:
            reason = "how many texts the weights are worth isn't known before a run"
            return Units(None, "re-weighted clusters of texts", reason=reason)
        if kinds == ("text",):
            wanted = {item.cluster for item in self._texts if rule.slice is None or rule.slice in item.tags}
            return Units(len(wanted), "clusters of texts")
        if kinds == ("risk",):
            return self._decisions(rule)
        if kinds == ("turn",) and self._setup is not None:
            return self._talks(rule, self._setup)
        return Units(None, "samples", reason="the scenario doesn't say how many samples the metric stands on")

    def _decisions(self, rule: Rule) -> Units:
        noun = "clusters of judged decisions"
        if rule.metric == "risk/high_risk_recall":
            judged = {item.cluster for item in self._judged if item.target == self._high_risk}
            return Units(len(judged), "clusters of judged high-risk decisions", outcomes=True)
        if rule.metric == "risk/false_reject_rate":
            judged = {item.cluster for item in self._judged if item.target != self._high_risk}
            return Units(len(judged), "clusters of judged other decisions", outcomes=True)
        if rule.metric == "risk/precision":
            reason = "how many decisions will be rejected isn't known before a run"
            return Units(None, "rejected decisions", outcomes=True, reason=reason)
        return Units(len({item.cluster for item in self._judged}), noun)

    def _talks(self, rule: Rule, setup: DialogueSetup) -> Units:
        own = [item for item in self._dialogues if rule.slice is None or rule.slice in item.tags]
        copies = not setup.varies
        if setup.population == "fixed" and copies and rule.within_ms is None:
            return Units(len(own), "dialogues", fact=True)
        if rule.metric == "dialogue/pass_hat_k":
            # Copies count as one trial.
            different = {**dict.fromkeys(setup.unvaried, 1), **setup.repeated}
            able = [item for item in own if (rule.k or 1) <= different.get(item.id, setup.trials)]
            return Units(len(able), "dialogues", outcomes=True)
        if rule.metric == "dialogue/consistency":
            probed = [item for item in own if any(turn.expect.recalls for turn in item.turns)]
            return Units(len(probed), "dialogues with a recall probe", outcomes=True)
        if rule.metric == "dialogue/handover_recall":
            needing = [item for item in own if item.handover_window is not None]
            return Units(len(needing), "dialogues that need a hand-over", outcomes=True)
        if rule.metric == "dialogue/handover_rate":
            return Units(len(own), "dialogues", outcomes=True)
        if rule.metric == "dialogue/resolution_rate":
            settled = [item for item in own if item.handover_window is None]
            return Units(len(settled), "dialogues that need no hand-over", outcomes=True)
        if rule.metric == "dialogue/handover_precision":
            reason = "how many dialogues will be handed over isn't known before a run"
            return Units(None, "dialogues handed over", outcomes=True, reason=reason)
        kind = rule.metric.removeprefix("dialogue/expectation/")
        if kind in _TURN_KINDS:
            asking = [item for item in own if any(getattr(turn.expect, kind) for turn in item.turns)]
            return Units(len(asking), f"dialogues that expect {kind}")
        # Turns of one dialogue aren't independent: it counts as one outcome.
        return Units(len(own), "dialogues", outcomes=rule.within_ms is not None)
