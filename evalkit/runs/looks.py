"""How often a candidate was looked at: runs of one scenario under one policy, each with other samples.

Whoever judges, adds samples while the verdict doesn't suit, and judges again has more than one chance of a wrong verdict. A
look is counted where the registry knows a judged run of a scenario of the same name, the same candidate and the same policy
whose scenario digest is another one: other texts, dialogues, trials or seed. The same run once more is no new look.
"""

from evalkit.console import say
from evalkit.runs.registry import Registry
from evalkit.runs.registry_schema import RegistryUnusableError


def next_look(scenario: str, scenario_sha256: str, model_digest: str, policy_sha256: str | None) -> int:
    """The number of the look that a run will be, from 1; 1 without a policy.

    Where the registry can't be read, one line on stderr says that earlier looks aren't counted.

    Args:
        scenario: its name.
        scenario_sha256: digest of the resolved scenario with its data.
        model_digest: of the candidate.
        policy_sha256: of the policy that the run is judged by.
    """
    if policy_sha256 is None:
        return 1
    try:
        with Registry() as registry:
            earlier = registry.judged_scenarios(scenario, model_digest, policy_sha256)
    except RegistryUnusableError as error:
        say(f"warning: {error}; earlier looks at this candidate aren't counted")
        return 1
    return 1 + len(earlier - {scenario_sha256})
