"""Who keeps the others waiting: delays found in when each worker arrives at each step.

All workers leave a step together (its gradients are summed over them), so the one that arrives last at the next step has
cost the others that time. One worker alone is measured against its own usual distance between steps.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

# Below half a second a busy machine's own hiccups look the same.
_FLOOR_S, _TIMES_USUAL = 0.5, 5.0


@dataclass(frozen=True)
class Delay:
    """A worker that came `late_s` after the first one (alone: after its usual time) to a step, seen at `at_s`."""

    step: int
    rank: int
    late_s: float
    at_s: float

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def find_delays(arrivals: Mapping[int, Mapping[int, float]]) -> list[Delay]:
    """Steps at which a worker came late.

    Args:
        arrivals: of one attempt, rank to step to seconds. The attempt's first two steps are left out: workers start at
            different times, and the first step compiles.

    Returns:
        By step; late is more than 0.5 s and more than five times the rank's own usual (median) lateness.
    """
    if not arrivals:
        return []
    common = sorted(set.intersection(*(set(steps) for steps in arrivals.values())))[2:]
    late: dict[int, list[Delay]] = {rank: [] for rank in arrivals}
    for step in common:
        first = min(steps[step] for steps in arrivals.values())
        for rank, steps in arrivals.items():
            before = first if len(arrivals) > 1 else steps.get(step - 1, steps[step])
            late[rank].append(Delay(step, rank, steps[step] - before, steps[step]))
    found: list[Delay] = []
    for own in late.values():
        # Against its own usual: the rank that writes logs and checkpoints always comes a little later than the others.
        usual = median(item.late_s for item in own) if own else 0.0
        found += [item for item in own if item.late_s > max(_FLOOR_S, _TIMES_USUAL * usual)]
    return sorted(found, key=lambda item: (item.step, item.rank))
