"""Weights from a classifier that tells the target's texts from the validation set's.

The odds of a calibrated classifier are the density ratio of the two, up to the ratio of their sizes (Bickel, Brückner &
Scheffer 2009, JMLR 10). It sees how features go together, which raking on their marginals doesn't.
"""

import numpy as np

from evalkit.metrics.estimators import FloatArray
from evalkit.resampling.bins import CodeArray
from evalkit.resampling.raking import capped

_FOLDS = 5


def density_ratio(validation: CodeArray, target: CodeArray, cap: float, seed: int) -> FloatArray:
    """Weights of mean 1 for the validation texts.

    Logistic regression on the bins and the pairs of bins, calibrated by Platt's sigmoid on folds that it didn't learn from.

    Args:
        validation, target: bins of the features, shape (texts, features); at least 5 texts each.
        cap: largest weight, as a multiple of the mean.
        seed: of the folds.

    Returns:
        Shape (validation texts,).
    """
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures

    features = np.concatenate([validation, target])
    labels = np.concatenate([np.zeros(len(validation)), np.ones(len(target))])
    classifier = CalibratedClassifierCV(
        make_pipeline(
            OneHotEncoder(handle_unknown="ignore", sparse_output=False),
            PolynomialFeatures(2, interaction_only=True, include_bias=False),
            LogisticRegression(max_iter=1000),
        ),
        method="sigmoid",
        cv=StratifiedKFold(_FOLDS, shuffle=True, random_state=seed),
    )
    classifier.fit(features, labels)
    probability = classifier.predict_proba(validation)[:, 1].astype(np.float64)
    # A probability of 1 has no odds; the cap would cut them anyway.
    odds = probability / np.maximum(1 - probability, np.finfo(np.float64).tiny)
    return capped(np.minimum(odds, 1e12), cap)
