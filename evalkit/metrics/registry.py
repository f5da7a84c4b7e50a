"""Every metric, declared once: name, unit, direction, interval method, and what to do when it is bad."""

import difflib
import math
from collections.abc import Sequence

from evalkit.errors import InputError
from evalkit.metrics.context import RobustnessSetup
from evalkit.metrics.estimators import IntervalMethod
from evalkit.metrics.result import Direction
from evalkit.metrics.robustness_specs import declared_robustness, parse_robustness
from evalkit.metrics.spec import Family, MetricSpec

# The partition of tokens: the words of the precedence, then the frequency bands, then what no rule reaches.
TOKEN_CLASSES = ("head", "middle", "long_tail", "oov", "domain", "other")

# Metrics that exist once a class.
CLASS_METRICS = (
    "perplexity",
    "logits/entropy",
    "logits/margin",
    "logits/rank",
    "logits/top_k_accuracy",
    "calibration/top1_ece",
    "calibration/top1_brier",
)

# Expectations of a dialogue, each with a pass rate of its own.
EXPECTATION_KINDS = (
    "intent",
    "handover",
    "contains",
    "matches",
    "forbidden",
    "slots",
    "recalls",
    "max_ms",
    "never",
    "order",
    "end_state",
)

_CLASS = "<class>"
_ANY = (-math.inf, math.inf)
_SHARE = (0.0, 1.0)
_POSITIVE = (0.0, math.inf)
_PERPLEXITY = (1.0, math.inf)


def _perplexity(name: str, action: str, family: Family = "text") -> MetricSpec:
    return MetricSpec(
        name, "ratio", "lower", family, "cluster-bootstrap", _PERPLEXITY, action, log_scale=True
    )


def _logits(
    name: str,
    unit: str,
    direction: Direction,
    support: tuple[float, float],
    action: str,
    *,
    two_sided: bool = False,
) -> list[MetricSpec]:
    return [
        MetricSpec(full, unit, direction, "text", "cluster-bootstrap", support, action, two_sided=two_sided)
        for full in (name, f"{name}/{_CLASS}")
    ]


def _share(
    name: str,
    direction: Direction,
    family: Family,
    method: IntervalMethod,
    action: str,
    *,
    two_sided: bool = False,
) -> MetricSpec:
    return MetricSpec(name, "share", direction, family, method, _SHARE, action, two_sided=two_sided)


def _dialogue(
    name: str, unit: str, direction: Direction, support: tuple[float, float], action: str
) -> MetricSpec:
    return MetricSpec(name, unit, direction, "dialogue", "cluster-bootstrap", support, action)


def _latency(name: str, action: str) -> MetricSpec:
    return MetricSpec(name, "ms", "lower", "dialogue", "percentile", _POSITIVE, action)


SPECS: tuple[MetricSpec, ...] = (
    _perplexity(
        "perplexity/token",
        "5 % above the baseline: read the worst samples, then compare its training data with the baseline's.",
    ),
    _perplexity(
        "perplexity/word",
        "5 % above the baseline: as perplexity/token; it is the one to compare across tokenizers.",
        family="words",
    ),
    _perplexity(
        "perplexity/byte",
        "2 % above the baseline: as perplexity/token; comparable across tokenizers and languages.",
        family="bytes",
    ),
    MetricSpec(
        "bits_per_byte",
        "bits/byte",
        "lower",
        "bytes",
        "cluster-bootstrap",
        _POSITIVE,
        "2 % above the baseline: as perplexity/token; comparable across tokenizers and languages.",
        log_scale=True,
    ),
    _perplexity(
        f"perplexity/{_CLASS}",
        "10 % above the baseline: this class got worse than the rest; "
        "look for its tokens in the training data and raise their share.",
    ),
    _perplexity(
        "perplexity/without_oov",
        "5 % above the baseline while perplexity/oov holds: the loss is general, not one of new words.",
    ),
    _share(
        "rate/oov",
        "lower",
        "text",
        "exact-binomial",
        "above 0.05: the texts have moved away from the training data; refresh the word counts or the data.",
    ),
    *_logits(
        "logits/entropy",
        "nats",
        "lower",
        _POSITIVE,
        "20 % from the baseline either way: up is a model unsure of itself, down with worse perplexity "
        "is one that is sure and wrong.",
        two_sided=True,
    ),
    *_logits(
        "logits/margin",
        "nats",
        "higher",
        _ANY,
        "falling below the baseline by 0.2: right answers stand less clear of their rivals; "
        "greedy decoding will flip more often.",
    ),
    *_logits(
        "logits/rank",
        "rank",
        "lower",
        _PERPLEXITY,
        "20 % above the baseline: the right token has slipped down the list; read the worst tokens.",
    ),
    *[
        _share(
            name,
            "higher",
            "text",
            "exact-binomial",
            "0.02 below the baseline: greedy replies will differ; read the worst tokens of this class.",
        )
        for name in ("logits/top_k_accuracy", f"logits/top_k_accuracy/{_CLASS}")
    ],
    _share(
        "risk/high_risk_recall",
        "higher",
        "risk",
        "bootstrap-and-exact",
        "below the operating point: high-risk cases pass unseen; add labelled ones and recalibrate.",
    ),
    _share(
        "risk/false_reject_rate",
        "lower",
        "risk",
        "bootstrap-and-exact",
        "above 0.10: good customers are turned away; look at the decisions nearest to the threshold.",
    ),
    _share(
        "risk/precision",
        "higher",
        "risk",
        "bootstrap-and-exact",
        "below 0.5: more than half of the rejections are wrong; look at the score histogram by label.",
    ),
    MetricSpec(
        "risk/cost",
        "cost per decision",
        "lower",
        "cost",
        "bounded-mean",
        _POSITIVE,
        "above the baseline: more or dearer wrong decisions; weigh the operating point against the cost matrix.",
    ),
    MetricSpec(
        "risk/auc",
        "share",
        "higher",
        "risk",
        "percentile",
        _SHARE,
        "below 0.8: the labels' log-probabilities don't separate the cases; check prompts and training data.",
    ),
    MetricSpec(
        "calibration/ece",
        "share",
        "lower",
        "calibration",
        "percentile",
        _SHARE,
        "above 0.10 and above expected_if_calibrated: the probabilities overstate; rescale them before use.",
    ),
    MetricSpec(
        "calibration/brier",
        "squared error",
        "lower",
        "calibration",
        "cluster-bootstrap",
        _SHARE,
        "above of_the_base_rate: a constant guess would do better; look at the reliability curve.",
    ),
    *[
        MetricSpec(
            name,
            "share",
            "lower",
            "text",
            "percentile",
            _SHARE,
            "above 0.05 and above expected_if_calibrated: the probabilities of the next token overstate or understate; "
            "compare mean_confidence with accuracy, and mind it before sampling or thresholds rely on them.",
        )
        for name in ("calibration/top1_ece", f"calibration/top1_ece/{_CLASS}")
    ],
    *[
        MetricSpec(
            name,
            "squared error",
            "lower",
            "text",
            "cluster-bootstrap",
            _SHARE,
            "above of_the_base_rate: the confidence says less than the accuracy alone; look at the reliability curve.",
        )
        for name in ("calibration/top1_brier", f"calibration/top1_brier/{_CLASS}")
    ],
    _share(
        "dialogue/pass_hat_k",
        "higher",
        "dialogue",
        "exact-binomial",
        "below 0.8: open the failed dialogues; the first failed expectation says where it went wrong.",
    ),
    _share(
        "dialogue/consistency",
        "higher",
        "dialogue",
        "exact-binomial",
        "below 0.9: facts are lost between turns; look at the attention window and dropped turns.",
    ),
    _share(
        "dialogue/consistency_single_turn",
        "higher",
        "dialogue",
        "exact-binomial",
        "below 0.95: the model misses facts that stand in the same text; its training data lack such questions.",
    ),
    MetricSpec(
        "dialogue/consistency_fall",
        "share",
        "lower",
        "dialogue",
        "cluster-bootstrap",
        (-1.0, 1.0),
        "above 0.1: what is recalled in one turn is lost over several; look at the attention window and dropped turns.",
    ),
    *(
        _share(
            f"dialogue/expectation/{kind}",
            "higher",
            "dialogue",
            "exact-binomial",
            "below 0.9: open the dialogues that fail this kind of expectation.",
        )
        for kind in EXPECTATION_KINDS
    ),
    _share(
        "dialogue/expectation/prompt_tokens",
        "higher",
        "dialogue",
        "exact-binomial",
        "below 1: the server lays prompts out otherwise than the bundle's chat template and tokenizer; whatever the replies "
        "are worth, they answer other prompts: serve the bundle with a sandbox of this version.",
    ),
    _share(
        "dialogue/repeatability",
        "higher",
        "dialogue",
        "exact-binomial",
        "below 1: equal conversations got different replies though greedy decoding is promised; look at the server's "
        "sampling and its cache.",
    ),
    _share(
        "dialogue/handover_precision",
        "higher",
        "dialogue",
        "exact-binomial",
        "below 0.9: colleagues get cases that the model could close; raise the hand-over threshold.",
    ),
    _share(
        "dialogue/handover_recall",
        "higher",
        "dialogue",
        "exact-binomial",
        "below 0.95: customers who need a person don't get one; check intents and words of the flow.",
    ),
    _share(
        "dialogue/handover_rate",
        "lower",
        "dialogue",
        "exact-binomial",
        "0.05 above the baseline: compare handover_precision and handover_recall before the threshold is touched.",
        two_sided=True,  # a bot that never hands over isn't a good one
    ),
    _dialogue(
        "dialogue/late_turns",
        "turns",
        "lower",
        _POSITIVE,
        "above 1: hand-over comes, but late; lower its threshold or add words.",
    ),
    _dialogue(
        "dialogue/satisfaction",
        "score 1-5",
        "higher",
        (1.0, 5.0),
        "below 3.5: read the lowest dialogues; mind the predictor's own error beside the value.",
    ),
    _share(
        "dialogue/resolution_rate",
        "higher",
        "dialogue",
        "exact-binomial",
        "below 0.8: open the unresolved dialogues by intent.",
    ),
    _dialogue(
        "dialogue/resolution_turns",
        "turns",
        "lower",
        _POSITIVE,
        "one turn above the baseline: the model asks again for what it was told.",
    ),
    MetricSpec(
        "dialogue/cost",
        "cost per dialogue",
        "lower",
        "dialogue_cost",
        "cluster-bootstrap",
        _POSITIVE,
        "above the baseline: its details say which kind of cost grew; open those dialogues.",
    ),
    _latency(
        "latency/first_token",
        "above its budget: look at prefill, prompt length and cache/reuse_ratio.",
    ),
    _latency(
        "latency/turn_overhead",
        "above 15 ms: look at intent, hand-over and satisfaction timings of the server.",
    ),
    _latency(
        "latency/per_token",
        "20 % above the baseline: look at the engine, batch shapes and the machine's load.",
    ),
    _share(
        "cache/reuse_ratio",
        "higher",
        "dialogue",
        "exact-binomial",
        "below 0.85: look at the attention window and the cache budget.",
    ),
)


def by_name(specs: Sequence[MetricSpec]) -> dict[str, MetricSpec]:
    """The declaration of every name, `<class>` spelled out.

    Raises:
        ValueError: a name is declared twice, so that it would have two directions.
    """
    found: dict[str, MetricSpec] = {}
    for spec in specs:
        for name in dict.fromkeys(spec.name.replace(_CLASS, token_class) for token_class in TOKEN_CLASSES):
            if name in found:
                raise ValueError(f"{name} is declared twice")
            found[name] = spec
    return found


_BY_NAME = by_name(SPECS)


def metric_names() -> tuple[str, ...]:
    """Every name that a rule may use, in declaration order."""
    return tuple(_BY_NAME)


def robustness_specs(setups: Sequence[RobustnessSetup]) -> dict[str, MetricSpec]:
    """The declaration of every metric under the perturbations of a scenario."""
    return declared_robustness(setups, _BY_NAME)


def spec_for(name: str) -> MetricSpec:
    """The declaration of `name`.

    Raises:
        InputError: no metric has this name; the nearest names are given.
    """
    spec = _BY_NAME.get(name) or parse_robustness(name, _BY_NAME)
    if spec is not None:
        return spec
    near = difflib.get_close_matches(name, _BY_NAME, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"one of: {', '.join(_BY_NAME)}"
    raise InputError(f"unknown metric {name!r}; {hint}")
