"""The one table of weight names: ours, and where every other format keeps the same numbers and in which order.

Our names are those of Hugging Face Llama checkpoints, matrices (outputs, inputs), rotary pairs half a head apart.
Readers go through `to_ours`, writers through `from_ours`; both are in `mapping.py`. In a name stand {n} for the layer,
{p} for weight or bias, {g} for gamma or beta.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from evalkit.bundle import ModelSpec


class Format(Enum):
    """A convention of names and layouts."""

    HF_LLAMA = "Hugging Face Llama"
    HF_GPT2 = "Hugging Face GPT-2"
    MINDFORMERS_LLAMA = "MindFormers Llama"
    MINDFORMERS_GPT2 = "MindFormers GPT-2"
    MCORE = "MindFormers Mcore"
    LLAMA2C = "llama2.c"
    GGUF = "GGUF"


class Layout(Enum):
    """How a tensor's numbers lie, seen from ours. The fused ones hold several of our weights."""

    SAME = "as ours"
    TRANSPOSED = "(inputs, outputs)"
    INTERLEAVED = "rotary pairs side by side"
    FUSED_ROWS = "one below the other"
    FUSED_COLUMNS = "side by side, transposed"
    FUSED_GROUPS = "by key head: its queries, its key, its value"
    FUSED_ALTERNATING = "a row of the one, a row of the other"

    @property
    def fused(self) -> bool:
        """Whether one tensor holds several of our weights."""
        return self.name.startswith("FUSED")


@dataclass(frozen=True)
class Place:
    """Where a format keeps one of our weights. Rows that name the same tensor share it, in the table's order."""

    name: str
    layout: Layout = Layout.SAME


@dataclass(frozen=True)
class Row:
    """One of our weights; a format without a place for it has no such weight. The first place is the usual one."""

    ours: str
    places: dict[Format, tuple[Place, ...]]


_Cell = str | Place | tuple[str | Place, ...]


def _row(
    ours: str,
    *,
    hf_gpt2: _Cell = (),
    mf_llama: _Cell = (),
    mf_gpt2: _Cell = (),
    mcore: _Cell = (),
    llama2c: _Cell = (),
    gguf: _Cell = (),
) -> Row:
    cells = {
        Format.HF_LLAMA: ours,
        Format.HF_GPT2: hf_gpt2,
        Format.MINDFORMERS_LLAMA: mf_llama,
        Format.MINDFORMERS_GPT2: mf_gpt2,
        Format.MCORE: mcore,
        Format.LLAMA2C: llama2c,
        Format.GGUF: gguf,
    }
    places = {}
    for kind, cell in cells.items():
        several = cell if isinstance(cell, tuple) else (cell,)
        places[kind] = tuple(Place(place) if isinstance(place, str) else place for place in several)
    return Row(ours, places)


def _turned(name: str) -> Place:
    return Place(name, Layout.TRANSPOSED)


def _pairs(name: str) -> Place:
    return Place(name, Layout.INTERLEAVED)


_C_ATTN = Place("transformer.h.{n}.attn.c_attn.{p}", Layout.FUSED_COLUMNS)
_W_QKV = Place("model.layers.{n}.attention.w_qkv.weight", Layout.FUSED_GROUPS)
_W_GATE_HIDDEN = Place("model.layers.{n}.feed_forward.w_gate_hidden.weight", Layout.FUSED_ALTERNATING)
_LINEAR_QKV = Place("decoder.layers.{n}.self_attention.linear_qkv.{p}", Layout.FUSED_GROUPS)
# Beside a `gating` of its own, which MindFormers 1.6 writes, this tensor holds the up projection alone.
_LINEAR_FC1 = Place("decoder.layers.{n}.mlp.linear_fc1.{p}", Layout.FUSED_ALTERNATING)

TABLE: tuple[Row, ...] = (
    _row(
        "model.embed_tokens.weight",
        hf_gpt2="transformer.wte.weight",
        mf_llama="model.tok_embeddings.embedding_weight",
        mf_gpt2="backbone.embedding.word_embedding.embedding_table",
        mcore="embedding.word_embeddings.weight",
        llama2c="token_embedding",
        gguf="token_embd.weight",
    ),
    _row(
        "model.embed_positions.weight",
        hf_gpt2="transformer.wpe.weight",
        mf_gpt2="backbone.embedding.position_embedding.embedding_table",
    ),
    _row(
        "model.layers.{n}.input_layernorm.{p}",
        hf_gpt2="transformer.h.{n}.ln_1.{p}",
        mf_llama="model.layers.{n}.attention_norm.{p}",
        mf_gpt2="backbone.blocks.{n}.layernorm1.{g}",
        mcore="decoder.layers.{n}.input_layernorm.{p}",
        llama2c="rms_att.{n}",
        gguf="blk.{n}.attn_norm.{p}",
    ),
    _row(
        "model.layers.{n}.self_attn.q_proj.{p}",
        hf_gpt2=_C_ATTN,
        mf_llama=("model.layers.{n}.attention.wq.{p}", _W_QKV),
        mf_gpt2="backbone.blocks.{n}.attention.dense1.{p}",
        mcore=("decoder.layers.{n}.self_attention.linear_q.{p}", _LINEAR_QKV),
        llama2c=_pairs("wq.{n}"),
        gguf=_pairs("blk.{n}.attn_q.{p}"),
    ),
    _row(
        "model.layers.{n}.self_attn.k_proj.{p}",
        hf_gpt2=_C_ATTN,
        mf_llama=("model.layers.{n}.attention.wk.{p}", _W_QKV),
        mf_gpt2="backbone.blocks.{n}.attention.dense2.{p}",
        mcore=("decoder.layers.{n}.self_attention.linear_k.{p}", _LINEAR_QKV),
        llama2c=_pairs("wk.{n}"),
        gguf=_pairs("blk.{n}.attn_k.{p}"),
    ),
    _row(
        "model.layers.{n}.self_attn.v_proj.{p}",
        hf_gpt2=_C_ATTN,
        mf_llama=("model.layers.{n}.attention.wv.{p}", _W_QKV),
        mf_gpt2="backbone.blocks.{n}.attention.dense3.{p}",
        mcore=("decoder.layers.{n}.self_attention.linear_v.{p}", _LINEAR_QKV),
        llama2c="wv.{n}",
        gguf="blk.{n}.attn_v.{p}",
    ),
    _row(
        "model.layers.{n}.self_attn.o_proj.{p}",
        hf_gpt2=_turned("transformer.h.{n}.attn.c_proj.{p}"),
        mf_llama="model.layers.{n}.attention.wo.{p}",
        mf_gpt2=_turned("backbone.blocks.{n}.attention.projection.{p}"),
        mcore="decoder.layers.{n}.self_attention.linear_proj.{p}",
        llama2c="wo.{n}",
        gguf="blk.{n}.attn_output.{p}",
    ),
    _row(
        "model.layers.{n}.post_attention_layernorm.{p}",
        hf_gpt2="transformer.h.{n}.ln_2.{p}",
        mf_llama="model.layers.{n}.ffn_norm.{p}",
        mf_gpt2="backbone.blocks.{n}.layernorm2.{g}",
        mcore="decoder.layers.{n}.pre_mlp_layernorm.{p}",
        llama2c="rms_ffn.{n}",
        gguf="blk.{n}.ffn_norm.{p}",
    ),
    _row(
        "model.layers.{n}.mlp.gate_proj.{p}",
        mf_llama=("model.layers.{n}.feed_forward.w1.{p}", _W_GATE_HIDDEN),
        mcore=("decoder.layers.{n}.mlp.gating.{p}", _LINEAR_FC1),
        llama2c="w1.{n}",
        gguf="blk.{n}.ffn_gate.{p}",
    ),
    _row(
        "model.layers.{n}.mlp.up_proj.{p}",
        hf_gpt2=_turned("transformer.h.{n}.mlp.c_fc.{p}"),
        mf_llama=("model.layers.{n}.feed_forward.w3.{p}", _W_GATE_HIDDEN),
        mf_gpt2=_turned("backbone.blocks.{n}.output.mapping.{p}"),
        mcore=("decoder.layers.{n}.mlp.hidden.{p}", _LINEAR_FC1),
        llama2c="w3.{n}",
        gguf="blk.{n}.ffn_up.{p}",
    ),
    _row(
        "model.layers.{n}.mlp.down_proj.{p}",
        hf_gpt2=_turned("transformer.h.{n}.mlp.c_proj.{p}"),
        mf_llama="model.layers.{n}.feed_forward.w2.{p}",
        mf_gpt2=_turned("backbone.blocks.{n}.output.projection.{p}"),
        mcore="decoder.layers.{n}.mlp.linear_fc2.{p}",
        llama2c="w2.{n}",
        gguf="blk.{n}.ffn_down.{p}",
    ),
    _row(
        "model.norm.{p}",
        hf_gpt2="transformer.ln_f.{p}",
        mf_llama="model.norm_out.{p}",
        mf_gpt2="backbone.layernorm.{g}",
        mcore="decoder.final_layernorm.{p}",
        llama2c="rms_final",
        gguf="output_norm.{p}",
    ),
    _row(
        "lm_head.weight",
        hf_gpt2="lm_head.weight",
        mf_llama="lm_head.weight",
        mcore="output_layer.weight",
        llama2c="wcls",
        gguf="output.weight",
    ),
)

EMBEDDING, HEAD = TABLE[0], TABLE[-1]

# What checkpoints hold beside weights: buffers that follow from the configuration, and the state of a training run.
_NO_WEIGHTS = re.compile(
    r".*\.rotary_emb\.inv_freq|transformer\.h\.\d+\.attn\.(masked_)?bias"
    r"|backbone\.blocks\.\d+\.attention\.(masked_)?beta"
    r"|(adam_m|adam_v|moment1|moment2|moments|accu_grads|exp_avg|exp_avg_sq|optimizer)\..*"
    r"|global_step|epoch_num|step_num|batch_num|loss_scale|scale_sense|current_iterator_step|last_overflow_iterator_step"
    r"|global_batch_size|__exception_save__|learning_rate(\.global_step)?|beta1_power|beta2_power"
)
_BARE_GPT2 = re.compile(r"(h\.\d+|wte|wpe|ln_f)\.")


def canonical(name: str) -> str:
    """The name as the table has it: a model saved without its head lacks `transformer.`, Mcore may have `model.`."""
    if _BARE_GPT2.match(name):
        return f"transformer.{name}"
    if name.startswith(("model.decoder.", "model.embedding.", "model.output_layer.")):
        return name.removeprefix("model.")
    return name


def is_weight(name: str) -> bool:
    """False for buffers and for the state of a training run."""
    return _NO_WEIGHTS.fullmatch(name) is None


def format_of(names: Iterable[str]) -> Format | None:
    """The format in whose convention the (canonical) names are, told by the embedding; None for an unknown one."""
    found = set(names)
    return next((kind for kind, (place,) in EMBEDDING.places.items() if place.name in found), None)


def filled(template: str, name: str) -> str | None:
    """The template with layer and parameter of our weight `name`, or None where it has no such parameter."""
    layer = re.search(r"\.layers\.(\d+)\.", name)
    kind = name.rpartition(".")[2]
    if kind == "bias" and "{p}" not in template and "{g}" not in template:
        return None
    return template.format(n=layer[1] if layer else "", p=kind, g={"weight": "gamma", "bias": "beta"}[kind])


def row_of(name: str) -> Row:
    """The row of our weight `name`."""
    return next(row for row in TABLE if filled(row.ours, name) == name)


def weight_shapes(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a decoder, by our names, in a layer in the table's order."""
    hidden, inner, kv_size = model.hidden_size, model.intermediate_size, model.kv_heads * model.head_size
    projections = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, hidden),
        **({"mlp.gate_proj": (inner, hidden)} if model.activation == "swiglu" else {}),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    norm_parts = ("weight", "bias") if model.norm == "layernorm" else ("weight",)

    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (model.vocab_size, hidden)}
    if model.positions == "learned":
        shapes["model.embed_positions.weight"] = (model.max_length, hidden)
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes |= {f"{prefix}{norm}.{part}": (hidden,) for part in norm_parts}
        for name, shape in projections.items():
            shapes[f"{prefix}{name}.weight"] = shape
            if model.bias:
                shapes[f"{prefix}{name}.bias"] = shape[:1]
    shapes |= {f"model.norm.{part}": (hidden,) for part in norm_parts}
    if not model.tied_head:
        shapes["lm_head.weight"] = (model.vocab_size, hidden)
    return shapes
