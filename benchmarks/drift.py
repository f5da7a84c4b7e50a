"""How well a validation set tracks moving traffic, fixed and drift-aware.

    python -m benchmarks.drift DIALOGUES --work FOLDER [--seeds 20] [--first-seed 0] [--out FILE.json] [--plot FILE.svg]

The stream is banking77 questions with a share of customers' utterances in dialogues (sgd_banks_payment) that rises from 10
to 90 %. The validation set is drawn once, where the stream begins. At each share the drift-aware validation re-weights it to
a window of the stream; it never sees which source a text is from. The truth is the metric on the whole fresh half of the
pools, mixed exactly. Validation and stream share no text and no dialogue. Where the weights don't reach, the result is
INCONCLUSIVE: no number comes from it, and its reader is left with the fixed one, whose error is counted then.
Every number is evalkit's own: texts are scored once, then weighted.
"""

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.drift_data import (
    F1,
    QUESTIONS,
    SCRAMBLED,
    TERMS,
    UTTERANCES,
    Pool,
    business,
    courtesy,
    digest,
    load_pool,
    topic_words,
)
from evalkit.bundle import load_bundle
from evalkit.metrics.context import MetricContext, ResampleSetup
from evalkit.metrics.estimators import FloatArray, NamedEstimator
from evalkit.metrics.resampled import text_by_text, weighted
from evalkit.resampling.features import (
    Feature,
    entity_density,
    feature_matrix,
    from_function,
    number_density,
    term_density,
    token_length,
)
from evalkit.resampling.reweighting import ReweightingSettings
from evalkit.resampling.setup import ValidationSide

SHARES = tuple(round(0.1 * step, 1) for step in range(1, 10))
BUILT_IN = "length, numbers and terms"
WITH_OWN = "length, entities, courtesy and business words"
# More bins for few features: the outermost ones are narrower.
FINE = ReweightingSettings(bins=10)
VALIDATION_TEXTS, WINDOW_TEXTS = 3000, 4000
METRICS = (F1.name, "perplexity/token", "perplexity/head", "perplexity/middle", "perplexity/long_tail")
_DETAILS = ("effective_sample_size", "uncovered_mass", "joint_before", "joint_after")

Mixture = dict[str, float]
IndexArray = npt.NDArray[np.intp]


def drifting(share: float) -> Mixture:
    """More and more utterances of dialogues."""
    return {QUESTIONS: 1 - share, UTTERANCES: share}


def constant(share: float) -> Mixture:
    """The traffic of the beginning, for ever."""
    return drifting(SHARES[0])


def hidden(share: float) -> Mixture:
    """A change that no feature sees: of the questions a rising part has its words in another order."""
    return {QUESTIONS: 0.9 * (1 - share), SCRAMBLED: 0.9 * share, UTTERANCES: 0.1}


STREAMS = {"drift": drifting, "no drift": constant, "concept shift": hidden}


@dataclass(frozen=True)
class Half:
    """Half of the pools: rows of each source."""

    rows: dict[str, IndexArray]

    def draw(self, mixture: Mixture, size: int, generator: np.random.Generator) -> IndexArray:
        """Rows drawn from a mixture, without repeats within a source while it has enough."""
        counts = generator.multinomial(size, list(mixture.values()))
        parts = [
            generator.choice(self.rows[source], count, replace=count > len(self.rows[source]))
            for source, count in zip(mixture, counts, strict=True)
        ]
        return np.concatenate(parts)

    def exact(self, mixture: Mixture, texts: int) -> FloatArray:
        """Weights that make the whole half the mixture, shape (texts,)."""
        weights = np.zeros(texts)
        for source, share in mixture.items():
            weights[self.rows[source]] = share / len(self.rows[source])
        return weights


class Tracking:
    """The pool's metrics under any weights, and the features by which a validation set follows."""

    def __init__(self, pool: Pool, features: tuple[Feature, ...], settings: ReweightingSettings) -> None:
        self.pool, self.features, self.settings = pool, features, settings
        self.values = feature_matrix(self.features, [item.text for item in pool.items])
        context = MetricContext(confidence=0.95, seed=0, signatures={})
        named = text_by_text(pool.evidence.samples, context, [F1])
        self.named = {item.name: item for item in named if item.name in METRICS}
        self.ids = tuple(item.sample_id for item in pool.items)
        self.cluster_of = {item.sample_id: item.cluster for item in pool.items}

    def measure(self, weights: FloatArray) -> dict[str, float]:
        """Every metric under weights of the pool's texts."""
        setup = ResampleSetup(dict(zip(self.ids, weights.tolist(), strict=True)), "benchmark")
        return {name: _value(weighted(item, setup, self.cluster_of)) for name, item in self.named.items()}

    def run(self, stream: str, seed: int) -> dict[str, Any]:
        """One stream: truth, fixed and drift-aware values at every share."""
        generator = np.random.default_rng([seed, list(STREAMS).index(stream)])
        own, fresh = self._halves(generator)
        chosen = np.unique(own.draw(drifting(SHARES[0]), VALIDATION_TEXTS, generator))
        side = ValidationSide(
            self.features,
            tuple(self.ids[row] for row in chosen),
            np.unique([self.cluster_of[self.ids[row]] for row in chosen], return_inverse=True)[1],
            self.values[chosen],
        )
        plain = np.zeros(len(self.ids))
        plain[chosen] = 1.0
        fixed = self.measure(plain)
        steps = []
        for share in SHARES:
            mixture = STREAMS[stream](share)
            window = fresh.draw(mixture, WINDOW_TEXTS, generator)
            found = side.reweighted(self.values[window], self.settings, seed)
            aware = dict(fixed)
            if found.problem is None:
                weights = np.zeros(len(self.ids))
                weights[chosen] = found.weights
                aware = self.measure(weights)
            steps.append(
                {
                    "share": share,
                    "truth": self.measure(fresh.exact(mixture, len(self.ids))),
                    "fixed": fixed,
                    "aware": aware,
                    "problem": found.problem,
                    **{name: getattr(found, name) for name in _DETAILS},
                }
            )
        return {"seed": seed, "steps": steps}

    def _halves(self, generator: np.random.Generator) -> tuple[Half, Half]:
        """Both halves of every source. Scrambled questions go with the half of the question they were made of."""
        names = np.array([name.replace(SCRAMBLED, QUESTIONS) for name in self.ids])
        groups = np.array(
            [
                name if source != UTTERANCES else self.cluster_of[own]
                for name, source, own in zip(names, self.pool.source, self.ids, strict=True)
            ]
        )
        kinds, index = np.unique(groups, return_inverse=True)
        first = generator.permutation(len(kinds)) < len(kinds) / 2
        source = np.array(self.pool.source)
        return tuple(  # type: ignore[return-value]
            Half({name: np.flatnonzero((first[index] == side) & (source == name)) for name in set(source)})
            for side in (True, False)
        )


def _value(named: NamedEstimator) -> float:
    value = None if named.estimator is None else named.estimator.value
    if value is None:
        raise RuntimeError(f"{named.name}: {named.reason}")
    return value


def error(run: dict[str, Any], kind: str, metric: str) -> float:
    """Root mean squared difference from the truth over the shares."""
    return float(
        np.sqrt(np.mean([(step[kind][metric] - step["truth"][metric]) ** 2 for step in run["steps"]]))
    )


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """By metric the tracking errors and their ratio: medians over the seeds, with quartiles."""
    found: dict[str, Any] = {
        "inconclusive_share": float(
            np.mean([step["problem"] is not None for run in runs for step in run["steps"]])
        )
    }
    for metric in METRICS:
        fixed = np.array([error(run, "fixed", metric) for run in runs])
        aware = np.array([error(run, "aware", metric) for run in runs])
        found[metric] = {
            "fixed_rmse": _spread(fixed),
            "aware_rmse": _spread(aware),
            "change": _spread(aware / fixed - 1),
            "change_of_medians": float(np.median(aware) / np.median(fixed) - 1),
        }
    return found


def _spread(values: FloatArray) -> dict[str, float]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(middle), "quartile_1": float(low), "quartile_3": float(high)}


def plot(streams: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Truth, fixed and drift-aware numbers over the share: median of the seeds, with the band of the middle half."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "drift"
    from matplotlib import pyplot

    shown = {F1.name: "F1 of the question recogniser", "perplexity/head": "Perplexity of the class head"}
    figure, axes = pyplot.subplots(len(shown), len(streams), figsize=(11, 6), squeeze=False, sharex=True)
    kinds = {"truth": "#222222", "fixed": "#c0392b", "aware": "#1f6fb2"}
    labels = {"truth": "truth on fresh traffic", "fixed": "fixed validation set", "aware": "drift-aware"}
    for column, (stream, runs) in enumerate(streams.items()):
        for row, (metric, title) in enumerate(shown.items()):
            place = axes[row][column]
            for kind, colour in kinds.items():
                values = np.array([[step[kind][metric] for step in run["steps"]] for run in runs])
                low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
                place.fill_between(SHARES, low, high, color=colour, alpha=0.15, linewidth=0)
                style = "--" if kind == "truth" else "-"
                place.plot(SHARES, middle, style, color=colour, label=labels[kind])
            place.set_title(f"{title}: {stream}" if row == 0 else title, fontsize=10)
            place.spines[["top", "right"]].set_visible(False)
        axes[-1][column].set_xlabel("position in the stream (share of the new kind)", fontsize=9)
    axes[0][0].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dialogues", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--method", choices=("raking", "classifier"), default="raking")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    pool = load_pool(given.dialogues, given.work)
    bundle = load_bundle(pool.bundle)
    length = token_length(bundle.tokenizer, bundle.manifest.tokenizer.sha256)
    entities, default = entity_density(TERMS), ReweightingSettings()
    own = (from_function("courtesy", courtesy), from_function("business", business))
    sets: dict[str, tuple[tuple[Feature, ...], ReweightingSettings]] = {
        "length and entities": ((length, entities), default),
        BUILT_IN: ((length, number_density(), term_density(topic_words(given.dialogues))), FINE),
        WITH_OWN: ((length, entities, *own), default),
    }
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    runs = {}
    for name, (features, settings) in sets.items():
        tracking = Tracking(pool, features, replace(settings, method=given.method))
        runs[name] = {stream: [tracking.run(stream, seed) for seed in seeds] for stream in STREAMS}
    result = {
        "texts_sha256": digest(pool),
        "texts": len(pool.items),
        "validation_texts": VALIDATION_TEXTS,
        "window_texts": WINDOW_TEXTS,
        "method": given.method,
        "seeds": list(seeds),
        "features": {
            name: {stream: summary(of_stream) for stream, of_stream in streams.items()}
            for name, streams in runs.items()
        },
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    if given.out is not None:
        given.out.write_text(json.dumps({**result, "runs": runs}) + "\n")
    if given.plot is not None:
        plot(runs[BUILT_IN], given.plot)


if __name__ == "__main__":
    main()
