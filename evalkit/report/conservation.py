"""The conservation check in words, for every report and the terminal."""

from evalkit.report import numbers
from evalkit.runs.results_io import Conservation


def conservation_sentence(found: Conservation) -> str:
    """What was scored; empty where no text was planned.

    Results in which a token or byte is missing or counted twice can't be made (see `evalkit.runs.results_io`).
    """
    if not found.texts:
        return ""
    tokens, size = numbers.count(found.tokens_scored), numbers.count(found.bytes_scored)
    said = (
        f"{numbers.count(found.ok)} of {numbers.count(found.texts)} texts scored: {tokens} tokens and {size} bytes, "
        "each exactly once"
    )
    if found.tokens_unconditioned:
        rest = numbers.count(found.bytes - found.bytes_scored)
        said += (
            f"; {numbers.count(found.tokens_unconditioned)} first tokens ({rest} bytes) have nothing before them and "
            "are counted, not scored"
        )
    lost = {"in error": found.error, "skipped": found.skipped, "truncated": found.truncated}
    left_out = [f"{numbers.count(number)} {status}" for status, number in lost.items() if number]
    return f"{said}; {', '.join(left_out) or 'none left out'}."
