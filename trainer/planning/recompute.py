"""Which tensors to recompute: bytes saved per operation, and the cheapest choice that fits a budget.

Each kind of tensor can be dropped in any number of a stage's layers. The choice is a bounded knapsack, solved exactly by
the non-dominated states of its partial sums (Nemhauser and Ullmann 1969), in whole bytes and operations.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evalkit.errors import InputError
from trainer.planning.activations import layer_forward_flop, saved_tensors
from trainer.planning.settings import Training
from trainer.planning.shapes import ModelShape

Int = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Candidate:
    """One kind of tensor.

    Attributes:
        layers: in how many it can be dropped.
        saved_bytes: of one layer, over all micro-batches in flight.
        live_bytes: that come back while one layer is computed again; they count once, however many layers drop it.
        extra_flop: of one layer, for all micro-batches of a step.
    """

    name: str
    layers: int
    saved_bytes: int
    live_bytes: int
    extra_flop: int

    @property
    def bytes_per_flop(self) -> float:
        """What ranks candidates; infinite where recomputing costs nothing that counts."""
        return self.saved_bytes / self.extra_flop if self.extra_flop else float("inf")

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {
            "tensor": self.name,
            "layers": self.layers,
            "saved_bytes_a_layer": self.saved_bytes,
            "live_bytes": self.live_bytes,
            "extra_flop_a_layer": self.extra_flop,
            "saved_bytes_per_flop": self.bytes_per_flop if self.extra_flop else None,
        }


@dataclass(frozen=True)
class Choice:
    """How many layers recompute which tensor.

    Attributes:
        layers: tensor → number of layers; those of 0 are left out.
        saved_bytes: of the peak, net of what is computed again.
        extra_share: extra operations / forward and backward operations of the step without recomputation.
    """

    layers: dict[str, int]
    saved_bytes: int
    extra_flop: int
    extra_share: float

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {
            "layers": self.layers,
            "saved_mib": round(self.saved_bytes / 2**20, 3),
            "extra_tflop": round(self.extra_flop / 1e12, 6),
            "extra_share": round(self.extra_share, 6),
        }


@dataclass(frozen=True)
class Frontier:
    """All choices that no other one beats in both bytes and operations, from nothing to everything recomputed."""

    candidates: tuple[Candidate, ...]
    choices: tuple[Choice, ...]

    def cheapest(self, bytes_to_save: int) -> Choice | None:
        """The fewest operations that save at least so much; None where nothing does."""
        enough = (choice for choice in self.choices if choice.saved_bytes >= bytes_to_save)
        return min(enough, key=lambda choice: choice.extra_flop, default=None)


def candidates(shape: ModelShape, training: Training, stage: int) -> tuple[Candidate, ...]:
    """What a rank of `stage` can recompute, best bytes per operation first."""
    strategy = training.strategy
    layers, in_flight = strategy.stage_layers(shape.layers)[stage], strategy.in_flight(stage)
    found = [
        Candidate(
            name=tensor.name,
            layers=layers,
            saved_bytes=int(tensor.saved_bytes * in_flight),
            live_bytes=tensor.saved_bytes,
            extra_flop=tensor.producer_flop * strategy.micro_batches,
        )
        for tensor in saved_tensors(shape, training)
        if not tensor.checkpoint and tensor.saved_bytes
    ]
    return tuple(sorted(found, key=lambda item: -item.bytes_per_flop))


def frontier(shape: ModelShape, training: Training, stage: int = 0) -> Frontier:
    """All choices worth considering on a rank of `stage`; what lives while a layer is computed again is taken off."""
    found = candidates(shape, training, stage)
    strategy = training.strategy
    layers = strategy.stage_layers(shape.layers)[stage]
    step_flop = 3 * layer_forward_flop(shape, training) * layers * strategy.micro_batches
    return Frontier(found, solve(found, step_flop))


def solve(found: tuple[Candidate, ...], step_flop: float) -> tuple[Choice, ...]:
    """The frontier of a bounded knapsack, in rising order of both sums.

    Args:
        found: the kinds.
        step_flop: operations of the step, which the extra ones are a share of.

    Raises:
        InputError: a sum is above what 63 bits hold.
    """
    if sum(item.layers * max(item.saved_bytes, item.extra_flop) for item in found) >= 2**63:
        raise InputError("the operations of a step don't fit into 63 bits; plan fewer micro_batches")
    saved, flop = np.zeros(1, np.int64), np.zeros(1, np.int64)
    counts = np.zeros((1, 0), np.int64)
    for item in found:
        copies = np.arange(item.layers + 1, dtype=np.int64)
        net = copies * item.saved_bytes - (copies > 0) * item.live_bytes
        new_saved = (saved[:, None] + net).ravel()
        new_flop = (flop[:, None] + copies * item.extra_flop).ravel()
        keep = _non_dominated(new_saved, new_flop)
        before, taken = np.divmod(keep, item.layers + 1)
        counts = np.column_stack([counts[before], taken])
        saved, flop = new_saved[keep], new_flop[keep]
    return tuple(
        Choice(
            layers={item.name: int(count) for item, count in zip(found, row, strict=True) if count},
            saved_bytes=int(bytes_saved),
            extra_flop=int(operations),
            extra_share=int(operations) / step_flop if step_flop else 0.0,
        )
        for row, bytes_saved, operations in zip(counts, saved, flop, strict=True)
    )


def _non_dominated(saved: Int, flop: Int) -> Int:
    """Indices of the states that no other one beats, in rising order of both."""
    order = np.lexsort((-saved, flop))  # cheapest first, of equals the one that saves most
    best = np.maximum.accumulate(saved[order])
    keep = np.empty(len(order), bool)
    keep[0] = True
    keep[1:] = saved[order][1:] > best[:-1]
    kept: Int = order[keep]
    return kept
