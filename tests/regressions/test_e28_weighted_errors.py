"""E28: a point estimate and a standard error that belonged to different estimators."""

import math

import numpy as np
import pytest

from evalkit.metrics.context import ResampleSetup
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.resampled import SLICE
from evalkit.runs.evidence import Evidence
from tests.evalkit.metrics.samples import context, text_record


def test_e28_the_error_is_that_of_the_reported_weighted_estimate():
    """One text in ten carries most of the weight: the error of the plain estimate would be far too small."""
    generator = np.random.default_rng(28)
    texts, weights = [], {}
    for index in range(300):
        record = text_record(f"t{index:03d}")
        nll = float(np.round(generator.gamma(4, 6) * 2**30) / 2**30)
        classes = {"head": type(record.classes["head"])(10, nll=nll, rank=10.0, top1=0, top5=0, bytes=40)}
        texts.append(text_record(f"t{index:03d}", nll=nll, classes=classes))
        weights[f"t{index:03d}"] = 9.1 if index % 10 == 0 else 0.1
    setting = context(resample=ResampleSetup(weights, "d"))
    results = evaluate(Evidence(samples=tuple(texts)), setting)
    plain, weighted = (
        next(item for item in results if item.name == "bits_per_byte" and item.slice == where)
        for where in (None, SLICE)
    )
    w = np.array(list(weights.values()))
    rates = np.array([text.nll / 40 / math.log(2) for text in texts])
    mean = w @ rates / w.sum()
    assert weighted.value == pytest.approx(mean, rel=1e-12)
    error = math.sqrt(300 / 299 * ((w * (rates - mean)) ** 2).sum()) / w.sum()
    assert weighted.details["standard_error"] == pytest.approx(error, rel=1e-9)
    assert weighted.details["standard_error"] > 2 * plain.details["standard_error"]
    assert weighted.interval.high - weighted.interval.low > 1.8 * (plain.interval.high - plain.interval.low)
