"""`words: {cjk: jieba}` from the scenario to the result: Chinese texts have a word perplexity."""

import json
import sys
from pathlib import Path

import pytest

from evalkit.console import SilentProgress
from evalkit.errors import InputError
from evalkit.metrics.segmenter import jieba_words
from evalkit.runs.orchestrate import RunRequest, run_scenario
from evalkit.runs.results_io import read_results
from evalkit.runs.verify import verify
from evalkit.scenario.loader import load_scenario

TEXTS = ["您的信用卡年费是250元。", "我昨天丢了信用卡。", "my card is lost"]


def scenario(folder: Path, words: str, texts: list[str] = TEXTS) -> Path:
    lines = [json.dumps({"id": f"t{index}", "text": text}) for index, text in enumerate(texts)]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    path = folder / "scenario.yaml"
    path.write_text(f"version: 1\nname: words\ntext:\n  data: texts.jsonl\n  words: {words}\n")
    return path


def word_perplexity(tiny_bundle: Path, folder: Path, words: str, **changes):
    folder.mkdir()
    request = RunRequest(
        load_scenario(scenario(folder, words, **changes)), candidate=tiny_bundle, out=folder / "run"
    )
    done = run_scenario(request, SilentProgress()).folder
    assert verify(done) == []
    return read_results(done.results).find("perplexity/word")


def test_chinese_has_a_word_perplexity_where_a_segmenter_is_declared(tiny_bundle, tmp_path):
    pytest.importorskip("jieba", reason='pip install "evalkit[jieba]"')
    plain = word_perplexity(tiny_bundle, tmp_path / "plain", "{cjk: none}")
    assert plain.value is None and "words: {cjk: jieba}" in plain.reason
    found = word_perplexity(tiny_bundle, tmp_path / "jieba", "{cjk: jieba}")
    assert found.value > 1 and found.n == 7 + 5 + 4
    assert f"|words:{jieba_words().name}|" in found.signature
    assert found.signature != plain.signature
    japanese = word_perplexity(
        tiny_bundle, tmp_path / "japanese", "{cjk: jieba}", texts=[*TEXTS, "カードの年会費"]
    )
    assert japanese.value is None and "none segments Japanese" in japanese.reason


def test_without_jieba_the_scenario_is_refused_by_line(tiny_bundle, tmp_path, monkeypatch):
    path = scenario(tmp_path, "{cjk: jieba}")
    jieba_words.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(InputError, match=r"scenario\.yaml:5: text\.words\.cjk: jieba .*pip install"):
        run_scenario(
            RunRequest(load_scenario(path), candidate=tiny_bundle, out=tmp_path / "run"), SilentProgress()
        )
    assert not (tmp_path / "run").exists()
