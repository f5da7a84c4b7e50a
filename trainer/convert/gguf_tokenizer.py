"""The tokenizer that a GGUF file describes, as a Hugging Face `tokenizers` file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from trainer.convert.source import refusal

# Token types of GGUF: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_SPACE = "\u2581"
# How Llama 3 cuts a text before merging (the same expression as in its published tokenizer).
_LLAMA3_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")

Get = Callable[[str], Any]


@dataclass(frozen=True)
class GgufTokenizer:
    """What a GGUF file says about text.

    Attributes:
        json: a `tokenizers` file.
        size: tokens in the vocabulary.
        prefix_token: put before a text, or None.
        end_token, chat_template: or None.
    """

    json: bytes
    size: int
    prefix_token: int | None
    end_token: int | None
    chat_template: str | None


def read_tokenizer(get: Get, file: Path) -> GgufTokenizer:
    """Build the tokenizer from the metadata.

    Args:
        get: value of a metadata key, or None.
        file: for messages.

    Raises:
        InputError: a kind of tokenizer that this version doesn't build, or contradictory metadata.
    """
    kind = get("tokenizer.ggml.model")
    tokens = get("tokenizer.ggml.tokens")
    if not tokens:
        raise refusal(file, "tokenizer.ggml.tokens: missing", "take a GGUF file that holds its tokenizer")
    vocabulary = _vocabulary(file, tokens)
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(get, file, vocabulary)
    elif kind == "llama":
        unknown = get("tokenizer.ggml.unknown_token_id") or 0
        if not 0 <= unknown < len(tokens):
            raise refusal(
                file,
                f"tokenizer.ggml.unknown_token_id {unknown}: there are {len(tokens)} tokens",
                "take an undamaged copy of the model",
            )
        name = tokens[unknown]
        space_first = get("tokenizer.ggml.add_space_prefix") is not False
        tokenizer = _sentencepiece(tokens, _scores(get, file, len(tokens)), vocabulary, name, space_first)
        adds_bos = True
    else:
        raise refusal(
            file, f"tokenizer.ggml.model {kind!r} isn't supported", "only gpt2 and llama tokenizers are read"
        )
    types = get("tokenizer.ggml.token_type") or []
    special = (_CONTROL, _UNKNOWN) if kind == "llama" else (_CONTROL,)
    tokenizer.add_special_tokens(
        [AddedToken(tokens[i], special=True, normalized=False) for i, t in enumerate(types) if t in special]
    )
    tokenizer.add_tokens(
        [AddedToken(tokens[i], normalized=False) for i, t in enumerate(types) if t == _USER_DEFINED]
    )
    asked = get("tokenizer.ggml.add_bos_token")
    adds_bos = adds_bos if asked is None else bool(asked)
    first = get("tokenizer.ggml.bos_token_id")
    if adds_bos and first is None:
        raise refusal(file, "tokenizer.ggml.bos_token_id: missing", "take an undamaged copy of the model")
    return GgufTokenizer(
        json=str(tokenizer.to_str(pretty=True)).encode(),
        size=len(tokens),
        prefix_token=int(first) if adds_bos else None,
        end_token=get("tokenizer.ggml.eos_token_id"),
        chat_template=get("tokenizer.chat_template"),
    )


def _byte_level(get: Get, file: Path, vocabulary: dict[str, int]) -> tuple[Tokenizer, bool]:
    merges = [tuple(merge.split(" ")) for merge in get("tokenizer.ggml.merges") or []]
    cut = get("tokenizer.ggml.pre")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole_words = False
    if cut == "gpt-2":
        pre_tokenizer: Any = byte_level
    elif cut == "smollm":
        pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    elif cut in _LLAMA3_NAMES:
        whole_words = True
        pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_LLAMA3_CUT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        raise refusal(
            file,
            f"tokenizer.ggml.pre {cut!r} isn't supported",
            f"only gpt-2, smollm and {_LLAMA3_NAMES[0]} are known; convert the model's Hugging Face folder",
        )
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, cut in _LLAMA3_NAMES


def _scores(get: Get, file: Path, size: int) -> list[float]:
    scores: list[float] | None = get("tokenizer.ggml.scores")
    if scores is None or len(scores) != size:
        raise refusal(
            file, "tokenizer.ggml.scores: missing or too short", "take an undamaged copy of the model"
        )
    return scores


def sentencepiece_tokenizer(
    file: Path, tokens: list[str], scores: list[float], *, unknown: int, space_first: bool
) -> bytes:
    """A `tokenizers` file with SentencePiece's merges by score; the first tokens up to </s> are control tokens.

    Args:
        file: for messages.
        tokens: by id, each once; spaces written as U+2581.
        scores: of each token: of two neighbouring pairs the one whose joint token scores higher is merged first.
        unknown: id of the unknown token.
        space_first: whether a space is put before a text.
    """
    vocabulary = _vocabulary(file, tokens)
    tokenizer = _sentencepiece(tokens, scores, vocabulary, tokens[unknown], space_first)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")]
    )
    return str(tokenizer.to_str(pretty=True)).encode()


def _vocabulary(file: Path, tokens: list[str]) -> dict[str, int]:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise refusal(file, "a token stands twice in the vocabulary", "take an undamaged copy of the model")
    return vocabulary


def _sentencepiece(
    tokens: list[str], scores: list[float], vocabulary: dict[str, int], unknown: str, space_first: bool
) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(tokens, scores, vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [normalizers.Prepend(_SPACE)] if space_first else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    cut = [decoders.Strip(content=" ", left=1, right=0)] if space_first else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *cut]
    )
    return tokenizer


def _merges(tokens: list[str], scores: list[float], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Merge rules from scores: SentencePiece joins the neighbours whose joint token has the highest score.

    Every way to cut a token into two tokens is a rule; rules come in the order of the joint token's score, the ones
    of one token by the ids of the halves.
    """
    rules = []
    for joint_id, token in enumerate(tokens):
        for place in range(1, len(token)):
            left, right = vocabulary.get(token[:place]), vocabulary.get(token[place:])
            if left is not None and right is not None:
                rules.append((-scores[joint_id], joint_id, left, right))
    return [(tokens[left], tokens[right]) for _, _, left, right in sorted(rules)]
