"""A tokenizer, texts and token rows for trainings that are over in a second."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from evalkit.scoring.texts import TextItem
from evalkit.training.evaluation import Validation, validation

_SENTENCES = (
    "The card was lost in Lisbon on Monday morning.",
    "Please transfer 120 euros to the savings account.",
    "I would like to speak to a person about the fee.",
    "The balance of the account is 48 euros and 10 cents.",
    "Thank you, the payment has arrived.",
)


def texts(count: int = 24, seed: int = 0) -> list[TextItem]:
    """Texts of one to three sentences."""
    generator = np.random.default_rng(seed)
    chosen = [generator.choice(_SENTENCES, size=generator.integers(1, 4)) for _ in range(count)]
    return [TextItem(f"t{index:03d}", " ".join(parts), f"t{index:03d}") for index, parts in enumerate(chosen)]


def write_tokenizer(folder: Path) -> Path:
    """A byte-level BPE of 300 ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def small_validation(folder: Path, **settings) -> Validation:
    """The texts under a window that holds each whole."""
    return validation(texts(), write_tokenizer(folder), max_length=128, **settings)


def token_rows(check: Validation, rows: int = 32, length: int = 33) -> np.ndarray:
    """Rows of token ids to train on, int32 (rows, length)."""
    stream = np.concatenate([check.tokenizer.encode(item.text).ids for item in texts(400, seed=1)])
    return stream[: rows * length].reshape(rows, length).astype(np.int32)
