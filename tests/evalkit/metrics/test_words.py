"""What a word is."""

import subprocess
import sys

import pytest

from evalkit.errors import InputError
from evalkit.metrics.segmenter import jieba_words
from evalkit.metrics.words import WordRule, has_cjk, lexicon_entries


@pytest.mark.parametrize(
    ("text", "words"),
    [("", 0), ("a\n", 1), ("  a b ", 2), ("don't stop", 2), ("你好世界", 0), ("card 中", 0), ("é ü", 2)],
)
def test_count(text, words):
    assert WordRule().count(text) == words


@pytest.mark.parametrize(("text", "found"), [("abc", False), ("né", False), ("かな", True), ("、", False)])
def test_cjk(text, found):
    assert has_cjk(text) is found


def test_lexicon_entries_lose_case_and_outer_punctuation_but_keep_their_span():
    text = 'Say "Card-Holder", 12 €!  ...'
    assert [(entry, text[start:end]) for entry, start, end in lexicon_entries(text)] == [
        ("say", "Say"),
        ("card-holder", '"Card-Holder",'),
        ("12", "12"),
    ]


def test_cjk_characters_are_entries_of_their_own():
    text = "还款iPhone，好"
    assert [(entry, text[start:end]) for entry, start, end in lexicon_entries(text)] == [
        ("还", "还"),
        ("款", "款"),
        ("iphone", "iPhone，"),
        ("好", "好"),
    ]


@pytest.fixture
def jieba():
    pytest.importorskip("jieba", reason='pip install "evalkit[jieba]"')
    return jieba_words()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # 您 的 信用卡 年费 是 250 元
        ("您的信用卡年费是250元。", 7),
        # my | card | 丢 了 | please | help
        ("my card 丢了, please help", 6),
        ("", 0),
        ("plain words only.", 3),
        # One run of punctuation and one CJK mark: a run is at least one word.
        ("・ -", 2),
        # Japanese isn't what jieba segments: no count.
        ("カードの年会費", 0),
    ],
)
def test_words_of_chinese_by_jieba(jieba, text, words):
    assert jieba.count(text) == words


def test_jieba_count_is_that_of_its_own_segments(jieba, tmp_path):
    import jieba as package

    text = "我昨天丢了信用卡，想马上挂失并补办一张新卡！请问需要多少工本费？"
    reference = package.Tokenizer()
    reference.tmp_dir = tmp_path
    expected = [word for word in reference.lcut(text) if word not in "，！？"]
    assert jieba.count(text) == len(expected) == 16


def test_the_rule_names_version_and_dictionary(jieba):
    name = jieba.name
    assert name.startswith("whitespace+jieba-0.42") and len(name.rpartition("-")[2]) == 8


def test_jieba_reads_no_cache_that_others_can_write(tmp_path):
    """Its own initialize() takes `jieba.cache` of the temporary folder for Python code's data."""
    (tmp_path / "jieba.cache").write_bytes(b"nonsense")
    pytest.importorskip("jieba", reason='pip install "evalkit[jieba]"')
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from evalkit.metrics.segmenter import jieba_words as w; print(w().count('信用卡'))",
        ],
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert (tmp_path / "jieba.cache").read_bytes() == b"nonsense"


def test_without_jieba_the_line_says_what_to_install(monkeypatch):
    jieba_words.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(InputError, match=r'pip install "evalkit\[jieba\]"'):
        jieba_words()
