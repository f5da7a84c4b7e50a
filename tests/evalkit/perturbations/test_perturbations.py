"""Perturbations are pure: text and seed decide, and what they promise to keep is kept."""

import re
import unicodedata
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.errors import InputError
from evalkit.metrics.glossary import Glossary
from evalkit.perturbations.characters import fullwidth, recase, typos
from evalkit.perturbations.dates import reformat_dates
from evalkit.perturbations.entities import amounts_of, swap_amounts, swap_numbers, swap_terms
from evalkit.perturbations.language import is_chinese, sentences
from evalkit.perturbations.numbers import reformat_numbers
from evalkit.perturbations.passages import MixedIn, distract, drop_sentences, mix
from evalkit.perturbations.perturbation import Perturbation, build_perturbation, perturbed
from evalkit.perturbations.schema import Robustness
from evalkit.scoring.texts import TextItem

SPECS = [
    {"perturb": "typos", "rate": 0.3},
    {"perturb": "case", "to": "upper"},
    {"perturb": "fullwidth"},
    {"perturb": "numbers"},
    {"perturb": "dates"},
    {"perturb": "script"},
    {"perturb": "drop_sentences", "rate": 0.5},
    {"perturb": "distract", "count": 2},
    {"perturb": "swap_entities", "entities": ["numbers", "amounts"]},
    {"name": "noisy", "steps": [{"perturb": "typos"}, {"perturb": "case"}, {"perturb": "fullwidth"}]},
]
ENGLISH = "Mr. Ito paid €3,650.50 on 12 March 2024. Order 482913 cost 120 euros! Was it v2.10?"
CHINESE = "张磊在2024年3月12日转账1000.50元，银行卡已经挂失。周二再回电话。"
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
    st.lists(
        st.sampled_from([ENGLISH, CHINESE, "ﬁ İ ß", "e\u0301", "👩‍👩‍👧", "\n\n", " 12.5 % "]), max_size=4
    ).map(" ".join),
)


def build(spec: dict) -> Perturbation:
    (parsed,) = Robustness.model_validate({"robustness": [spec]}).robustness
    return build_perturbation(parsed, {})


BUILT = [build(spec) for spec in SPECS]


@pytest.mark.parametrize("one", BUILT, ids=lambda one: one.name)
@given(text=TEXTS, seed=st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_equal_texts_and_seeds_give_equal_valid_texts(one: Perturbation, text: str, seed: int) -> None:
    result = one.apply(text, seed, ("12", "3,650.50"))
    assert result == one.apply(text, seed, ("12", "3,650.50"))
    result.encode()
    assert bool(result.strip()) == bool(text.strip()) or one.name == "distract"


@given(text=TEXTS, seed=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_rate_0_is_the_identity(text: str, seed: int) -> None:
    for function, nothing in (
        (typos, 0.0),
        (fullwidth, 0.0),
        (drop_sentences, 0.0),
        (distract, 0),
        (mix, MixedIn(("x",), 0.0)),
    ):
        assert function(text, Random(seed), nothing) == text
    assert "".join(sentences(text)) == text


@given(order=st.permutations(range(6)))
@settings(max_examples=20, deadline=None)
def test_the_order_of_the_texts_changes_nothing(order: list[int]) -> None:
    texts = [ENGLISH, CHINESE, "Only 77 dollars.", "nothing", "¥5 and ¥6", "Fee €9."]
    items = [TextItem(f"t{index}", text, "c") for index, text in enumerate(texts)]
    for one in BUILT:
        straight = {item.sample_id: item.text for item in perturbed(one, items, 3).items}
        mixed = perturbed(one, [items[index] for index in order], 3)
        assert {item.sample_id: item.text for item in mixed.items} == straight
        assert mixed.digest == perturbed(one, items, 3).digest


@given(text=TEXTS, seed=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_typos_touch_letters_alone(text: str, seed: int) -> None:
    result = typos(text, Random(seed), 0.9)
    assert [c for c in result if not c.isalpha()] == [c for c in text if not c.isalpha()]


@given(text=TEXTS, seed=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_full_width_forms_are_the_same_text_by_compatibility(text: str, seed: int) -> None:
    result = fullwidth(text, Random(seed), 0.5)
    assert unicodedata.normalize("NFKC", result) == unicodedata.normalize("NFKC", text)


def test_the_rate_is_that_of_the_letters() -> None:
    text = "a" * 20000
    near = sum(a != b for a, b in zip(text, fullwidth(text, Random(1), 0.05), strict=True))
    assert 850 < near < 1150  # 1000 expected, standard deviation 31


def test_seeds_and_texts_have_draws_of_their_own() -> None:
    one = build({"perturb": "typos", "rate": 0.2})
    assert one.apply(ENGLISH, 1) != one.apply(ENGLISH, 2)
    # Equal beginnings don't share their draws.
    assert one.apply(ENGLISH + " And more.", 1)[:40] != one.apply(ENGLISH, 1)[:40]


@pytest.mark.parametrize(
    ("to", "text", "result"),
    [
        ("continental", "€3,650.50 and 1000.5", "€3.650,50 and 1.000,5"),
        ("grouped", "转账1000.50元, 1234567 dollars", "转账1,000.50元, 1,234,567 dollars"),
        ("plain", "€3,650.50 or 1,234,567", "€3650.50 or 1234567"),
        # Years, ids, codes, dates, versions and times aren't amounts.
        ("grouped", "In 2024 order 482913, 0012345元, 2024-03-12, v2.10.1, 10:30", None),
        ("grouped", "2024年3月12日", None),
        ("continental", "1.000,50 euros", None),
    ],
)
def test_number_formats(to: str, text: str, result: str | None) -> None:
    assert reformat_numbers(text, Random(0), to) == (text if result is None else result)


@given(whole=st.integers(0, 10**9), cents=st.integers(0, 99), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_reformatted_numbers_keep_their_values(whole: int, cents: int, seed: int) -> None:
    for to, marks in (("grouped", ",."), ("continental", ".,"), ("plain", "_.")):
        result = reformat_numbers(f"pay €{whole}.{cents:02} now", Random(seed), to)
        number = result.removeprefix("pay €").removesuffix(" now")
        assert float(number.replace(marks[0], "").replace(marks[1], ".")) == float(f"{whole}.{cents:02}")


@pytest.mark.parametrize(
    ("to", "text", "result"),
    [
        ("iso", "on 12 March 2024 or March 3rd, 2023", "on 2024-03-12 or 2023-03-03"),
        ("day_first", "2024-03-12 and 2024/3/5", "12/03/2024 and 05/03/2024"),
        ("month_first", "2024年3月12日开户", "03/12/2024开户"),
        ("words", "2024-03-12到期的存款", "2024年3月12日到期的存款"),
        ("words", "due 2024-03-12", "due 12 March 2024"),
        # Two readings, no such day, more than a date.
        ("iso", "03/12/2024, 2024-02-30, 2024-03-12-17, 1203-2024", None),
    ],
)
def test_date_formats(to: str, text: str, result: str | None) -> None:
    assert reformat_dates(text, Random(0), to) == (text if result is None else result)


def test_script_goes_there_and_back() -> None:
    pytest.importorskip("opencc")
    there = build({"perturb": "script"}).apply("银行卡挂失", 0)
    assert there == "銀行卡掛失"
    assert build({"perturb": "script", "to": "simplified"}).apply(there, 0) == "银行卡挂失"


def test_a_sentence_always_stays() -> None:
    parts = sentences(ENGLISH)
    assert parts == [
        "Mr. Ito paid €3,650.50 on 12 March 2024. ",
        "Order 482913 cost 120 euros! ",
        "Was it v2.10?",
    ]
    for seed in range(50):
        result = drop_sentences(ENGLISH, Random(seed), 1.0)
        assert result in parts
    assert drop_sentences("Only one.", Random(0), 1.0) == "Only one."


def test_what_is_added_stands_between_the_sentences() -> None:
    for text in (ENGLISH, CHINESE):
        result = distract(text, Random(4), 2)
        assert len(sentences(result)) == len(sentences(text)) + 2
        assert is_chinese(result) == is_chinese(text)
        for part in sentences(text):
            assert part.strip() in result
    assert "Foreign words." in mix(ENGLISH, Random(1), MixedIn(("Foreign words.",), 0.1))


def test_swapped_entities() -> None:
    assert swap_numbers("from 12 to 57", Random(0)) == "from 57 to 12"
    assert swap_numbers("12 and 12 only", Random(0)) == "12 and 12 only"
    assert "12 March 2024" in swap_numbers(ENGLISH, Random(0))
    pool = amounts_of([ENGLISH, CHINESE, "id 5"])
    assert pool == ("1000.50", "120", "3,650.50")
    swapped = swap_amounts("costs €120 in 2024", Random(0), pool)
    assert swapped in ("costs €1000.50 in 2024", "costs €3,650.50 in 2024")
    terms = ("credit card", "loan", "贷款")
    assert swap_terms("A loan, a Loan", Random(0), Glossary(terms), terms) == "A credit card, a credit card"


def test_case_and_unreadable_texts() -> None:
    assert recase("Straße 银行", Random(0), "upper") == "STRASSE 银行"
    items = [TextItem("a", "", "a"), TextItem("b", "\ud800x", "b"), TextItem("c", "Card", "c")]
    result = perturbed(build({"perturb": "case"}), items, 0)
    assert [item.text for item in result.items] == ["", "\ud800x", "card"]


def test_a_chain_is_its_steps_in_order_and_as_strong_as_the_strongest() -> None:
    chain = build(
        {"name": "both", "steps": [{"perturb": "case"}, {"perturb": "drop_sentences", "rate": 0.5}]}
    )
    assert chain.effect == "removed" and not chain.setup.keeps_meaning
    lowered = build({"perturb": "case"}).apply(ENGLISH, 9)
    assert chain.apply(ENGLISH, 9) == build({"perturb": "drop_sentences", "rate": 0.5}).apply(lowered, 9)
    assert re.fullmatch(r"[0-9a-f]{64}", chain.setup.digest)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opencc", None)
    with pytest.raises(InputError, match=r'pip install "evalkit\[opencc\]"'):
        build({"perturb": "script"})
