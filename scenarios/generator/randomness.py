"""Where chance comes from: one generator a part, so that a change in one part leaves the others' bytes alone."""

import hashlib
from random import Random

_HELD_OUT_ONE_IN = 5


def part_random(seed: int, part: str) -> Random:
    """A generator for `part`, seeded by the SHA-256 of seed and part name."""
    digest = hashlib.sha256(f"{seed}:{part}".encode()).digest()
    return Random(int.from_bytes(digest[:8], "big"))


def is_held_out(*key: str) -> bool:
    """Whether a combination belongs to the evaluation: every fifth, by its own hash and not by the seed.

    Training draws only combinations for which this is False, evaluation only those for which it is True; that keeps
    the two apart by construction, whatever the seed.
    """
    digest = hashlib.sha256("/".join(key).encode()).digest()
    return int.from_bytes(digest[:4], "big") % _HELD_OUT_ONE_IN == 0
