"""The Chinese segmenter of `words: {cjk: jieba}`: the package's own dictionary, nothing fetched, nothing cached on disk."""

import warnings
from functools import lru_cache
from pathlib import Path

from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from evalkit.metrics.words import WordRule


@lru_cache(maxsize=1)
def jieba_words() -> WordRule:
    """Words by jieba's accurate mode with its hidden Markov model; the name holds its version and its dictionary.

    Raises:
        InputError: jieba isn't installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about setuptools and old string escapes, at import
            import jieba
    except ImportError:
        raise InputError(
            'jieba segments Chinese but isn\'t installed; pip install "evalkit[jieba]"'
        ) from None
    tokenizer = jieba.Tokenizer()
    # Not initialize(): it loads a cache with `marshal` from the shared temporary folder, which anybody can write to.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    dictionary = sha256_file(Path(jieba.__file__).parent / jieba.DEFAULT_DICT_NAME)
    return WordRule(f"whitespace+jieba-{jieba.__version__}-{dictionary[:8]}", tokenizer.cut)
