"""Causal self-attention with grouped queries, and the one rule of who may see whom."""

from mindspore import Tensor, dtype, nn, ops

from evalkit.bundle import ModelSpec
from trainer.model.linear import dense
from trainer.model.rotary import Rotary

KeyValue = tuple[Tensor, Tensor]

# Finite, so that a row that sees nothing (padding) gives numbers that nobody reads instead of NaN.
HIDDEN = -1e9


def attention_mask(
    query_positions: Tensor,
    query_segments: Tensor,
    key_positions: Tensor,
    key_segments: Tensor,
    window: int | None,
) -> Tensor:
    """What to add to the attention scores: 0 where the query sees the key, HIDDEN elsewhere.

    A token sees the keys of its own segment that stand at its position or before it, at most `window` - 1 back.

    Args:
        query_positions: int32 [B, Q], restarting in each segment.
        query_segments: int32 [B, Q], the number of the text within the row.
        key_positions, key_segments: int32 [B, K].
        window: how many positions a token sees, itself included; None for all.

    Returns:
        float32 [B, 1, Q, K].
    """
    distance = query_positions.expand_dims(2) - key_positions.expand_dims(1)  # [B, Q, K]
    visible = ops.logical_and(
        distance >= 0, ops.equal(query_segments.expand_dims(2), key_segments.expand_dims(1))
    )
    if window is not None:
        visible = ops.logical_and(visible, ops.Less()(distance, window))
    return ((1.0 - visible.astype(dtype.float32)) * HIDDEN).expand_dims(1)


class PlainAttention(nn.Cell):  # type: ignore[misc]
    """softmax(query · keyᵀ + mask) · value, its derivative left to MindSpore."""

    def __init__(self) -> None:
        super().__init__()
        self.product = ops.BatchMatMul()
        self.product_transposed = ops.BatchMatMul(transpose_b=True)
        self.add_mask = ops.Add()
        self.softmax = ops.Softmax(axis=-1)

    def construct(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """query [B, H, Q, size]; key, value [B, H, K, size]; mask [B, H, Q, K] → mixed [B, H, Q, size], and the
        attention weights [B, H, Q, K].
        """
        weights = self.softmax(self.add_mask(self.product_transposed(query, key), mask))
        return self.product(weights, value), weights


class DotProductAttention(PlainAttention):
    """The same with its derivative written out.

    The softmax's derivative needs the row sums of dweights · weights; they equal those of dmixed · mixed (Dao et al.
    2022), which are `size` instead of K numbers wide.
    """

    def __init__(self) -> None:
        super().__init__()
        self.transposed_product = ops.BatchMatMul(transpose_a=True)
        self.row_sum = ops.ReduceSum(keep_dims=True)

    def plain(self) -> PlainAttention:
        """The same without a derivative of its own."""
        return PlainAttention()

    def bprop(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        outputs: tuple[Tensor, Tensor],
        gradients: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of query, key and value; nothing learns through the weights as an output, or the mask."""
        mixed, weights = outputs
        dmixed = gradients[0]
        dscores = weights * (self.product_transposed(dmixed, value) - self.row_sum(dmixed * mixed, -1))
        dquery, dkey = self.product(dscores, key), self.transposed_product(dscores, query)
        return dquery, dkey, self.transposed_product(weights, dmixed), ops.zeros_like(mask)


class Attention(nn.Cell):  # type: ignore[misc]
    """Multi-head attention in which heads / kv_heads query heads share one key and value head.

    Projections are 2-D (rows of all texts together) and products batched with transpose_b: on CPU that is 2 to 5
    times faster than 3-D projections and explicit transposes.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = spec.heads, spec.kv_heads, spec.head_size
        self.q_proj = dense(spec.hidden_size, self.heads * self.size, bias=spec.bias)
        self.k_proj = dense(spec.hidden_size, self.kv_heads * self.size, bias=spec.bias)
        self.v_proj = dense(spec.hidden_size, self.kv_heads * self.size, bias=spec.bias)
        self.o_proj = dense(self.heads * self.size, spec.hidden_size, bias=spec.bias)
        learned = spec.positions == "learned"
        self.rotary = None if learned else Rotary(self.size, spec.max_length, spec.rope_theta)
        self.attend = DotProductAttention()
        self.scale = self.size**-0.5
        # An operator only in a cut model, to hold its strategy: in others it would change the order of O2's sums.
        self.scale_query: ops.Mul | None = None
        self.to_heads, self.to_rows = ops.Transpose(), ops.Transpose()

    def construct(
        self, x: Tensor, angles: KeyValue | None, mask: Tensor, past: KeyValue | None
    ) -> tuple[Tensor, KeyValue]:
        """Attend.

        Args:
            x: [B*S, hidden].
            angles: cosines and sines of the rotary embedding, or None.
            mask: [B, kv_heads, heads / kv_heads * S, P + S].
            past: keys and values of P earlier tokens, each [B, kv_heads, P, size], or None.

        Returns:
            The mixed values [B*S, hidden], and keys and values of these S tokens, each [B, kv_heads, S, size].
        """
        batch = mask.shape[0]
        scaled = self.q_proj(x)
        scaled = scaled * self.scale if self.scale_query is None else self.scale_query(scaled, self.scale)
        query = self._by_head(scaled, batch, self.heads)  # [B, heads, S, size]
        key = self._by_head(self.k_proj(x), batch, self.kv_heads)  # [B, kv_heads, S, size]
        value = self._by_head(self.v_proj(x), batch, self.kv_heads)  # [B, kv_heads, S, size]
        if self.rotary is not None and angles is not None:
            query, key = self.rotary(query, *angles), self.rotary(key, *angles)
        new = (key, value)
        if past is not None:
            key = ops.concat((past[0], key), 2)  # [B, kv_heads, P + S, size]
            value = ops.concat((past[1], value), 2)  # [B, kv_heads, P + S, size]

        # The query heads that share a key head stand below one another.
        query = query.reshape(
            batch, self.kv_heads, -1, self.size
        )  # [B, kv_heads, heads / kv_heads * S, size]
        mixed, _ = self.attend(query, key, value, mask)
        mixed = mixed.reshape(batch, self.heads, -1, self.size)  # [B, heads, S, size]
        rows = self.to_rows(mixed, (0, 2, 1, 3)).reshape(-1, self.heads * self.size)  # [B*S, heads * size]
        return self.o_proj(rows), new

    def _by_head(self, rows: Tensor, batch: int, heads: int) -> Tensor:
        return self.to_heads(rows.reshape(batch, -1, heads, self.size), (0, 2, 1, 3))
