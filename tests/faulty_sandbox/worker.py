"""The engine process with a cache that finds blocks by their place alone (not by session, not by tokens) and keeps them."""

from collections.abc import Sequence

from sandbox.engine import prefix_cache, worker


def _edge_of_anybody(
    lease: prefix_cache.Lease, ids: Sequence[int], start: int
) -> tuple[int | None, tuple[int, ...]]:
    return None, (start,)


class SharingCache(prefix_cache.PrefixCache):
    """Blocks outlive their session."""

    def drop(self, key: int) -> None:
        for lease in list(self._leases.get(key, ())):
            self.give_back(lease)


if __name__ == "__main__":
    prefix_cache._edge = _edge_of_anybody
    worker.PrefixCache = SharingCache  # type: ignore[misc]
    worker.main()
