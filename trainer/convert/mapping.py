"""Weights from another format's names and layouts to ours, and back, by the table in `names.py`."""

from collections.abc import Mapping

import numpy as np

from evalkit.bundle import ModelSpec
from trainer.convert.layouts import join, joined_shape, split
from trainer.convert.names import EMBEDDING, HEAD, Format, Layout, filled, row_of, weight_shapes
from trainer.convert.source import Weights, refusal

_SAME_LAYOUTS: Mapping[Layout, Layout | str] = {}


def to_ours(
    where: object,
    kind: Format,
    tensors: Weights,
    model: ModelSpec,
    layouts: Mapping[Layout, Layout | str] = _SAME_LAYOUTS,
) -> Weights:
    """Our weights, exactly those that the architecture has.

    Args:
        where: for messages.
        kind: whose names and layouts the tensors have.
        tensors: float32 by canonical names; buffers and training state already left out.
        model: the architecture.
        layouts: layouts that this source has instead of the table's; a text says what to do where that isn't known.

    Raises:
        InputError: names the missing, surplus, misshapen or undefined weight.
    """
    if model.layers > len(tensors):
        raise refusal(
            where,
            f"{len(tensors)} weights, its configuration asks for {model.layers} layers",
            "weights and configuration belong to different models",
        )
    shapes = weight_shapes(model)
    tensors = _without_tied_head(where, kind, tensors, model)
    holders = _holders(where, kind, tensors, list(shapes))
    if surplus := sorted(set(tensors) - set(holders)):
        raise refusal(
            where,
            f"{surplus[0]}: weight is unknown to a {kind.value} decoder of this configuration"
            f" ({len(surplus)} unknown in all)",
            "the model has parts that this version doesn't compute",
        )
    found: Weights = {}
    for name, (layout, held) in holders.items():
        layout = _known(where, name, layouts.get(layout, layout), held)
        tensor, wanted = tensors[name], [shapes[ours] for ours in held]
        if tensor.shape != joined_shape(layout, wanted):
            raise refusal(
                where,
                f"{name}: shape {tensor.shape}, its configuration asks for {joined_shape(layout, wanted)}",
                "weights and configuration belong to different models",
            )
        if not np.isfinite(tensor).all():
            raise refusal(where, f"{name}: holds NaN or infinity", "take an undamaged copy of the model")
        parts = split(layout, tensor, wanted, model)
        found |= {ours: np.ascontiguousarray(part) for ours, part in zip(held, parts, strict=True)}
    return {name: found[name] for name in shapes}


def from_ours(kind: Format, weights: Weights, model: ModelSpec) -> Weights:
    """Our weights by the names and in the layouts of another format; undone by `to_ours`."""
    groups: dict[str, tuple[Layout, list[str]]] = {}
    for ours in weight_shapes(model):
        place = row_of(ours).places[kind][0]
        name = filled(place.name, ours)
        assert name is not None, f"{kind.value} has no {ours}"
        groups.setdefault(name, (place.layout, []))[1].append(ours)
    return {
        name: np.ascontiguousarray(join(layout, [weights[ours] for ours in held], model))
        for name, (layout, held) in groups.items()
    }


def _holders(
    where: object, kind: Format, tensors: Weights, names: list[str]
) -> dict[str, tuple[Layout, list[str]]]:
    """Which tensor holds which of our weights."""
    holders: dict[str, tuple[Layout, list[str]]] = {}
    missing = []
    for ours in names:
        places = [
            (name, place)
            for place in row_of(ours).places[kind]
            if (name := filled(place.name, ours)) is not None
        ]
        there = next(((name, place) for name, place in places if name in tensors), None)
        if there is None:
            missing.append((ours, places))
            continue
        holders.setdefault(there[0], (there[1].layout, []))[1].append(ours)
    if missing:
        ours, places = missing[0]
        theirs = f", {places[0][0]} in this format" if places and places[0][0] != ours else ""
        raise refusal(
            where,
            f"{ours}: weight is missing{theirs} ({len(missing)} missing in all)",
            "take a complete copy of the model",
        )
    return {name: (_alone(layout, held), held) for name, (layout, held) in holders.items()}


def _known(where: object, name: str, layout: Layout | str, held: list[str]) -> Layout:
    if isinstance(layout, str):
        raise refusal(where, f"{name}: holds {len(held)} weights in one tensor", layout)
    return layout


def _alone(layout: Layout, held: list[str]) -> Layout:
    # A tensor that could hold several weights, of which the others have tensors of their own, holds just the one.
    return Layout.SAME if layout.fused and len(held) == 1 else layout


def _without_tied_head(where: object, kind: Format, tensors: Weights, model: ModelSpec) -> Weights:
    if not model.tied_head or not HEAD.places[kind]:
        return tensors
    head, embedding = HEAD.places[kind][0].name, EMBEDDING.places[kind][0].name
    if head not in tensors:
        return tensors
    # A copy of the embedding is dropped; another matrix would be silently ignored by a tied model.
    if not np.array_equal(tensors[head], tensors.get(embedding, np.empty(0))):
        raise refusal(
            where,
            f"{head}: differs from the embedding though the configuration ties them (tie_word_embeddings)",
            "mend the configuration",
        )
    return {name: tensor for name, tensor in tensors.items() if name != head}
