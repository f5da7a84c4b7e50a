"""Evaluation inside training: when to evaluate, on what, and proof that the training isn't touched.

The names below are loaded when they are first asked for: `EvalCallback` and `TokenMetric` need MindSpore, the others don't.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalkit.training.callback import EvalCallback
    from evalkit.training.distributed import MissingRankError, Ranks
    from evalkit.training.evaluation import Validation, validation
    from evalkit.training.metrics import TokenMetric
    from evalkit.training.record import EvaluationRecord, JsonlSink, MlflowSink, Sink, TensorBoardSink
    from evalkit.training.selection import EarlyStop, KeepBest
    from evalkit.training.triggers import (
        AtEnd,
        AtFractions,
        EveryEpoch,
        EveryNSteps,
        OnLossScaleDrop,
        OnLossSpike,
        OnOverflow,
        StepEvent,
        Trigger,
    )

_HOMES = {
    "callback": ("EvalCallback",),
    "distributed": ("MissingRankError", "Ranks"),
    "evaluation": ("Validation", "validation"),
    "metrics": ("TokenMetric",),
    "record": ("EvaluationRecord", "JsonlSink", "MlflowSink", "Sink", "TensorBoardSink"),
    "selection": ("EarlyStop", "KeepBest"),
    "triggers": (
        "AtEnd",
        "AtFractions",
        "EveryEpoch",
        "EveryNSteps",
        "OnLossScaleDrop",
        "OnLossSpike",
        "OnOverflow",
        "StepEvent",
        "Trigger",
    ),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AtEnd",
    "AtFractions",
    "EarlyStop",
    "EvalCallback",
    "EvaluationRecord",
    "EveryEpoch",
    "EveryNSteps",
    "JsonlSink",
    "KeepBest",
    "MissingRankError",
    "MlflowSink",
    "OnLossScaleDrop",
    "OnLossSpike",
    "OnOverflow",
    "Ranks",
    "Sink",
    "StepEvent",
    "TensorBoardSink",
    "TokenMetric",
    "Trigger",
    "Validation",
    "validation",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
