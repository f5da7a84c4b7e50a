"""Large runs: 20,000 texts, one of 500,000 tokens among them, in bounded memory."""

from typing import Any

import pytest

from benchmarks.large_run import LONG_TOKENS, large_runs
from evalkit.bundle import Bundle

FEW, MANY = 2_000, 20_000


@pytest.fixture(scope="module")
def runs(stories_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return large_runs(stories_bundle.path, "onnx", tmp_path_factory.mktemp("large"), (FEW, MANY))


@pytest.mark.slow
def test_every_text_is_counted_once_by_its_status(runs: dict[str, Any]) -> None:
    for name, texts in (("few", FEW), ("many", MANY), ("many_and_a_long_one", MANY)):
        found = runs[name]["conservation"]
        # Empty and only spaces; a NUL and a lone surrogate.
        assert (found["texts"], found["skipped"], found["error"], found["truncated"]) == (texts, 2, 2, 0)
        assert found["ok"] == texts - 4
        assert found["tokens_scored"] + found["tokens_unconditioned"] == found["tokens_encoded"]
        assert found["bytes"] == found["bytes_scored"]
    assert runs["many_and_a_long_one"]["conservation"]["tokens_encoded"] > LONG_TOKENS
    assert runs["again_from_the_cache"]["conservation"] == runs["many_and_a_long_one"]["conservation"]


@pytest.mark.slow
def test_memory_grows_by_a_few_kilobytes_a_text(runs: dict[str, Any]) -> None:
    # A record with its text; a tenth of a MiB for each of them would be 2 GiB more.
    assert runs["kib_a_text"] < 12
    # Tokens, spans and statistics of the long text: about 150 bytes a token.
    assert runs["many_and_a_long_one"]["peak_mib"] - runs["many"]["peak_mib"] < LONG_TOKENS * 300 / 2**20
