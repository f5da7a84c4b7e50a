"""The same small models written in the formats that can be converted, by code that doesn't use the table of names."""

import json
import struct
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from evalkit.bundle import ModelSpec
from trainer.config import ModelConfig
from trainer.data.tokenizer import train_tokenizer

TEXTS = ["Maria lives in Bonn.", "Tom lives in Graz, Wei in Bern.", "我住在波恩。", "12 + 30 = 42"] * 3


def small_spec(family: str, **options) -> ModelSpec:
    """Two layers of 16, four heads, as many tokens as the tokenizer has."""
    return ModelConfig(family=family, hidden_size=16, layers=2, heads=4, max_length=48, **options).spec(280)


def small_weights(spec: ModelSpec) -> dict:
    """Large enough to matter everywhere, by our names."""
    from tests.trainer.models import random_model
    from trainer.model.weights import weights_of

    return weights_of(random_model(spec))


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer of 280 tokens with <|bos|> before each text."""
    tokenizer = train_tokenizer(TEXTS, 280)
    assert tokenizer.get_vocab_size() == 280
    tokenizer.save(str(folder / "tokenizer.json"))


def write_gpt2(folder: Path, spec: ModelSpec, weights: dict, **config) -> Path:
    """A Hugging Face GPT-2 folder, c_attn and Conv1D layouts written out."""
    folder.mkdir()
    tensors = {
        "wte.weight": weights["model.embed_tokens.weight"],
        "wpe.weight": weights["model.embed_positions.weight"],
    }
    for part in ("weight", "bias"):
        tensors[f"ln_f.{part}"] = weights[f"model.norm.{part}"]
    for layer in range(spec.layers):
        ours, theirs = f"model.layers.{layer}.", f"h.{layer}."
        tensors[f"{theirs}attn.bias"] = np.tril(np.ones((1, 1, 48, 48), np.float32))  # a buffer of old files
        for part in ("weight", "bias"):
            tensors[f"{theirs}ln_1.{part}"] = weights[f"{ours}input_layernorm.{part}"]
            tensors[f"{theirs}ln_2.{part}"] = weights[f"{ours}post_attention_layernorm.{part}"]
            projections = [weights[f"{ours}self_attn.{letter}_proj.{part}"].T for letter in "qkv"]
            tensors[f"{theirs}attn.c_attn.{part}"] = np.concatenate(projections, -1)
            tensors[f"{theirs}attn.c_proj.{part}"] = weights[f"{ours}self_attn.o_proj.{part}"].T
            tensors[f"{theirs}mlp.c_fc.{part}"] = weights[f"{ours}mlp.up_proj.{part}"].T
            tensors[f"{theirs}mlp.c_proj.{part}"] = weights[f"{ours}mlp.down_proj.{part}"].T
    if not spec.tied_head:
        tensors["lm_head.weight"] = weights["lm_head.weight"]
    save_file(
        {name: np.ascontiguousarray(value) for name, value in tensors.items()}, folder / "model.safetensors"
    )
    content = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_embd": spec.hidden_size,
        "n_layer": spec.layers,
        "n_head": spec.heads,
        "n_positions": spec.max_length,
        "vocab_size": spec.vocab_size,
        "layer_norm_epsilon": spec.norm_eps,
        "tie_word_embeddings": spec.tied_head,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(content))
    write_tokenizer(folder)
    return folder


def write_llama2c(file: Path, spec: ModelSpec, weights: dict, *, version: int) -> Path:
    """A llama2.c file: version 0 (seven numbers) or 1 (`ak42`, 256 bytes)."""
    count = -spec.vocab_size if version == 0 and not spec.tied_head else spec.vocab_size
    numbers = (
        spec.hidden_size,
        spec.intermediate_size,
        spec.layers,
        spec.heads,
        spec.kv_heads,
        count,
        spec.max_length,
    )

    def layers(name, heads=None):
        values = [weights[f"model.layers.{layer}.{name}.weight"] for layer in range(spec.layers)]
        return values if heads is None else [interleaved(value, heads) for value in values]

    attention = [*layers("self_attn.q_proj", spec.heads), *layers("self_attn.k_proj", spec.kv_heads)]
    attention += [*layers("self_attn.v_proj"), *layers("self_attn.o_proj")]
    feed_forward = [*layers("mlp.gate_proj"), *layers("mlp.down_proj"), *layers("mlp.up_proj")]
    embedding, final = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
    first, second = layers("input_layernorm"), layers("post_attention_layernorm")
    if version == 0:
        frequency = 10000.0 ** (-np.arange(0, spec.head_size, 2) / spec.head_size)
        angles = np.outer(np.arange(spec.max_length), frequency)
        parts = [embedding, *first, *attention, *second, *feed_forward, final, np.cos(angles), np.sin(angles)]
        header = struct.pack("<7i", *numbers)
    else:
        parts = [*first, *second, final, embedding, *attention, *feed_forward]
        header = struct.pack("<Ii7iB", 0x616B3432, 1, *numbers, spec.tied_head)
        header += bytes(256 - len(header))
    if not spec.tied_head:
        parts.append(weights["lm_head.weight"])
    file.write_bytes(header + b"".join(np.ascontiguousarray(part, "<f4").tobytes() for part in parts))
    return file


def interleaved(rows, heads: int):
    """Half-split rows in llama2.c's order, written as loops: row 2i of a head is row i, 2i + 1 is i + half."""
    size = len(rows) // heads
    order = [
        head * size + half * (size // 2) + i
        for head in range(heads)
        for i in range(size // 2)
        for half in (0, 1)
    ]
    return rows[order]


_LEGACY = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}
_MCORE = {
    "self_attn.q_proj": "self_attention.linear_q",
    "self_attn.k_proj": "self_attention.linear_k",
    "self_attn.v_proj": "self_attention.linear_v",
    "self_attn.o_proj": "self_attention.linear_proj",
    "post_attention_layernorm": "pre_mlp_layernorm",
    "mlp.gate_proj": "mlp.gating",
    "mlp.up_proj": "mlp.hidden",
    "mlp.down_proj": "mlp.linear_fc2",
}


def mindformers_names(weights: dict, kind: str) -> dict:
    """Llama weights by MindFormers' legacy or Mcore names."""
    plain = {
        "legacy": {
            "model.embed_tokens.weight": "model.tok_embeddings.embedding_weight",
            "model.norm.weight": "model.norm_out.weight",
        },
        "mcore": {
            "model.embed_tokens.weight": "embedding.word_embeddings.weight",
            "model.norm.weight": "decoder.final_layernorm.weight",
            "lm_head.weight": "output_layer.weight",
        },
    }[kind]
    modules = _LEGACY if kind == "legacy" else _MCORE
    result = {}
    for name, value in weights.items():
        new = plain.get(name, name)
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            module, part = rest.rsplit(".", 1)
            prefix = "model" if kind == "legacy" else "decoder"
            new = f"{prefix}.layers.{layer}.{modules.get(module, module)}.{part}"
        result[new] = value
    return result
