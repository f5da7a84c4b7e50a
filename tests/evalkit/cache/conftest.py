"""What the tests of the result cache share."""

from tests.support.caching import asked

__all__ = ["asked"]
