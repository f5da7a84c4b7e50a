"""Numbers as people read them: units, signs, intervals. The one place where a report rounds."""

import math

from evalkit.backends.base import DECLARED
from evalkit.metrics.result import Interval

MISSING = "–"
_MINUS = "−"


def number(value: float | None, unit: str | None) -> str:
    """A value with its unit: a share as per cent, milliseconds as ms, everything else in four digits."""
    if value is None or not math.isfinite(value):
        return MISSING
    if unit == "share":
        return f"{_decimals(100 * value)} %"
    if unit == "relative change":
        return change(value, relative=True, unit=None)
    if unit == "ms":
        return f"{_digits(value)} ms"
    return _digits(value)


def change(value: float | None, *, relative: bool, unit: str | None) -> str:
    """A signed change: relative in per cent, a share's in percentage points, others in their unit."""
    if value is None or not math.isfinite(value):
        return MISSING
    if relative or unit == "relative change":
        return f"{_signed(_decimals(100 * value), value)} %"
    if unit == "share":
        return f"{_signed(_decimals(100 * value), value)} pp"
    return _signed(_digits(value), value) + (" ms" if unit == "ms" else "")


def interval(value: Interval | None, unit: str | None) -> str:
    """Both ends; an end that could not be computed is a dash."""
    if value is None:
        return MISSING
    return f"{number(value.low, unit)} … {number(value.high, unit)}"


def change_interval(value: Interval | None, *, relative: bool, unit: str | None) -> str:
    """Both ends of a change."""
    if value is None:
        return MISSING
    ends = (change(end, relative=relative, unit=unit) for end in (value.low, value.high))
    return " … ".join(ends)


def count(value: int | None) -> str:
    """A whole number with thin spaces between thousands."""
    return MISSING if value is None else f"{value:,}".replace(",", "\u202f")


def confidence(value: Interval | None) -> str:
    """How sure an interval is, e.g. `95 %`."""
    return MISSING if value is None else f"{100 * value.confidence:g} %"


def short_digest(digest: str | None) -> str:
    """The first 12 digits of a digest; a declared identity is no digest and stays whole."""
    if not digest:
        return MISSING
    return digest if digest.startswith(DECLARED) else digest[:12]


def _decimals(value: float) -> str:
    """Two decimals near the ends of the scale, where they decide, else one."""
    size = abs(value)
    places = 2 if size < 10 or 99 < size < 100 else 1
    text = f"{value:.{places}f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text.replace("-", _MINUS)


def _digits(value: float) -> str:
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}".replace("-", _MINUS)
    places = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{places}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace("-", _MINUS)


def _signed(text: str, value: float) -> str:
    return f"+{text}" if value > 0 and text != "0" else text
