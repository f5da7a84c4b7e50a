"""Hugging Face folders of Llama models: config.json, safetensors, tokenizer.json, tokenizer_config.json."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pydantic import ValidationError
from tokenizers import Tokenizer

from evalkit.bundle import ModelSpec
from evalkit.canonical import sha256_file
from trainer.config import count_parameters
from trainer.convert.safetensors_files import read_weights, weight_files
from trainer.convert.source import SourceModel, Weights, refusal

CONFIG, TOKENIZER_FILE, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"

_ARCHITECTURE = "LlamaForCausalLM"
# Buffers that old checkpoints store though they follow from the configuration.
_COMPUTED = ".self_attn.rotary_emb.inv_freq"


def read_huggingface(folder: Path) -> SourceModel:
    """Read a folder as `save_pretrained` writes it.

    Raises:
        InputError: incomplete, unsafe, or an architecture that this version doesn't compute.
    """
    config = _read_json(folder / CONFIG)
    model = _model(folder / CONFIG, config)
    tokenizer_config = _read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    tokenizer_json = _tokenizer_json(folder / TOKENIZER_FILE)
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    files = [folder / CONFIG, folder / TOKENIZER_FILE, *weight_files(folder)]
    return SourceModel(
        name=folder.resolve().name,
        model=model,
        weights=_weights(folder, model),
        tokenizer_json=tokenizer_json,
        prefix_token=_prefix_token(folder, tokenizer_config, config, tokenizer),
        end_token=_special_id(folder, "eos", tokenizer_config, config, tokenizer),
        chat_template=_chat_template(folder, tokenizer_config),
        origin={"format": "huggingface", "files": {file.name: sha256_file(file) for file in files}},
    )


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise refusal(file, "no such file", "the folder isn't a Hugging Face model; take a complete copy")
    try:
        content = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise refusal(
            f"{file}:{error.lineno}", f"broken JSON: {error.msg}", "take an undamaged copy of the model"
        ) from None
    if not isinstance(content, dict):
        raise refusal(file, "not a JSON object", "take an undamaged copy of the model")
    return content


def _model(file: Path, config: dict[str, Any]) -> ModelSpec:
    _check_architecture(file, config)
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        if hidden % heads or config.get("head_dim") not in (None, hidden // heads):
            raise refusal(
                file,
                f"head_dim {config.get('head_dim')} isn't hidden_size {hidden} / num_attention_heads {heads}",
                "this version computes heads of equal share only",
            )
        spec = ModelSpec(
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
            rope_theta=_rope_theta(file, config),
            activation="swiglu",
            tied_head=bool(config.get("tie_word_embeddings", False)),
            bias=_bias(file, config),
            parameters=1,
            dtype="float32",
        )
    except KeyError as error:
        raise refusal(file, f"{error.args[0]}: missing", "take an undamaged copy of the model") from None
    except (ValidationError, TypeError, ValueError) as error:
        detail = (
            "{loc[0]}: {msg}".format(**error.errors(include_url=False)[0])
            if isinstance(error, ValidationError)
            else str(error)
        )
        raise refusal(file, detail, "take an undamaged copy of the model") from None
    return spec.model_copy(update={"parameters": count_parameters(spec)})


def _check_architecture(file: Path, config: dict[str, Any]) -> None:
    architectures = config.get("architectures") or [
        _ARCHITECTURE if config.get("model_type") == "llama" else None
    ]
    if architectures != [_ARCHITECTURE]:
        named = ", ".join(map(str, architectures)) if architectures != [None] else config.get("model_type")
        raise refusal(
            file,
            f"architecture {named} isn't supported",
            f"only decoders of the kind {_ARCHITECTURE} can be converted",
        )
    if config.get("hidden_act", "silu") != "silu":
        raise refusal(file, f"hidden_act {config['hidden_act']!r}", "only silu is computed")
    if config.get("quantization_config") is not None:
        raise refusal(file, "the weights are quantised", "take the unquantised model, or a GGUF file")


def _rope_theta(file: Path, config: dict[str, Any]) -> float:
    # transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling.
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    kind = parameters.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        raise refusal(file, f"rotary scaling {kind!r}", "only unscaled rotary positions are computed")
    if parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise refusal(file, "partial_rotary_factor isn't 1", "only whole heads are turned")
    return float(parameters.get("rope_theta", config.get("rope_theta", 10000.0)))


def _bias(file: Path, config: dict[str, Any]) -> bool:
    attention, feed_forward = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    if attention != feed_forward:
        raise refusal(
            file,
            f"attention_bias {attention} but mlp_bias {feed_forward}",
            "this version computes biases everywhere or nowhere",
        )
    return attention


def _weights(folder: Path, model: ModelSpec) -> Weights:
    weights = {name: value for name, value in read_weights(folder).items() if not name.endswith(_COMPUTED)}
    head = weights.get("lm_head.weight") if model.tied_head else None
    if head is not None:
        # A copy of the embedding is dropped; another matrix would be silently ignored by a tied model.
        if not np.array_equal(head, weights.get("model.embed_tokens.weight", np.empty(0))):
            raise refusal(
                folder,
                "lm_head.weight: differs from the embedding though tie_word_embeddings is true",
                "mend config.json",
            )
        del weights["lm_head.weight"]
    return weights


def _tokenizer_json(file: Path) -> bytes:
    if not file.is_file():
        raise refusal(
            file,
            "no such file",
            "a fast tokenizer is needed: load the tokenizer with transformers and save it as tokenizer.json",
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for any broken file
        raise refusal(
            file, f"not a tokenizer file ({error})", "take an undamaged copy of the model"
        ) from None
    if tokenizer.truncation is None and tokenizer.padding is None:
        return file.read_bytes()
    # Settings of someone's training run; left in, they would cut or fill every text that is scored.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return str(tokenizer.to_str(pretty=True)).encode()


def _special_id(
    folder: Path,
    kind: str,
    tokenizer_config: dict[str, Any],
    config: dict[str, Any],
    tokenizer: Tokenizer,
) -> int | None:
    token = tokenizer_config.get(f"{kind}_token")
    if isinstance(token, dict):
        token = token.get("content")
    if token is not None:
        found = tokenizer.token_to_id(str(token))
        if found is None:
            raise refusal(
                folder / TOKENIZER_CONFIG,
                f"{kind}_token {token!r} isn't in {TOKENIZER_FILE}",
                "take an undamaged copy of the model",
            )
        return int(found)
    value = config.get(f"{kind}_token_id")
    if isinstance(value, list):
        value = value[0] if value else None
    return None if value is None else int(value)


def _prefix_token(
    folder: Path, tokenizer_config: dict[str, Any], config: dict[str, Any], tokenizer: Tokenizer
) -> int | None:
    first = _special_id(folder, "bos", tokenizer_config, config, tokenizer)
    asked = tokenizer_config.get("add_bos_token")
    if asked is None:
        added = tokenizer.encode("", add_special_tokens=True).ids
        asked = first is not None and added[:1] == [first]
    if asked and first is None:
        raise refusal(folder / TOKENIZER_CONFIG, "add_bos_token without a bos_token", "name the token")
    return first if asked else None


def _chat_template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    file = folder / TEMPLATE_FILE
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return None if template is None else str(template)
