"""Features of texts: what counts as an entity, and what is refused."""

import pytest

from evalkit.errors import InputError
from evalkit.resampling.features import (
    entity_density,
    feature_matrix,
    from_function,
    number_density,
    own_feature,
    term_density,
    token_length,
)
from evalkit.tokenization import TextTokenizer
from tests.evalkit.training.fixtures import write_tokenizer

TERMS = ["savings account", "transfer", "转账"]


@pytest.mark.parametrize(
    ("text", "entities"),
    [
        ("no entity here", 0),
        ("send $300 to my savings account on March 3rd", 3),
        ("on 2024-03-01 pay 1,200.50 euros to DE89 3702 0044 0532 0130 00", 3),
        ("card ****1234 and 12345678", 2),
        ("我要在3月5日转账200元", 3),
        ("Transfer 5 on Tuesday", 3),
        ("AB12 some text here", 1),
        ("room 12", 1),
        ("on 3/4/2024 at 9.5%", 2),
        ("may I transfer", 1),
        ("", 0),
    ],
)
def test_entities(text, entities):
    (value,) = entity_density(TERMS).measure([text])
    assert value == pytest.approx(100 * entities / max(1, len(text)))


@pytest.mark.parametrize(
    ("text", "numbers", "terms"),
    [
        ("send $300 to my savings account on March 3rd", 2, 1),
        ("Transfer, transfer: transferred", 0, 2),
        ("我要在3月5日转账200元", 2, 1),
        ("", 0, 0),
    ],
)
def test_numbers_and_terms_apart(text, numbers, terms):
    scale = 100 / max(1, len(text))
    assert number_density().measure([text]) == pytest.approx([numbers * scale])
    assert term_density(TERMS).measure([text]) == pytest.approx([terms * scale])


def test_token_length_is_that_of_the_tokenizer(tmp_path):
    path = write_tokenizer(tmp_path)
    tokenizer = TextTokenizer.from_file(path, prefix_token=None, end_token=None, chat_template=None)
    feature = token_length(tokenizer, "d")
    texts = ["The card was lost.", "", "a"]
    assert feature.measure(texts) == [len(tokenizer.encode(text).ids) for text in texts]


def test_a_users_function(tmp_path):
    (tmp_path / "mine.py").write_text("def words(text):\n    return len(text.split())\nnumber = 3\n")
    feature = own_feature("mine:words", tmp_path)
    assert feature_matrix([feature], ["a b", "c"]).tolist() == [[2.0], [1.0]]
    with pytest.raises(InputError, match="mine:number: a function from a text to a number"):
        own_feature("mine:number", tmp_path)
    with pytest.raises(InputError, match="mine has no 'missing'"):
        own_feature("mine:missing", tmp_path)


def test_what_a_users_function_does_wrong_is_named():
    with pytest.raises(InputError, match=r"bad: failed with ZeroDivisionError.*for 'x'"):
        feature_matrix([from_function("bad", lambda text: 1 / 0)], ["x"])
    with pytest.raises(InputError, match="bad: gave nan for 'x'; a finite number"):
        feature_matrix([from_function("bad", lambda text: float("nan"))], ["x"])
    with pytest.raises(InputError, match="bad: failed with TypeError"):
        feature_matrix([from_function("bad", lambda text: None)], ["x"])


def test_features_are_told_apart_by_what_decides_them():
    assert entity_density(["a"]).identity != entity_density().identity
    assert entity_density(["a", "b"]).identity == entity_density(["b", "a"]).identity
    apart = {
        one.identity for one in (entity_density(), number_density(), term_density(["a"]), term_density(["b"]))
    }
    assert len(apart) == 4


@pytest.mark.parametrize(
    "text", ["1" * 20000, "1 " * 10000, "DE12 " + "AAAA " * 4000, "*" * 20000, "a-" * 10000]
)
def test_long_texts_take_no_time(text):
    """A pattern that tries again and again would take minutes here."""
    entity_density(TERMS).measure([text])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_function("words", 7), "feature words: a function of a text"),
        (
            lambda: from_function("words", lambda: 1),
            "feature words: a function of a text is needed .called with 1",
        ),
        (lambda: from_function(len, len), "feature: name: a text"),
        (lambda: entity_density("account"), "entity_density: terms: a list of texts"),
        (lambda: entity_density([7]), "entity_density: terms: a list of texts"),
        (lambda: term_density([7]), "term_density: terms: a list of texts"),
        (lambda: term_density([]), "term_density: at least one term"),
        (lambda: term_density(None), "term_density: terms: a list of texts"),
        (lambda: token_length("tokenizer.json", "t"), "token_length: tokenizer: a TextTokenizer"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
