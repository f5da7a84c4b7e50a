"""The scoring head: per-token statistics inside the graph, so that logits never travel to the host."""

from mindspore import Tensor, dtype, nn, ops

# Finite, so that no infinity enters a graph; below every centred float32 logit that a real model gives.
LOWEST = -3.0e38


class ScoringHead(nn.Cell):  # type: ignore[misc]
    """Turns logits into the statistics that evalkit stores for each scored token.

    Everything is float32 and relative to the row's largest logit, which makes the log-softmax stable. The target's own
    weight isn't summed with the others: where it is nearly 1, its logarithm lies in what the others add to it, and that
    would drown in the rounding of a sum near 1.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.sum = ops.ReduceSum()
        # On CPU it's several times faster than the maximum alone.
        self.largest = ops.ArgMaxWithValue(axis=-1, keep_dims=True)
        self.vocab_size = vocab_size

    def construct(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Statistics of N rows.

        Args:
            logits: [N, V], any float type.
            targets: int32 [N], the ids whose log-probability is asked.

        Returns:
            Five tensors [N]: logprob, ln p(target); entropy, -Σ p ln p in nats; margin, ln p(target) - max
            over the other ids of ln p; rank int32, 1 + how many logits are strictly greater than the
            target's; top_id int32, the id of the largest logit, the smallest of equals.
        """
        logits = logits.astype(dtype.float32)
        top_id, largest = self.largest(logits)  # [N, 1] each
        centred = logits - self._wide(largest)  # [N, V], the largest is 0
        column = targets.reshape(-1, 1)
        at_target = ops.gather_d(centred, 1, column)  # [N, 1]
        others = ops.tensor_scatter_elements(centred, column, ops.full_like(at_target, LOWEST), 1)
        better = self.sum((centred > self._wide(at_target)).astype(dtype.float32), -1)  # exact below 2^24
        _, best_other = self.largest(others)

        own = at_target.reshape(-1)  # [N]
        own_weight, weights = ops.exp(own), ops.exp(others)
        rest = self.sum(weights, -1)  # [N]; own_weight + rest is softmax's denominator
        log_total = _log1p(rest + (own_weight - 1.0))
        weighted = self.sum(weights * centred, -1) + own_weight * own
        entropy = log_total - weighted / (own_weight + rest)
        margin = own - best_other.reshape(-1)
        rank = 1 + better.astype(dtype.int32)
        return own - log_total, entropy, margin, rank, top_id.reshape(-1).astype(dtype.int32)

    def _wide(self, column: Tensor) -> Tensor:
        """[N, 1] → [N, V]: on CPU equal shapes are subtracted and compared several times faster."""
        return ops.tile(column, (1, self.vocab_size))


def _log1p(x: Tensor) -> Tensor:
    """ln(1 + x), exact for small x too, which the operator of that name isn't on CPU: ln(u) · x / (u - 1), u = 1 + x.

    Kahan 1987, see Goldberg 1991, theorem 4.
    """
    u = x + 1.0
    return ops.select(ops.equal(u, 1.0), x, ops.log(u) * x / (u - 1.0))
