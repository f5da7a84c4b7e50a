"""How often a candidate was looked at: runs of one scenario under one policy, each with other samples.

Whoever judges, adds samples while the verdict doesn't suit, and judges again has more than one chance of a wrong verdict. A
look is counted where the registry knows a judged run of a scenario of the same name, the same candidate and the same policy
whose scenario digest is another one: other texts, dialogues, trials or seed. The same run once more is no new look.
"""

from contextlib import suppress

from evalkit.console import say
from evalkit.errors import InputError
from evalkit.gate.policy import policy_digest
from evalkit.gate.verdict import read_verdict
from evalkit.runs.folder import RunFolder
from evalkit.runs.judging import plan_facts
from evalkit.runs.plan import read_plan
from evalkit.runs.registry import Registry
from evalkit.runs.registry_schema import RegistryUnusableError
from evalkit.scenario.schema import Policy


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


def look_under(folder: RunFolder, policy: Policy) -> int:
    """The number of the look that judging a finished run under a policy is, from 1.

    Under its own policy the plan says it, fixed before the first measurement. Under another one it is counted when the
    run is first judged by it, and stays what it was then: the same evidence gets the same verdict.

    Raises:
        InputError: the plan is damaged.
    """
    plan, digest = read_plan(folder), policy_digest(policy)
    planned, scenario_sha256 = plan_facts(plan)["look"], plan.get("scenario_sha256")
    if digest == plan.get("policy_sha256") or scenario_sha256 is None:
        return planned
    # A verdict that is damaged is judged anew.
    with suppress(InputError):
        return read_verdict(folder.verdicts / f"{digest}.json").look
    candidate = plan["candidate"]["model_digest"]
    return max(planned, next_look(plan["scenario"]["name"], scenario_sha256, candidate, digest))
