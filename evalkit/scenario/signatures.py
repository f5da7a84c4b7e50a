"""The protocol signatures that a scenario gives to its numbers."""

from evalkit.metrics.declared import declared_signatures
from evalkit.metrics.robustness_specs import robustness_signatures
from evalkit.metrics.signature import dialogue_signatures, risk_signatures, text_signatures
from evalkit.scenario.loader import LoadedScenario
from evalkit.scenario.schema import Window


def scenario_signatures(
    loaded: LoadedScenario,
    *,
    window: Window | None,
    precision: str,
    classes_digest: str,
    tokenizer_sha256: str,
    words: str,
) -> dict[str, str]:
    """Signatures by family, those of the scenario's additions by name.

    Args:
        loaded: the scenario.
        window, precision, classes_digest, tokenizer_sha256, words: what the model decides too; see `text_signatures`.
    """
    scenario, added = loaded.scenario, loaded.additions
    signatures = text_signatures(window, precision, classes_digest, tokenizer_sha256, words)
    if scenario.risk is not None:
        signatures |= risk_signatures(scenario.risk, precision)
    if scenario.dialogues is not None:
        flow_digest = None if loaded.flow is None else loaded.flow.digest
        signatures |= dialogue_signatures(scenario.dialogues, flow_digest)
    signatures |= declared_signatures(signatures, added.declared, added.views, added.own, added.business)
    return signatures | robustness_signatures(signatures, [one.setup for one in added.robustness])
