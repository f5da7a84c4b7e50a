"""Which metrics an evaluation in training will have, known before it has run."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from evalkit.checks import instance, several
from evalkit.errors import InputError
from evalkit.metrics.declared import declare
from evalkit.metrics.evaluate import build_estimators
from evalkit.metrics.registry import spec_for
from evalkit.metrics.spec import MetricSpec
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ClassSums, SampleRecord
from evalkit.training.evaluation import Validation

_MOST_NAMES = 12  # in a message


class MeasuredNames:
    """The metrics of a validation by name."""

    def __init__(self, check: Validation) -> None:
        """Raises InputError where the user's code doesn't work."""
        declared = declare(check.context)
        # One made-up text of one token: names follow from the settings, whatever the texts are.
        sums = ClassSums(1, nll=1.0, entropy=1.0, margin=1.0, rank=1.0, top1=0, top5=0, bytes=1)
        text = SampleRecord(
            "text", "text", "", "text", "ok", tokens=2, scored=1, nll=1.0, classes={"other": sums}
        )
        # The user's metrics are named by their declaration; their code isn't asked about made-up texts.
        ours = type(declared)(declared.specs, (), declared.mappings, declared.calibrations)
        # Weights are of the real texts.
        plain = replace(check.context, resample=None)
        measured = [named.name for named in build_estimators(Evidence(samples=(text,)), plain, ours)]
        own = [metric.name for metric in declared.own if metric.evidence == "text"]
        self._specs = {name: declared.spec(name) for name in (*measured, *own)}
        self._absent = check.context.absent

    def spec(self, role: str, name: str) -> MetricSpec:
        """The declaration of a metric that will be measured.

        Args:
            role: which argument names it, for the message.

        Raises:
            InputError: it won't be; the nearest names are given.
        """
        if name in self._specs:
            return self._specs[name]
        near = difflib.get_close_matches(name, self._specs, n=3, cutoff=0.6)
        known = _known(name)
        what = f"{name!r} isn't measured here" if known else f"unknown metric {name!r}"
        if near and not known:
            raise InputError(f"{role}: {what}; did you mean {' or '.join(near)}?")
        raise InputError(f"{role}: {what}; it must be one of {_listed(self._specs)}")

    def chosen(self, role: str, names: Sequence[str]) -> frozenset[str]:
        """Names that are to be kept; all will be measured.

        Raises:
            InputError: see `spec`; or there is none.
        """
        found = several(role, names, "metrics' names")
        if not found:
            raise InputError(f"{role}: there is none; leave it out to keep all")
        for name in found:
            self.spec(role, instance(role, name, str, "a list of metrics' names"))
        return frozenset(found)

    def absent(self, name: str) -> str | None:
        """Why a metric will never have a value, where that follows from the settings; else None."""
        base = name.split("/", 2)[2] if name.startswith("robustness/") else name
        return self._absent.get(name) or self._absent.get(base)


def _known(name: str) -> bool:
    try:
        spec_for(name)
    except InputError:
        return False
    return True


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    rest = len(found) - _MOST_NAMES
    return ", ".join(found[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
