"""Cleaning rules: what each recognises, what it does, and that every record is accounted for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.chat import Message
from evalkit.errors import InputError
from trainer.configuration.data import CleaningConfig
from trainer.data.cleaning import (
    Cleaner,
    describe,
    fix_control_characters,
    fix_invalid_unicode,
    fix_mojibake,
)
from trainer.data.corpus import Record

ENGLISH = "The café’s menu costs €12 — “naïve”, isn’t it?"
CHINESE = "请转账 1250 欧元给玛丽，谢谢您。"


def run(texts, *, duplicates=True, **rules):
    """What is left of texts, and the facts."""
    cleaner = Cleaner(CleaningConfig(**rules), duplicates=duplicates)
    records = [Record(str(number), text=text, where=f"f:{number}") for number, text in enumerate(texts)]
    kept = [record.text for record in cleaner.clean(records)]
    return kept, cleaner.facts()


# -- what a rule recognises


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
@pytest.mark.parametrize("encoding", ["latin-1", "sloppy-windows-1252"])
def test_utf8_read_in_a_one_byte_encoding_is_read_again(text, encoding):
    assert fix_mojibake(text.encode().decode(encoding)) == text


def test_a_faulty_line_among_good_ones_is_mended():
    broken = CHINESE.encode().decode("latin-1")
    assert fix_mojibake(f"{CHINESE}\n{broken}\nplain") == f"{CHINESE}\n{CHINESE}\nplain"


@pytest.mark.parametrize(
    "text",
    [
        ENGLISH,
        CHINESE,
        "Größe, Ångström, señor, façade, Příliš žluťoučký kůň, Ωμέγα, Привет, 日本語テキスト, 한국어",
        "© 2024 ® ½ ° £5 ¥300 «guillemets» ÀÉÎÕÜ",
        "🙂 👩‍👩‍👧 e\u0301 ﬁ Ａ １２",
    ],
)
def test_good_text_stays_as_it_is(text):
    assert fix_control_characters(fix_invalid_unicode(fix_mojibake(text))) == text


def test_no_real_text_is_taken_for_mojibake(shared_data):
    files = [
        shared_data / "corpora/en-tinyshakespeare/input.txt",
        *sorted((shared_data / "corpora/zh-thuocl").glob("*.txt")),
    ]
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert fix_mojibake(text) == text, path


def test_invalid_unicode_and_control_characters():
    assert fix_invalid_unicode("a\ud800b\udfffc\ufffdd\U0001f642") == "abcd\U0001f642"
    assert fix_control_characters("a\x00b\x07\x7f\x9fc\td\r\ne\x0cf\x85g\x0bh") == "abc\td\r\ne\nf\ng\nh"


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=40))
def test_fixing_ends_and_leaves_nothing_behind(text):
    fixed = fix_control_characters(fix_invalid_unicode(fix_mojibake(text)))
    assert fix_control_characters(fix_invalid_unicode(fixed)) == fixed
    fixed.encode()  # valid


# -- what is done about it

FAULTY = {
    "mojibake": CHINESE.encode().decode("latin-1"),
    "invalid_unicode": "lost \ufffd here",
    "control_characters": "bell\x07",
}


@pytest.mark.parametrize("rule", FAULTY)
def test_each_text_rule_can_be_switched(rule):
    others = {name: "skip" for name in FAULTY if name != rule}
    bad = FAULTY[rule]
    for action, left in {"fix": 2, "drop": 1, "count": 2, "skip": 2}.items():
        kept, facts = run(["good text", bad], **others, **{rule: action})
        assert len(kept) == left
        assert (bad in kept) == (action in ("count", "skip"))
        met = facts["rules"].get(rule)
        assert met == (None if action == "skip" else {"action": action, "records": 1})


def test_exact_duplicates_are_dropped_whatever_their_ids():
    kept, facts = run(["same", "other", "same", "same "])
    assert kept == ["same", "other", "same "]
    assert facts["rules"]["exact_duplicates"] == {"action": "drop", "records": 1}
    assert run(["same", "same"], exact_duplicates="count")[0] == ["same", "same"]
    assert "exact_duplicates" not in run(["same", "same"], exact_duplicates="skip")[1]["rules"]


def test_duplicates_are_found_after_the_repair_and_roles_count():
    kept, _ = run([CHINESE, CHINESE.encode().decode("latin-1")])
    assert kept == [CHINESE]
    swapped = [
        Record("a", (Message("user", "x"), Message("assistant", "y"))),
        Record("b", (Message("assistant", "x"), Message("user", "y"))),
        Record("c", (Message("user", "x"), Message("assistant", "y"))),
        Record("d", (Message("user", "xassistant"), Message("assistant", "y"))),
    ]
    cleaner = Cleaner(CleaningConfig(), duplicates=True)
    assert [record.record_id for record in cleaner.clean(swapped)] == ["a", "b", "d"]


def test_a_record_without_text_is_dropped():
    kept, facts = run(["\ufffd\x07", "  \n", "text"])
    assert kept == ["text"] and facts["rules"]["empty"]["records"] == 2
    record = Record("a", (Message("user", "\x00"), Message("assistant", "fine")))
    assert list(Cleaner(CleaningConfig(), duplicates=True).clean([record])) == []


@pytest.mark.parametrize("action", ["count", "skip"])
def test_a_lone_surrogate_that_stays_is_an_error(action):
    with pytest.raises(InputError, match=r"f:1: holds a lone surrogate.*invalid_unicode to fix or drop"):
        run(["fine", "a\ud800"], invalid_unicode=action)


def test_a_validation_set_keeps_its_duplicates():
    kept, facts = run(["same", "same"], duplicates=False)
    assert kept == ["same", "same"] and "exact_duplicates" not in facts["rules"]


@given(st.lists(st.sampled_from([*FAULTY.values(), "a", "b", " ", ENGLISH]), max_size=12), st.data())
def test_every_record_is_kept_or_dropped_by_one_rule(texts, data):
    actions = {name: data.draw(st.sampled_from(["fix", "drop", "count", "skip"])) for name in FAULTY}
    kept, facts = run(texts, **actions)
    dropped = sum(entry["records"] for entry in facts["rules"].values() if entry["action"] == "drop")
    assert facts["records_read"] == len(texts) and facts["records_kept"] == len(kept)
    assert facts["records_read"] == facts["records_kept"] + dropped
    json.dumps(facts)


def test_the_line_for_the_terminal():
    _, facts = run(["same", "same", FAULTY["mojibake"]])
    line = describe("train", facts)
    assert line == "train: 2 of 3 records kept (mojibake: 1 mended; exact duplicates: 1 dropped)"
    assert describe("train", run(["x"])[1]) == "train: 1 of 1 records kept (nothing to clean)"
