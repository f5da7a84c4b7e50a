"""Blocks of keys and values that later turns may reuse, found by their tokens.

A conversation is a path in a tree of blocks: a child is found by the block's token ids and by whose it is, so a hit
is a comparison of tokens, never of hashes. What a tenant's sessions share (prefix token, system text) belongs to
nobody in particular below the tenant's root; everything after it belongs to one session and is found by no other.
Blocks are copied into a turn's row when it starts, so evicting one can't harm a turn in flight; still those
that a turn in flight started from are kept.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from sandbox.engine.kv_cache import BLOCK, KvRows, KvShape

_Edge = tuple[int | None, tuple[int, ...]]  # the session it belongs to (None: the tenant's), its token ids


class _Node:
    """One block of a path."""

    __slots__ = ("block", "children", "edge", "parent", "pins", "users")

    def __init__(self, parent: "_Node | None", edge: _Edge, block: int) -> None:
        self.parent = parent
        self.edge = edge
        self.block = block
        self.children: dict[_Edge, _Node] = {}
        self.pins = 0
        self.users: set[int] = set()


class _Root(_Node):
    """Where the paths of a tenant begin."""

    __slots__ = ("tenant",)

    def __init__(self, tenant: str) -> None:
        super().__init__(None, (None, ()), -1)
        self.tenant = tenant


class Lease:
    """What a turn in flight reuses, and where what it computes will be kept.

    Attributes:
        tokens: how many leading tokens of the prompt are in the cache.
    """

    def __init__(self, key: int, shared_tokens: int, root: _Root, path: list[_Node]) -> None:
        self._key = key
        self._shared_tokens = shared_tokens
        self._root = root
        self._path = path
        self._open = True

    @property
    def tokens(self) -> int:
        """See the class."""
        return len(self._path) * BLOCK


class PrefixCache:
    """The blocks of all sessions under one budget, the longest unused ones evicted first."""

    def __init__(self, shape: KvShape, blocks: int) -> None:
        """Take memory for `blocks` blocks."""
        self._shape = shape
        self._memory = [
            np.zeros((blocks, shape.kv_heads, BLOCK, shape.head_size), np.float32)
            for _ in range(2 * shape.layers)
        ]
        self._never_used = iter(range(blocks))
        self._free: list[int] = []
        self._roots: dict[str, _Root] = {}
        self._recent: OrderedDict[_Node, None] = OrderedDict()  # least recently used first
        self._of_session: dict[int, set[_Node]] = {}
        self._leases: dict[int, set[Lease]] = {}

    @property
    def used_bytes(self) -> int:
        """Memory of the blocks in use."""
        return len(self._recent) * BLOCK * self._shape.token_bytes

    def lease(self, tenant: str, key: int, shared_tokens: int, prompt: Sequence[int], limit: int) -> Lease:
        """Find the longest kept prefix of a prompt and keep it for a turn; `give_back` must follow.

        Args:
            tenant: whose conversation it is.
            key: names the session.
            shared_tokens: how many leading tokens other sessions of the tenant may reuse.
            prompt: the token ids.
            limit: use at most this many tokens.
        """
        root = self._roots.get(tenant)
        if root is None:
            root = self._roots[tenant] = _Root(tenant)
        lease = Lease(key, shared_tokens, root, [])
        node: _Node = root
        for start in range(0, limit - BLOCK + 1, BLOCK):
            child = node.children.get(_edge(lease, prompt, start))
            if child is None:
                break
            self._hold(lease, child)
            node = child
        root.pins += 1
        self._touch(lease)
        self._leases.setdefault(key, set()).add(lease)
        return lease

    def load(self, lease: Lease, rows: KvRows, row: int) -> None:
        """Copy what a lease holds to the beginning of a row."""
        indices = [node.block for node in lease._path]
        if not indices:
            return
        shape = (self._shape.kv_heads, len(indices), BLOCK, self._shape.head_size)
        for memory, part in zip(self._memory, rows.parts, strict=True):
            part[row, :, : lease.tokens].reshape(shape)[:] = memory[indices].transpose(1, 0, 2, 3)

    def keep(self, lease: Lease, ids: Sequence[int], computed: int, rows: KvRows, row: int) -> None:
        """Keep the whole blocks among a row's first `computed` tokens; where memory is short, fewer of them.

        Args:
            lease: of the turn in the row; it grows.
            ids: the row's token ids.
            computed: how many of them have keys and values that a fresh computation of the prompt would give too.
            rows, row: where they are.
        """
        if not lease._open:
            return
        taken: list[tuple[int, int]] = []  # block, and where its tokens begin
        for start in range(lease.tokens, computed - BLOCK + 1, BLOCK):
            node = lease._path[-1] if lease._path else lease._root
            edge = _edge(lease, ids, start)
            child = node.children.get(edge)
            if child is None:
                block = self._take_block()
                if block is None:
                    break
                taken.append((block, start))
                child = node.children[edge] = _Node(node, edge, block)
                self._recent[child] = None
            self._hold(lease, child)
        self._touch(lease)
        if taken:
            blocks, starts = (list(column) for column in zip(*taken, strict=True))
            places = np.add.outer(starts, np.arange(BLOCK))
            for memory, part in zip(self._memory, rows.parts, strict=True):
                memory[blocks] = part[row][:, places].transpose(1, 0, 2, 3)

    def give_back(self, lease: Lease) -> None:
        """End a lease; what it holds may be evicted from now on."""
        leases = self._leases.get(lease._key)
        if leases is None or lease not in leases:
            return
        leases.discard(lease)
        if not leases:
            del self._leases[lease._key]
        for node in (lease._root, *lease._path):
            node.pins -= 1
        lease._open = False
        self._forget_if_bare(lease._root)

    def drop(self, key: int) -> None:
        """Forget a session: its blocks, and the shared ones that no other session uses. Unknown keys are ignored."""
        for lease in list(self._leases.get(key, ())):
            self.give_back(lease)
        nodes = self._of_session.pop(key, set())
        for node in nodes:
            node.users.discard(key)
        for node in nodes:
            if not node.users:
                self._remove(node)

    def _hold(self, lease: Lease, node: _Node) -> None:
        node.pins += 1
        node.users.add(lease._key)
        self._of_session.setdefault(lease._key, set()).add(node)
        lease._path.append(node)

    def _touch(self, lease: Lease) -> None:
        # Ends first: of a path, the end is the first to be evicted.
        for node in reversed(lease._path):
            self._recent.move_to_end(node)

    def _forget_if_bare(self, node: _Node) -> None:
        if isinstance(node, _Root) and not node.pins and not node.children:
            self._roots.pop(node.tenant, None)

    def _take_block(self) -> int | None:
        if self._free:
            return self._free.pop()
        fresh = next(self._never_used, None)
        if fresh is not None:
            return fresh
        for node in self._recent:
            if not node.pins and not node.children:
                self._remove(node)
                return self._free.pop()
        return None

    def _remove(self, node: _Node) -> None:
        del self._recent[node]
        self._free.append(node.block)
        parent = node.parent
        assert parent is not None, "a root is never removed here"
        if parent.children.get(node.edge) is node:
            del parent.children[node.edge]
        self._forget_if_bare(parent)
        for key in node.users:
            held = self._of_session[key]
            held.discard(node)
            if not held:
                del self._of_session[key]


def _edge(lease: Lease, ids: Sequence[int], start: int) -> _Edge:
    end = start + BLOCK
    return (None if end <= lease._shared_tokens else lease._key, tuple(ids[start:end]))
