"""The architecture in config.json, as Hugging Face writes it, to ours and back."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import ValidationError

from evalkit.bundle import ModelSpec
from trainer.config import count_parameters
from trainer.convert.source import refusal

Config = dict[str, Any]
Family = Literal["llama", "gpt2"]

CLASSES: dict[Family, str] = {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel"}

# What reading a value of another type or size raises.
WRONG_VALUES = (TypeError, ValueError, AttributeError, ArithmeticError)

_DAMAGED = "take an undamaged copy of the model"
_SUPPORTED = f"only decoders of the kinds {' and '.join(CLASSES.values())} can be converted"
# What stands in the (lower-case) name of an architecture that isn't computed, and what to tell its user.
_ADVICE = (
    (("bert", "electra"), "an encoder predicts no next token; take a decoder"),
    (("t5", "bart", "marian", "whisper"), "an encoder-decoder; take a decoder-only model"),
    (("moe", "mixtral", "deepseek"), "a mixture of experts; take a dense Llama or GPT-2 model"),
    (("qwen2",), "it has biases on queries, keys and values only, which aren't computed"),
    (("qwen3",), "it norms queries and keys, which isn't computed"),
    (("mistral",), "its sliding window isn't converted"),
)


def read_spec(where: object, config: Config) -> ModelSpec:
    """The architecture that a config.json describes.

    Args:
        where: for messages.
        config: its content.

    Raises:
        InputError: a value is missing or wrong, or the architecture isn't computed.
    """
    family = _family(where, config)
    if config.get("quantization_config") is not None:
        raise refusal(where, "the weights are quantised", "take the unquantised model, or a GGUF file")
    try:
        spec = _READERS[family](where, config)
    except KeyError as error:
        raise refusal(where, f"{error.args[0]}: missing", _DAMAGED) from None
    except ValidationError as error:
        raise refusal(
            where, "{loc[0]}: {msg}".format(**error.errors(include_url=False)[0]), _DAMAGED
        ) from None
    except WRONG_VALUES as error:
        raise refusal(where, f"a value of the wrong kind ({error})", _DAMAGED) from None
    if spec.heads % spec.kv_heads or spec.hidden_size % spec.heads:
        raise refusal(
            where,
            f"hidden_size {spec.hidden_size}, heads {spec.heads} and key heads {spec.kv_heads} don't divide",
            _DAMAGED,
        )
    return spec.model_copy(update={"parameters": count_parameters(spec)})


def write_config(where: object, spec: ModelSpec) -> Config:
    """The config.json of an architecture, without its special tokens.

    Raises:
        InputError: Hugging Face has no class that computes this architecture.
    """
    common = {
        "architectures": [CLASSES[spec.family]],
        "model_type": spec.family,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tied_head,
        "dtype": "float32",
    }
    parts = (spec.norm, spec.positions, spec.activation)
    if spec.attention_window is not None:
        raise refusal(
            where,
            "its attention window is cut",
            f"{CLASSES[spec.family]} computes none; convert the uncut one",
        )
    if spec.family == "llama" and parts == ("rmsnorm", "rotary", "swiglu"):
        return common | {
            "hidden_size": spec.hidden_size,
            "num_hidden_layers": spec.layers,
            "num_attention_heads": spec.heads,
            "num_key_value_heads": spec.kv_heads,
            "head_dim": spec.head_size,
            "intermediate_size": spec.intermediate_size,
            "max_position_embeddings": spec.max_length,
            "rms_norm_eps": spec.norm_eps,
            "hidden_act": "silu",
            "attention_bias": spec.bias,
            "mlp_bias": spec.bias,
            # transformers 5 reads the first, earlier versions the second.
            "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta},
            "rope_theta": spec.rope_theta,
        }
    plain = spec.kv_heads == spec.heads and spec.bias
    if spec.family == "gpt2" and parts == ("layernorm", "learned", "gelu") and plain:
        return common | {
            "n_embd": spec.hidden_size,
            "n_layer": spec.layers,
            "n_head": spec.heads,
            "n_inner": spec.intermediate_size,
            "n_positions": spec.max_length,
            "layer_norm_epsilon": spec.norm_eps,
            "activation_function": "gelu_new",
        }
    raise refusal(
        where,
        f"a {spec.family} model with {', '.join(parts)}, {spec.kv_heads} key heads and bias {spec.bias}",
        f"{CLASSES[spec.family]} computes no such model; train one with the family's defaults",
    )


def _family(where: object, config: Config) -> Family:
    named, kind = config.get("architectures") or [], config.get("model_type")
    if not isinstance(named, list):
        raise refusal(where, f"architectures: a list is needed, found {named!r}", _DAMAGED)
    for family, name in CLASSES.items():
        if named == [name] or (not named and kind == family):
            return family
    shown = ", ".join(map(str, named)) or str(kind)
    advice = next(
        (text for marks, text in _ADVICE if any(mark in shown.lower() for mark in marks)), _SUPPORTED
    )
    raise refusal(where, f"architecture {shown} isn't supported", advice)


def _llama(where: object, config: Config) -> ModelSpec:
    if config.get("hidden_act", "silu") != "silu":
        raise refusal(where, f"hidden_act {config['hidden_act']!r}", "only silu is computed")
    if config.get("num_local_experts") or config.get("num_experts"):
        raise refusal(where, "a mixture of experts", "take a dense Llama or GPT-2 model")
    if config.get("sliding_window"):
        raise refusal(
            where, f"sliding_window {config['sliding_window']}", "take a model that sees its whole context"
        )
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    if hidden % heads or config.get("head_dim") not in (None, hidden // heads):
        raise refusal(
            where,
            f"head_dim {config.get('head_dim')} isn't hidden_size {hidden} / num_attention_heads {heads}",
            "this version computes heads of equal share only",
        )
    return ModelSpec(
        family="llama",
        hidden_size=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_length=config["max_position_embeddings"],
        norm="rmsnorm",
        norm_eps=config["rms_norm_eps"],
        positions="rotary",
        rope_theta=_rope_theta(where, config),
        activation="swiglu",
        tied_head=bool(config.get("tie_word_embeddings", False)),
        bias=_bias(where, config),
        parameters=1,
        dtype="float32",
    )


def _rope_theta(where: object, config: Config) -> float:
    # transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling.
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    kind = parameters.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        raise refusal(where, f"rotary scaling {kind!r}", "only unscaled rotary positions are computed")
    if parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise refusal(where, "partial_rotary_factor isn't 1", "only whole heads are turned")
    merged: Config = {"rope_theta": 10000.0} | config | parameters
    return float(merged["rope_theta"])


def _bias(where: object, config: Config) -> bool:
    attention, feed_forward = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    if attention != feed_forward:
        raise refusal(
            where,
            f"attention_bias {attention} but mlp_bias {feed_forward}",
            "this version computes biases everywhere or nowhere",
        )
    return attention


def _gpt2(where: object, config: Config) -> ModelSpec:
    activation = config.get("activation_function", "gelu_new")
    if activation not in ("gelu_new", "gelu_pytorch_tanh"):
        raise refusal(
            where, f"activation_function {activation!r}", "only gelu_new, the tanh form, is computed"
        )
    for key, plain in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        if config.get(key, plain) != plain:
            raise refusal(where, f"{key} {config[key]}", "only the plain attention of GPT-2 is computed")
    hidden = config["n_embd"]
    return ModelSpec(
        family="gpt2",
        hidden_size=hidden,
        layers=config["n_layer"],
        heads=config["n_head"],
        kv_heads=config["n_head"],
        intermediate_size=config.get("n_inner") or 4 * hidden,
        vocab_size=config["vocab_size"],
        max_length=config.get("n_positions") or config["n_ctx"],
        norm="layernorm",
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        positions="learned",
        activation="gelu",
        tied_head=bool(config.get("tie_word_embeddings", True)),
        bias=True,
        parameters=1,
        dtype="float32",
    )


_READERS: dict[Family, Callable[[object, Config], ModelSpec]] = {"llama": _llama, "gpt2": _gpt2}
