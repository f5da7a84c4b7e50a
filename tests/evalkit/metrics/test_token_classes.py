"""The partition of tokens by source text."""

from dataclasses import replace

import numpy as np
import pytest

from evalkit.errors import InputError
from evalkit.metrics.counts import Counts, counts_from_file, frequency_bands
from evalkit.metrics.registry import TOKEN_CLASSES
from evalkit.metrics.token_classes import build_classifier
from evalkit.scenario.schema import Classes, Domain, Frequency
from tests.evalkit.scoring.conftest import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
FREQUENCIES = np.arange(TOKENIZER.vocab_size, dtype=np.int64)[::-1].copy()
COUNTS = Counts("here", "ab12", FREQUENCIES, None, {"the": 9, "card,": 3, "Fee": 2, "my": 1, "年费": 4})
SPEC = Classes(domain=Domain(glossary="terms.txt"))


def classes_of(text, spec=SPEC, counts=COUNTS, terms=("credit card", "年费")):
    classifier = build_classifier(spec, TOKENIZER, "t", counts, terms)
    encoded = TOKENIZER.encode(text)
    data = text.encode()
    codes = classifier.classify(text, encoded)
    return [
        (data[start:end], TOKEN_CLASSES[code])
        for start, end, code in zip(encoded.starts, encoded.ends, codes, strict=True)
    ]


def merged(pairs):
    """Text of each class, in order."""
    result: dict[str, bytes] = {}
    for data, name in pairs:
        result[name] = result.get(name, b"") + data
    return {name: data.decode() for name, data in result.items()}


def test_oov_is_a_word_that_the_counts_lack():
    found = merged(classes_of("the card of my fee", terms=None))
    assert found["oov"].strip() == "of"


def test_precedence_decides():
    text = "my credit card"
    assert merged(classes_of(text))["oov"] == " credit"
    first = SPEC.model_copy(update={"precedence": ["domain", "oov", "frequency"]})
    assert merged(classes_of(text, first))["domain"] == " credit card"


def test_chinese_terms_and_characters():
    found = merged(classes_of("我的年费"))
    assert found["domain"] == "年费"
    assert "oov" in found and "年" not in found["oov"]


def test_a_token_belongs_to_a_term_that_it_overlaps():
    # The token " credit" begins with the space before the term.
    first = SPEC.model_copy(update={"precedence": ["domain", "oov", "frequency"]})
    assert (b" credit", "domain") in classes_of("my credit card", first)


@pytest.mark.parametrize("text", ["the credit card of Maria, 年费 too", "😀 plain", "x"])
def test_every_token_has_exactly_one_class(text):
    pairs = classes_of(text)
    assert len(pairs) == len(TOKENIZER.encode(text).ids)
    assert all(name in TOKEN_CLASSES for _, name in pairs)


def test_bands_by_cumulative_mass():
    counts = np.array([50, 30, 15, 3, 2, 0])
    # Mass strictly more frequent: 0, .50, .80, .95, .98, 1.
    assert list(frequency_bands(counts, Frequency(head=0.8, middle=0.95))) == [0, 0, 1, 2, 2, 2]
    # Equal frequencies share a band, whatever their ids.
    assert list(frequency_bands(np.array([10, 10, 10, 10]), Frequency())) == [0, 0, 0, 0]
    assert list(frequency_bands(np.zeros(3, dtype=np.int64), Frequency())) == [2, 2, 2]


def test_without_counts_classes_are_absent_with_a_reason():
    nothing = Counts("converted", "none", None, None, None)
    classifier = build_classifier(SPEC, TOKENIZER, "t", nothing, None)
    assert classifier.absent["perplexity/oov"] == (
        "the model has no training word counts and none are pinned"
    )
    assert "no training token counts" in classifier.absent["perplexity/long_tail"]
    assert "no glossary" in classifier.absent["logits/entropy/domain"]
    assert "rate/oov" in classifier.absent
    codes = classifier.classify("the fee", TOKENIZER.encode("the fee"))
    assert {TOKEN_CLASSES[code] for code in codes} == {"other"}


def test_token_counts_of_another_tokenizer_do_not_apply():
    classifier = build_classifier(SPEC, TOKENIZER, "mine", replace(COUNTS, tokenizer_sha256="other"), None)
    assert "belong to another tokenizer" in classifier.absent["perplexity/head"]
    assert "perplexity/oov" not in classifier.absent


def test_too_few_token_counts():
    with pytest.raises(InputError, match=r"classes\.counts: here: counts 3 token ids"):
        build_classifier(SPEC, TOKENIZER, "t", replace(COUNTS, tokens=np.ones(3, dtype=np.int64)), None)


def test_digest_names_what_decides():
    def digest(spec=SPEC, counts=COUNTS, terms=("a", "b")):
        return build_classifier(spec, TOKENIZER, "t", counts, terms).digest

    assert digest() == digest(terms=("b", "a"))
    others = [
        digest(terms=("a",)),
        digest(counts=replace(COUNTS, digest="cd")),
        digest(SPEC.model_copy(update={"frequency": Frequency(head=0.7)})),
    ]
    assert len({digest(), *others}) == 4


def test_counts_file(tmp_path):
    path = tmp_path / "counts.npz"
    np.savez(path, counts=np.arange(5), words=np.array(["fee"]), word_counts=np.array([2]))
    counts = counts_from_file(path)
    assert counts.words == {"fee": 2} and list(counts.tokens) == [0, 1, 2, 3, 4]
    path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="not a file of counts"):
        counts_from_file(path)
    with pytest.raises(InputError, match="no such file"):
        counts_from_file(tmp_path / "absent.npz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"counts": -np.arange(3)}, "counts: a row of whole numbers from 0 on"),
        ({"counts": np.array([0.5, 2.0])}, "counts: a row of whole numbers"),
        ({"counts": np.array([np.nan, 2.0])}, "counts: a row of whole numbers"),
        ({"counts": np.ones((2, 2))}, "counts: a row of whole numbers"),
        ({"counts": 5}, "counts: a row of whole numbers"),
        ({"counts": np.zeros(3, int)}, "counts: .*not all of them 0"),
        ({"counts": np.full(3, 2**62)}, "counts: a row of whole numbers"),
        ({"counts": np.array(["a", "b"])}, "counts: a row of whole numbers"),
        ({"counts": np.arange(3), "words": ["a", "a"], "word_counts": [1, 2]}, "words: one is there twice"),
        ({"counts": np.arange(3), "words": ["a", "b"], "word_counts": [-1, 2]}, "word_counts: a row of"),
        ({"counts": np.arange(3), "words": ["a", "b"], "word_counts": [1]}, "zip"),
    ],
)
def test_what_is_no_count_would_class_tokens_wrongly(tmp_path, content, message):
    path = tmp_path / "counts.npz"
    np.savez(path, **content)
    with pytest.raises(InputError, match=f"counts.npz: not a file of counts .*{message}"):
        counts_from_file(path)


def test_whole_numbers_of_any_type_are_counts(tmp_path):
    np.savez(tmp_path / "counts.npz", counts=np.array([0.0, 3.0]))
    assert counts_from_file(tmp_path / "counts.npz").tokens.tolist() == [0, 3]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_file_of_counts_is_one_line(tmp_path, save):
    path = tmp_path / "counts.npz"
    save(path, counts=np.arange(300))
    whole = path.read_bytes()
    for damaged in (whole[:-40], whole[:64] + b"\xff" * 30 + whole[94:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="not a file of counts") as caught:
            counts_from_file(path)
        assert "\n" not in str(caught.value)
