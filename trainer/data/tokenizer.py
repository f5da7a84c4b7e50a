"""A byte-level BPE tokenizer for English, Chinese and anything else: no text is out of its alphabet."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from evalkit.errors import InputError
from evalkit.tokenization import TextTokenizer

PAD, BOS, END = "<|pad|>", "<|bos|>", "<|end|>"
SPECIAL_TOKENS = (PAD, BOS, END, "<|system|>", "<|user|>", "<|assistant|>")
PAD_ID, BOS_ID, END_ID = 0, 1, 2

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a vocabulary from `texts`; equal texts in equal order give an equal tokenizer.

    Digits merge like letters: a number that is frequent in the texts becomes one token, which a small model copies as
    easily as a name. The post-processor puts <|bos|> before a text.

    Args:
        texts: the training texts, without any framing.
        vocab_size: tokens at the most, the special ones and the 256 bytes included.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        # Sorted: the library returns a set, and ids must not depend on its order.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json that `train_tokenizer` made.

    Raises:
        InputError: missing, broken, or without our special tokens.
    """
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; name the tokenizer.json of an earlier run, or use tokenizer.train"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for any broken file
        raise InputError(
            f"{path}: not a tokenizer file ({error}); use the tokenizer.json of an earlier run"
        ) from None
    for token_id, token in enumerate(SPECIAL_TOKENS):
        if tokenizer.token_to_id(token) != token_id:
            raise InputError(
                f"{path}: token {token} must have id {token_id}; use the tokenizer.json of an earlier run"
            )
    return tokenizer


def text_tokenizer(tokenizer: Tokenizer) -> TextTokenizer:
    """The tokenizer as evalkit uses it, with the ids that frame our texts."""
    return TextTokenizer(tokenizer, prefix_token=BOS_ID, end_token=END_ID, chat_template=CHAT_TEMPLATE)
