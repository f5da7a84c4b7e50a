"""From texts and a target to what the metrics need to know of the weights."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from evalkit.canonical import sha256_json
from evalkit.errors import InputError
from evalkit.metrics.context import ResampleSetup
from evalkit.metrics.estimators import FloatArray, group_clusters
from evalkit.metrics.resampled import SLICE
from evalkit.resampling.bins import CellCounts
from evalkit.resampling.features import Feature, feature_matrix
from evalkit.resampling.reweighting import Reweighting, ReweightingSettings, bins_of, reweight_to
from evalkit.scenario.additions_schema import Resample
from evalkit.scoring.texts import TextItem, unscorable


@dataclass(frozen=True, eq=False)
class ValidationSide:
    """The validation texts that can be scored, with their features. Build it with `validation_side`.

    Attributes:
        features: by which they are compared.
        ids: of the texts.
        clusters: index of each text's cluster, shape (texts,).
        values: shape (texts, features).
    """

    features: tuple[Feature, ...]
    ids: tuple[str, ...]
    clusters: npt.NDArray[np.int64]
    values: FloatArray

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features."""
        return tuple(feature.name for feature in self.features)

    def counts(self, target: FloatArray, settings: ReweightingSettings) -> CellCounts:
        """The target's texts, with these features, by joint bin of the validation texts."""
        return CellCounts.of(bins_of(self.names, self.values, settings).codes(target))

    def reweighted(
        self,
        target: FloatArray | CellCounts,
        settings: ReweightingSettings,
        seed: int,
        size: int | None = None,
    ) -> Reweighting:
        """The texts re-weighted to a target with these features, or to its counts; see `reweight`."""
        return reweight_to(
            bins_of(self.names, self.values, settings),
            self.values,
            target if isinstance(target, CellCounts) else self.counts(target, settings),
            clusters=self.clusters,
            settings=settings,
            seed=seed,
            size=size,
        )

    def setup(
        self,
        target: FloatArray | CellCounts,
        settings: ReweightingSettings,
        seed: int,
        size: int | None = None,
        target_sha256: str = "",
    ) -> ResampleSetup:
        """The same, as the metrics take it.

        Args:
            target: features of the target's texts, or their counts.
            settings, seed, size: see `reweight`.
            target_sha256: of the target; part of the signature of every re-weighted number. In a training the target
                moves on, and the numbers follow it: then none.
        """
        found = self.reweighted(target, settings, seed, size)
        return ResampleSetup(
            weights=dict(zip(self.ids, found.weights.tolist(), strict=True)),
            digest=self._digest(settings, seed, size, target_sha256),
            problem=found.problem,
            details=found.details(),
        )

    def without_weights(self, problem: str, settings: ReweightingSettings, seed: int) -> ResampleSetup:
        """What the metrics take where there are no weights, for a reason."""
        weights = dict.fromkeys(self.ids, 0.0)
        return ResampleSetup(weights, self._digest(settings, seed, None, ""), problem)

    def _digest(self, settings: ReweightingSettings, seed: int, size: int | None, target_sha256: str) -> str:
        return sha256_json(
            {
                "features": [feature.identity for feature in self.features],
                "settings": asdict(settings),
                "seed": seed if size is not None or settings.method == "classifier" else None,
                "size": size,
                "target": target_sha256,
            }
        )


def validation_side(features: Sequence[Feature], texts: Sequence[TextItem]) -> ValidationSide:
    """Measure the features of the texts that can be scored.

    Raises:
        InputError: no text can be, one has a tag with the slice's name, or a feature fails.
    """
    for item in texts:
        if SLICE in item.tags:
            raise InputError(
                f"text {item.sample_id!r} has the tag {SLICE!r}, which names the re-weighted texts; rename it"
            )
    used = [item for item in texts if unscorable(item.text) is None]
    if not used:
        raise InputError("no text can be scored, so there is nothing to re-weight")
    _, clusters = group_clusters([item.cluster for item in used])
    return ValidationSide(
        features=tuple(features),
        ids=tuple(item.sample_id for item in used),
        clusters=clusters.astype(np.int64),
        values=feature_matrix(features, [item.text for item in used]),
    )


def resample_setup(
    features: Sequence[Feature],
    texts: Sequence[TextItem],
    target: Sequence[TextItem],
    spec: Resample,
    seed: int,
) -> ResampleSetup:
    """The texts of a scenario re-weighted to its target.

    Raises:
        InputError: see `validation_side`; or no text of the target can be scored.
    """
    wanted = [item for item in target if unscorable(item.text) is None]
    if not wanted:
        raise InputError(
            "no text of the target can be scored; give a file of texts like those of the traffic"
        )
    settings = ReweightingSettings(
        method=spec.method,
        bins=spec.bins,
        cap=spec.cap,
        min_effective=spec.min_effective,
        max_uncovered=spec.max_uncovered,
        max_distance=spec.max_distance,
    )
    return validation_side(features, texts).setup(
        feature_matrix(features, [item.text for item in wanted]),
        settings,
        seed,
        spec.size,
        sha256_json(sorted(item.digest for item in wanted)),
    )
