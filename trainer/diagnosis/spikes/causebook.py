"""The causes of spikes as data: which signs make one, and its words."""

from functools import lru_cache

from pydantic import model_validator

from evalkit.yaml_source import load_yaml
from trainer.diagnosis.rulebook import RuleText, Strict, rules_path

UNKNOWN = "unknown_cause"


class Windows(Strict):
    """How far from a spike signs are looked for."""

    look_back_steps: int
    scale_growth_steps: int
    near_steps: int
    warmup_steps: int
    same_place: float
    log_minutes: float


class CauseBook(Strict):
    """rules/spikes.yaml: causes with the weights of their signs."""

    accepted: float
    windows: Windows
    causes: dict[str, dict[str, float]]
    signs: dict[str, str]
    rules: dict[str, RuleText]

    @model_validator(mode="after")
    def _names_exist(self) -> "CauseBook":
        for cause, weights in self.causes.items():
            if cause not in self.rules:
                raise ValueError(f"cause {cause} has no rule")
            if unknown := weights.keys() - self.signs.keys():
                raise ValueError(f"cause {cause} names {sorted(unknown)}, which aren't signs")
        return self


@lru_cache(maxsize=1)
def cause_book() -> CauseBook:
    """The causes of this package."""
    return load_yaml(rules_path("spikes"), CauseBook)
