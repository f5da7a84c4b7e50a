"""Time stamps to integer nanoseconds, exactly.

A float64 of 1.7e15 µs has a step of 0.25 µs: enough to turn the nesting of events around. So a time stamp of
that size is never read as a float: `json_stream` hands it over as text, and text becomes nanoseconds by decimal
arithmetic.
"""

from decimal import Decimal, InvalidOperation
from typing import Any

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
# A signed 64-bit number of nanoseconds, with room for differences and sums.
MAX_NS = 1 << 62


class BadTime(ValueError):  # noqa: N818 - a reason, not a failure of the program
    """A time stamp that can't be used; `kind` is its quarantine kind."""

    def __init__(self, kind: str, value: object) -> None:
        """Say which kind of bad value it was."""
        super().__init__(f"{value!r}")
        self.kind = kind


def to_ns(value: Any, ns_per_unit: int = NS_PER_US) -> int:
    """A time in a unit (default: microseconds; a number or its text) as nanoseconds, rounded to the nearest.

    Raises:
        BadTime: no number, NaN, infinite, or beyond 2^62 ns.
    """
    kind = type(value)
    if kind is int:
        ns: int = value * ns_per_unit
    elif kind is float:
        try:
            # Whole and fraction apart: their difference is exact, a product of the whole value wouldn't be.
            whole = int(value)
            ns = whole * ns_per_unit + round((value - whole) * ns_per_unit)
        except (ValueError, OverflowError):  # NaN and infinities
            raise BadTime("malformed_event" if value != value else "overflow", value) from None
    elif kind is str:
        ns = _text_to_ns(value, ns_per_unit)
    else:
        raise BadTime("malformed_event", value)
    if not -MAX_NS < ns < MAX_NS:
        raise BadTime("overflow", value)
    return ns


def _text_to_ns(text: str, ns_per_unit: int) -> int:
    # The usual form, digits.ddd, without the cost of Decimal.
    whole, _, fraction = text.partition(".")
    if ns_per_unit == NS_PER_US and len(fraction) == 3 and whole.isdecimal() and fraction.isdecimal():
        return int(whole) * 1000 + int(fraction)
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        raise BadTime("malformed_event", text) from None
    if not number.is_finite():
        raise BadTime("malformed_event" if number.is_nan() else "overflow", text)
    if number.adjusted() > 19:
        raise BadTime("overflow", text)
    return int((number * ns_per_unit).to_integral_value())
