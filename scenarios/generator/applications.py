"""Loan applications with a decision that follows a declared rule.

Each of three findings earns 0, 1 or 2 risk points; from `REJECT_FROM` points on the application is rejected. No noise is
added: whoever knows the rule decides every case. A combination of findings and purpose belongs either to training or to the
evaluation (see `is_held_out`).
"""

from dataclasses import dataclass
from itertools import product
from random import Random

from scenarios.generator.randomness import is_held_out
from scenarios.generator.vocabulary import AMOUNTS

REJECT_FROM = 4
LABELS = ("approve", "reject")

# The place of a value is its risk points.
INCOME = ("good income", "fair income", "low income")
DEBT = ("no debt", "some debt", "heavy debt")
HISTORY = ("clean history", "late payment", "missed payments")
PURPOSES = ("car", "house", "kitchen", "journey", "wedding", "boat", "garden", "school")


@dataclass(frozen=True)
class Application:
    """One application: what the model reads, and the right decision."""

    prompt: str
    target: str


def all_combinations(*, held_out: bool) -> list[tuple[int, int, int, str]]:
    """Points of income, debt and history with a purpose, of training or of the evaluation."""
    points = range(3)
    return [
        combination
        for combination in product(points, points, points, PURPOSES)
        if is_held_out("application", *map(str, combination)) == held_out
    ]


def application(random: Random, combination: tuple[int, int, int, str]) -> Application:
    """Write the application of a combination."""
    income, debt, history, purpose = combination
    prompt = (
        f"Loan of €{random.choice(AMOUNTS)} for a {purpose}: {INCOME[income]}, {DEBT[debt]}, "
        f"{HISTORY[history]}. Decision:"
    )
    return Application(prompt, LABELS[income + debt + history >= REJECT_FROM])


def training_texts(random: Random, count: int) -> list[str]:
    """Applications with their decision, as plain texts."""
    combinations = all_combinations(held_out=False)
    written = (application(random, random.choice(combinations)) for _ in range(count))
    return [f"{item.prompt} {item.target}" for item in written]


def evaluation_decisions(random: Random, count: int) -> list[dict[str, str]]:
    """Decisions for the scenario; a customer files one or two applications and is a cluster."""
    combinations = all_combinations(held_out=True)
    decisions: list[dict[str, str]] = []
    customer = 0
    while len(decisions) < count:
        customer += 1
        for _ in range(min(random.randint(1, 2), count - len(decisions))):
            item = application(random, random.choice(combinations))
            decisions.append(
                {
                    "id": f"application-{len(decisions) + 1:03}",
                    "prompt": item.prompt,
                    "target": item.target,
                    "cluster": f"customer-{customer:03}",
                }
            )
    return decisions
