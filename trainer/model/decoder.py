"""A decoder-only transformer: the Llama family and the GPT-2 family by the same few parts.

Read it from top to bottom: embedding, then `layers` times (norm, attention, norm, feed-forward), norm, head. B texts
of S tokens travel as B*S rows of `hidden` numbers; only attention looks at them by text.
"""

from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.ops.auto_generate import SiLU

from evalkit.bundle import ModelSpec
from trainer.model.attention import Attention, KeyValue, attention_mask
from trainer.model.dropout import Dropout
from trainer.model.linear import dense
from trainer.model.norms import norm


class Embedding(nn.Cell):  # type: ignore[misc]
    """A table of vectors; `weight` has shape [rows, size]."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer("zeros", [rows, size]), name="weight")
        self.gather = ops.Gather()

    def construct(self, ids: Tensor) -> Tensor:
        """Ids [N] → vectors [N, size]."""
        return self.gather(self.weight, ids, 0)


class SwiGLU(nn.Cell):  # type: ignore[misc]
    """Gated feed-forward: down(silu(gate(x)) · up(x)) (Shazeer 2020)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_proj = dense(spec.hidden_size, spec.intermediate_size, bias=spec.bias)
        self.up_proj = dense(spec.hidden_size, spec.intermediate_size, bias=spec.bias)
        self.down_proj = dense(spec.intermediate_size, spec.hidden_size, bias=spec.bias)
        self.silu, self.multiply = SiLU(), ops.Mul()

    def construct(self, x: Tensor) -> Tensor:
        """x [N, hidden] → [N, hidden]."""
        return self.down_proj(self.multiply(self.silu(self.gate_proj(x)), self.up_proj(x)))


class GeluMLP(nn.Cell):  # type: ignore[misc]
    """Plain feed-forward: down(gelu(up(x))), GELU by its tanh form as in GPT-2."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.up_proj = dense(spec.hidden_size, spec.intermediate_size, bias=spec.bias)
        self.down_proj = dense(spec.intermediate_size, spec.hidden_size, bias=spec.bias)
        self.gelu = ops.GeLU()

    def construct(self, x: Tensor) -> Tensor:
        """x [N, hidden] → [N, hidden]."""
        return self.down_proj(self.gelu(self.up_proj(x)))


class Block(nn.Cell):  # type: ignore[misc]
    """One layer: attention and feed-forward, each behind a norm and added to its input."""

    def __init__(self, spec: ModelSpec, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = norm(spec)
        self.self_attn = Attention(spec)
        self.post_attention_layernorm = norm(spec)
        self.mlp = SwiGLU(spec) if spec.activation == "swiglu" else GeluMLP(spec)
        self.attention_dropout, self.mlp_dropout = Dropout(dropout), Dropout(dropout)
        self.add = ops.Add()

    def construct(
        self, x: Tensor, angles: KeyValue | None, mask: Tensor, past: KeyValue | None
    ) -> tuple[Tensor, KeyValue]:
        """x [B*S, hidden] → the same shape, and this layer's new keys and values."""
        mixed, new = self.self_attn(self.input_layernorm(x), angles, mask, past)
        x = self.add(x, self.attention_dropout(mixed))
        return self.add(x, self.mlp_dropout(self.mlp(self.post_attention_layernorm(x)))), new


class Decoder(nn.Cell):  # type: ignore[misc]
    """Token ids to hidden states."""

    def __init__(self, spec: ModelSpec, dropout: float) -> None:
        super().__init__()
        self.window = spec.attention_window
        self.kv_heads, self.groups = spec.kv_heads, spec.heads // spec.kv_heads
        self.embed_tokens = Embedding(spec.vocab_size, spec.hidden_size)
        learned = spec.positions == "learned"
        self.embed_positions = Embedding(spec.max_length, spec.hidden_size) if learned else None
        self.add_positions = ops.Add()
        self.dropout = Dropout(dropout)
        self.layers = nn.CellList([Block(spec, dropout) for _ in range(spec.layers)])
        self.norm = norm(spec)

    def construct(
        self,
        token_ids: Tensor,
        positions: Tensor,
        segments: Tensor,
        past: tuple[KeyValue, ...] | None,
        past_positions: Tensor | None,
        past_segments: Tensor | None,
    ) -> tuple[Tensor, tuple[KeyValue, ...]]:
        """Run the layers over S tokens that may look back at P earlier ones.

        Args:
            token_ids, positions, segments: int32 [B, S].
            past: one (keys, values) a layer, each [B, kv_heads, P, head_size], or None.
            past_positions, past_segments: int32 [B, P], or None.

        Returns:
            Hidden states [B*S, hidden], and the new (keys, values) of each layer.
        """
        key_positions, key_segments = positions, segments
        if past is not None:
            key_positions = ops.concat((past_positions, positions), 1)
            key_segments = ops.concat((past_segments, segments), 1)
        mask = attention_mask(
            positions, segments, key_positions, key_segments, self.window
        )  # [B, 1, S, P + S]
        # One copy for each head: on CPU adding equal shapes is several times faster than repeating one of them.
        mask = ops.tile(
            mask, (1, self.kv_heads, self.groups, 1)
        )  # [B, kv_heads, heads / kv_heads * S, P + S]

        x = self.embed_tokens(token_ids.reshape(-1))  # [B*S, hidden]
        if self.embed_positions is not None:
            x = self.add_positions(x, self.embed_positions(ops.maximum(positions, 0).reshape(-1)))
        x = self.dropout(x)
        rotary = self.layers[0].self_attn.rotary
        angles = None if rotary is None else rotary.angles(positions)
        new: tuple[KeyValue, ...] = ()
        for index, layer in enumerate(self.layers):
            x, key_value = layer(x, angles, mask, None if past is None else past[index])
            new = (*new, key_value)
        return self.norm(x), new


class CausalLM(nn.Cell):  # type: ignore[misc]
    """The decoder with its language-model head.

    Parameter names are those of Hugging Face Llama checkpoints, weights (out, in). The GPT-2 family uses the same
    names, with these meanings in Hugging Face GPT-2:

        model.embed_tokens.weight                          wte.weight
        model.embed_positions.weight                       wpe.weight
        model.layers.N.input_layernorm.{weight,bias}       h.N.ln_1
        model.layers.N.self_attn.{q,k,v}_proj.*            h.N.attn.c_attn, split in three, transposed
        model.layers.N.self_attn.o_proj.*                  h.N.attn.c_proj, transposed
        model.layers.N.post_attention_layernorm.*          h.N.ln_2
        model.layers.N.mlp.up_proj.*, mlp.down_proj.*      h.N.mlp.c_fc, h.N.mlp.c_proj, transposed
        model.norm.{weight,bias}                           ln_f
        lm_head.weight (untied only)                       lm_head.weight
    """

    def __init__(self, spec: ModelSpec, dropout: float = 0.0, vocab_multiple: int = 1) -> None:
        """A vocabulary filled up to a multiple of `vocab_multiple` has rows that no logit comes from."""
        super().__init__()
        self.vocab_size = spec.vocab_size
        self.rows = -(-spec.vocab_size // vocab_multiple) * vocab_multiple
        self.model = Decoder(spec.model_copy(update={"vocab_size": self.rows}), dropout)
        self.lm_head = None if spec.tied_head else dense(spec.hidden_size, self.rows, bias=False)
        self.project = ops.MatMul(transpose_b=True)

    def construct(self, token_ids: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """Teacher-forced: int32 [B, S] each → logits [B*S, vocab]."""
        hidden, _ = self.model(token_ids, positions, segments, None, None, None)
        return self.logits(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [N, hidden] → logits [N, vocab]."""
        if self.lm_head is None:
            logits = self.project(hidden, self.model.embed_tokens.weight)
        else:
            logits = self.lm_head(hidden)
        return logits if self.rows == self.vocab_size else logits[:, : self.vocab_size]
