"""Personal data is found by rule, and replaced by stand-ins of the same form."""

import time

import pytest

from evalkit.feedback.masking import KINDS, Masker, MaskRules, iban, luhn, stand_in
from evalkit.scenario.patterns import Pattern

RULES = MaskRules(("Anna", "Anna Maria", "王丽"), {"customer": Pattern(r"CU-\d+")})


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("write to a.b+c@mail.example.org, please", ["email"]),
        ("IBAN DE89 3704 0044 0532 0130 00.", ["iban"]),
        ("IBAN DE88 3704 0044 0532 0130 00.", ["number"]),  # wrong check digits: still a long number
        ("card 4111 1111 1111 1111 expires 11/2027", ["card"]),
        ("card 4111-1111-1111-1112", ["number"]),  # no card, yet nothing to pass on
        ("身份证11010519491231002X，谢谢", ["resident_id"]),
        ("my SSN is 078-05-1120", ["social_security"]),
        ("call +44 20 7946 0018 or (206) 555-0293", ["phone", "phone"]),
        ("+49 170 1234567, +33 1 23 45 67 89, 0170/1234567", ["phone"] * 3),
        ("ratio 050/1000, up +10 from 200, +1.5 points", []),
        ("手机13912345678", ["phone"]),
        ("account 123456789", ["number"]),
        ("Anna Maria and Anna, not Annabel", ["name", "name"]),
        ("我是王丽", ["name"]),
        ("customer CU-12345678", ["customer"]),
        ("on 2026-11-30 and 30.11.2026 I paid 1,250.00 euro for 12 things", []),
        ("room 12, floor 3, 250 euro, 3.5 %", []),
        ("", []),
    ],
)
def test_kinds(text: str, kinds: list[str]) -> None:
    assert [found.kind for found in RULES.find(text)] == kinds


def test_equal_values_get_equal_stand_ins() -> None:
    masker = Masker(RULES)
    first = masker.template("Anna (anna@x.org) has 4111 1111 1111 1111.")
    assert first == "{name_1} ({email_1}) has {card_1}."
    assert masker.template("ANNA@x.org, 4111111111111111, bob@x.org") == "{email_1}, {card_1}, {email_2}"
    assert masker.plain("Anna") == masker.stand_ins["name_1"] == "Alex"


@pytest.mark.parametrize("kind", KINDS)
def test_stand_ins_have_the_form_of_what_they_stand_for(kind: str) -> None:
    values = [stand_in(kind, number) for number in range(1, 30)]
    assert len(set(values)) == len(values)
    if kind != "name":
        assert all([found.kind for found in MaskRules().find(value)] == [kind] for value in values)
    if kind == "card":
        assert all(luhn(value) for value in values)
    if kind == "iban":
        assert all(iban(value) for value in values)


def test_a_kind_of_the_user_and_a_chinese_name() -> None:
    assert stand_in("customer", 3) == "CUSTOMER-0003"
    assert stand_in("name", 1, chinese=True) == "王小明"


def test_a_long_run_of_letters_takes_no_long_search() -> None:
    started = time.process_time()
    assert [found.kind for found in RULES.find("a." * 100_000 + " anna@x.org")] == ["email"]
    assert time.process_time() - started < 20
