"""MindFormers models: its configuration in Hugging Face's terms, and MindSpore's own checkpoint files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.yaml_source import YamlSource
from trainer.convert.names import Format, Layout, canonical, is_weight
from trainer.convert.pickles import refuse_pickle
from trainer.convert.source import Weights, refusal

Config = dict[str, Any]

_ARCHITECTURES = {"LlamaConfig": "LlamaForCausalLM", "GPT2Config": "GPT2LMHeadModel"}
_LLAMA_KEYS = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "theta": "rope_theta",
    "max_position_embedding": "max_position_embeddings",
    "qkv_has_bias": "attention_bias",
}
_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "seq_length": "n_positions",
}
# The first field of a MindSpore checkpoint: a length-delimited record, field number 1.
_FIRST_BYTE = b"\x0a"


def read_yaml_config(file: Path) -> Config:
    """The `model.model_config` of a MindFormers configuration.

    Raises:
        InputError: not a MindFormers configuration.
    """
    model = YamlSource(file).value.get("model")
    config = model.get("model_config") if isinstance(model, dict) else None
    if not isinstance(config, dict):
        raise refusal(
            file, "model.model_config: missing", "take the configuration that MindFormers was run with"
        )
    return config


def to_huggingface_config(where: object, config: Config) -> Config:
    """A model configuration with MindFormers' keys in Hugging Face's; one that has those already stays.

    Raises:
        InputError: something that Hugging Face's class doesn't compute either.
    """
    if "num_layers" not in config:
        return config
    if config.get("extend_method") not in (None, "None"):
        raise refusal(
            where, f"extend_method {config['extend_method']}", "only unscaled rotary positions are computed"
        )
    moe = config.get("moe_config") or {}
    if moe.get("expert_num", 1) > 1:
        raise refusal(where, "a mixture of experts", "take a dense Llama or GPT-2 model")
    if config.get("post_layernorm_residual"):
        raise refusal(where, "post_layernorm_residual", "only norms before attention are computed")
    kind = config.get("type")
    named = config.get("architectures") or ([_ARCHITECTURES.get(kind, kind)] if kind else [])
    gpt2 = named == ["GPT2LMHeadModel"] or (not named and config.get("model_type") == "gpt2")
    keys = _GPT2_KEYS if gpt2 else _LLAMA_KEYS
    translated = {keys.get(key, key): value for key, value in config.items()} | {"architectures": named}
    return _gpt2(where, translated) if gpt2 else _llama(translated)


def _gpt2(where: object, config: Config) -> Config:
    if config.get("hidden_act", "gelu") != "gelu":
        raise refusal(where, f"hidden_act {config['hidden_act']!r}", "only gelu is computed")
    # MindFormers' gelu is the tanh form.
    return config | {
        "activation_function": "gelu_new",
        "n_inner": config.get("expand_ratio", 4) * config["n_embd"],
    }


def _llama(config: Config) -> Config:
    hidden = config["hidden_size"]
    inner = config.get("intermediate_size")
    if inner is None:
        # As MindFormers computes it.
        inner = 4 * hidden
        if config.get("ffn_dim_multiplier") is not None:
            inner = int((config["ffn_dim_multiplier"] + 0.01) * inner)
        multiple = config.get("multiple_of") or 256
        inner = -(-int(2 * inner / 3) // multiple) * multiple
    return (
        {"rms_norm_eps": 1e-5}
        | config
        | {
            "intermediate_size": inner,
            "max_position_embeddings": config.get("max_position_embeddings") or config["seq_length"],
        }
    )


def fused_layouts(kind: Format, config: Config) -> Mapping[Layout, Layout | str]:
    """How the fused tensors lie, as the configuration says, or what to ask a user whose configuration doesn't say it.

    MindFormers' releases differ, and a tensor of one layout read as the other is as large and finite: legacy Llama models
    have one projection below the other until 1.3, interleaved since 1.4; Mcore's defaults changed too.
    """
    if kind not in (Format.MINDFORMERS_LLAMA, Format.MCORE):
        return {}
    old, new = ("", "") if kind == Format.MCORE else (" (MindFormers until 1.3)", " (since 1.4)")
    rows = config.get("use_contiguous_weight_layout_attention", config.get("use_contiguous_weight_layout"))
    alternating = config.get("use_interleaved_weight_layout_mlp")
    question = "releases of MindFormers lay it out differently: add to the model's configuration"
    attention = f"{question} use_contiguous_weight_layout_attention: true{old} or false{new}"
    feed_forward = f"{question} use_interleaved_weight_layout_mlp: false{old} or true{new}"
    groups = Layout.FUSED_ROWS if rows is True else Layout.FUSED_GROUPS
    pairs = Layout.FUSED_ALTERNATING if alternating is True else Layout.FUSED_ROWS
    return {
        Layout.FUSED_GROUPS: groups if isinstance(rows, bool) else attention,
        Layout.FUSED_ALTERNATING: pairs if isinstance(alternating, bool) else feed_forward,
    }


def read_mindspore_checkpoint(file: Path) -> Weights:
    """The weights in a .ckpt file of MindSpore (protobuf), as float32 by canonical names.

    Raises:
        InputError: a pickle of another framework, or a damaged file.
    """
    refuse_pickle(file)
    with file.open("rb") as stream:
        if stream.read(1) != _FIRST_BYTE:
            raise refusal(file, "not a MindSpore checkpoint", "take an undamaged copy, or safetensors")
    import mindspore

    try:
        found = mindspore.load_checkpoint(str(file), choice_func=is_weight)
    except (ValueError, TypeError, KeyError, RuntimeError):
        raise refusal(file, "not a MindSpore checkpoint", "take an undamaged copy, or safetensors") from None
    weights: Weights = {}
    for name, parameter in found.items():
        value = parameter.asnumpy() if isinstance(parameter, mindspore.Tensor) else np.empty(0, dtype=object)
        if value.dtype.name not in ("float64", "float32", "float16", "bfloat16"):
            raise refusal(
                file,
                f"{name}: weights of type {value.dtype.name}",
                "only float types are read; take the unquantised model",
            )
        weights[canonical(name)] = np.asarray(value, dtype=np.float32)
    return weights
