"""The tokenizer of a Hugging Face folder: tokenizer.json, tokenizer_config.json, chat_template.jinja."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer, processors

from evalkit.bundle import TokenizerSpec
from trainer.convert.source import read_json, refusal

TOKENIZER_FILE, TOKENIZER_CONFIG, TEMPLATE_FILE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)

Config = dict[str, Any]


@dataclass(frozen=True)
class FolderTokenizer:
    """The tokenizer and the ids that frame a text; see `SourceModel`."""

    json: bytes
    prefix_token: int | None
    end_token: int | None
    chat_template: str | None


def read_folder_tokenizer(folder: Path, config: Config) -> FolderTokenizer:
    """Read the tokenizer of a folder.

    Args:
        folder: holds tokenizer.json and perhaps tokenizer_config.json.
        config: the model's configuration, which may name the special tokens' ids.

    Raises:
        InputError: absent, broken or contradictory.
    """
    settings = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    data = read_tokenizer_json(folder / TOKENIZER_FILE)
    tokenizer = Tokenizer.from_str(data.decode())
    return FolderTokenizer(
        json=data,
        prefix_token=_prefix_token(folder, settings, config, tokenizer),
        end_token=_special_id(folder, "eos", settings, config, tokenizer),
        chat_template=_chat_template(folder, settings),
    )


def framing_tokenizer(tokenizer_json: bytes, prefix_token: int | None) -> bytes:
    """The tokenizer with a post-processor that puts `prefix_token`, and nothing else, before a text.

    transformers asks the post-processor alone, whatever tokenizer_config.json says; one that does so already stays as
    it is, byte for byte.
    """
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    wanted = [] if prefix_token is None else [prefix_token]
    if tokenizer.encode("").ids == wanted:
        return tokenizer_json
    if prefix_token is None:
        # It adds no token, and moves offsets only.
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    else:
        token = tokenizer.id_to_token(prefix_token)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{token}:0 $A:0",
            pair=f"{token}:0 $A:0 $B:1",
            special_tokens=[(token, prefix_token)],
        )
    return str(tokenizer.to_str(pretty=True)).encode()


def tokenizer_config(tokenizer_json: bytes, spec: TokenizerSpec, max_length: int) -> bytes:
    """The tokenizer_config.json that says what our tokenizer adds and how it frames a chat."""
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    settings: Config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": spec.prefix_token is not None,
    }
    for key, token_id in (("bos_token", spec.prefix_token), ("eos_token", spec.end_token)):
        if token_id is not None:
            settings[key] = tokenizer.id_to_token(token_id)
    if spec.chat_template is not None:
        settings["chat_template"] = spec.chat_template
    return orjson.dumps(settings, option=orjson.OPT_INDENT_2)


def read_tokenizer_json(file: Path) -> bytes:
    """A tokenizer.json without the truncation and padding of somebody's training run.

    Raises:
        InputError: absent, or not a tokenizer.
    """
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
    if value is None:
        return None
    if type(value) is not int or value not in tokenizer.get_vocab().values():
        raise refusal(
            folder,
            f"{kind}_token_id {value!r} is no token of {TOKENIZER_FILE}",
            "take an undamaged copy of the model",
        )
    return value


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
