"""Public faults of result caches: E42-E55 of the list, and what users asked of a cache there."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from evalkit.bundle import load_bundle
from evalkit.cache.store import cache_file
from evalkit.runs.plan import read_plan
from evalkit.scenario.schema import Window
from tests.support.bundles import reseal
from tests.support.caching import asked, numbers, run, samples, score, without_provenance, write_texts
from tests.support.interrupted import fake_sandbox, write_scenario

__all__ = ["asked"]

SCENARIO = "version: 1\nname: cached\ntext:\n  data: texts.jsonl\n  window: {length: 64, stride: 64, prefix: first}\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts.jsonl")


def other_tokenizer(bundle: Path) -> None:
    tokenizer = bundle / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    reseal(bundle, "tokenizer.json")


def other_weights(bundle: Path) -> None:
    weights = bundle / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    reseal(bundle, "weights.safetensors")


def other_graph(bundle: Path) -> None:
    # An unknown field at the end: the same operators in another file.
    graph = load_bundle(bundle).graph_file("score")
    graph.write_bytes(graph.read_bytes() + b"\xfa\x7f\x01\x00")
    reseal(bundle, graph.relative_to(bundle).as_posix())


@pytest.mark.parametrize("change", [other_weights, other_tokenizer, other_graph])
def test_e42_another_model_under_the_same_name_is_asked_anew(
    data: Path, tiny_bundle: Path, tmp_path: Path, asked: list[int], change: object
) -> None:
    """lm-eval #4063, #2715, lighteval #1364: one cache served model A's scores as model B's."""
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    score(data, bundle, tmp_path / "first")
    batches = len(asked)
    assert callable(change)
    change(bundle)
    second = score(data, bundle, tmp_path / "second")
    assert len(asked) == 2 * batches
    assert not any(record.from_cache for record in samples(second))


def test_e42_another_window_is_asked_anew(
    data: Path, tiny_bundle: Path, tmp_path: Path, asked: list[int]
) -> None:
    wide = score(data, tiny_bundle, tmp_path / "first", window=Window(length=64, stride=64))
    batches = len(asked)
    narrow = score(data, tiny_bundle, tmp_path / "second", window=Window(length=16, stride=4))
    assert len(asked) > batches
    nll = [{record.sample_id: record.nll for record in samples(folder)} for folder in (wide, narrow)]
    assert nll[0]["t3"] != nll[1]["t3"]
    fresh = score(data, tiny_bundle, tmp_path / "third", window=Window(length=16, stride=4), use_cache=False)
    assert numbers(narrow) == numbers(fresh)


def test_e43_classes_and_views_that_came_later_are_computed_from_cached_answers(
    data: Path, tiny_bundle: Path, tmp_path: Path, asked: list[int]
) -> None:
    """evalscope #767, deepeval #734: a metric added after caching was never computed."""
    scenario = data.with_name("scenario.yaml")
    scenario.write_text(SCENARIO)
    run(scenario, tiny_bundle, tmp_path / "first")
    batches = len(asked)
    data.with_name("terms.txt").write_text("card\nfee\n")
    scenario.write_text(
        SCENARIO
        + "  classes: {domain: {glossary: terms.txt}}\n  views: [{name: blocking, regex: 'block my \\w+'}]\n"
    )
    second = run(scenario, tiny_bundle, tmp_path / "second")
    assert len(asked) == batches
    found = {metric["name"]: metric["value"] for metric in numbers(second)["metrics"]}
    assert found["perplexity/domain"] is not None and found["perplexity/view/blocking"] is not None
    assert numbers(second) == numbers(run(scenario, tiny_bundle, tmp_path / "third", use_cache=False))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE answers SET payload = substr(payload, 1, length(payload) - 4)",
        "UPDATE answers SET payload = zeroblob(length(payload))",
        "UPDATE answers SET run_id = 'yesterday'",
    ],
)
def test_a_damaged_entry_is_never_a_miss_without_a_word(
    data: Path,
    tiny_bundle: Path,
    tmp_path: Path,
    asked: list[int],
    capsys: pytest.CaptureFixture[str],
    damage: str,
) -> None:
    """lm-eval and lighteval wrap cache reads in `except Exception`, so that a corrupt cache looks like a miss."""
    first = score(data, tiny_bundle, tmp_path / "first")
    batches = len(asked)
    with closing(sqlite3.connect(cache_file())) as database, database:
        database.execute(damage)
    capsys.readouterr()
    second = score(data, tiny_bundle, tmp_path / "second")
    assert len(asked) == 2 * batches
    assert f"{batches} were damaged there and computed anew" in capsys.readouterr().err
    assert numbers(second) == numbers(first)
    third = score(data, tiny_bundle, tmp_path / "third")
    assert len(asked) == 2 * batches
    assert {name for record in samples(third) for name in record.cache_runs} == {read_plan(second)["run_id"]}


def test_nothing_in_the_cache_is_a_pickle(data: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """lm-eval keeps built prompts as dill pickles: reading one runs code."""
    score(data, tiny_bundle, tmp_path / "first")
    with closing(sqlite3.connect(cache_file())) as database:
        for layout, payload in database.execute("SELECT layout, payload FROM answers"):
            shapes = json.loads(layout)
            assert set(shapes) == {"logprob", "entropy", "margin", "rank", "top_id"}
            assert len(payload) == 4 * 5 * shapes["rank"][1][0] * shapes["rank"][1][1]


def test_e46_texts_in_another_order_or_under_other_ids_are_the_same_texts(
    data: Path, tiny_bundle: Path, tmp_path: Path, asked: list[int]
) -> None:
    """inspect #618: ids depended on the order. Here the order of the data changes neither plan nor cache."""
    first = score(data, tiny_bundle, tmp_path / "first")
    batches = len(asked)
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    data.write_text("".join(json.dumps({**row, "id": f"new-{row['id']}"}) + "\n" for row in reversed(rows)))
    second = score(data, tiny_bundle, tmp_path / "second")
    assert len(asked) == batches
    ours = {record.sample_id: record.nll for record in samples(first)}
    assert {record.sample_id.removeprefix("new-"): record.nll for record in samples(second)} == ours


def test_e55_repeats_are_played_not_served_from_a_cache(tiny_bundle: Path, tmp_path: Path) -> None:
    """promptfoo #360, #1888: five repeats were one. Trials of a dialogue are never cached, scores of texts are."""
    scenario = write_scenario(tmp_path / "scenario")
    with fake_sandbox(tiny_bundle) as sandbox:
        first = run(scenario, tiny_bundle, tmp_path / "first", sandbox_address=sandbox)
        second = run(scenario, tiny_bundle, tmp_path / "second", sandbox_address=sandbox)
    assert all(record.from_cache for record in samples(second) if record.status == "ok")
    assert without_provenance(samples(second)) == without_provenance(samples(first))
    from evalkit.runs.evidence_io import read_evidence

    turns = [read_evidence(folder, "candidate").turns for folder in (first, second)]
    assert all(len({(turn.dialogue_id, turn.trial) for turn in of_run}) == 8 for of_run in turns)
    # Two plays of a trial never take the same nanoseconds three times over; a copy would.
    assert [turn.total_ns for turn in turns[0]] != [turn.total_ns for turn in turns[1]]
