"""The engine with real models: the same tokens whatever the way, and whichever the graph."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalkit.bundle import Bundle, load_bundle
from sandbox.engine.concat_model import ConcatModel
from sandbox.engine.kv_cache import KvRows
from sandbox.engine.onnx_model import FusedModel, open_onnx
from sandbox.engine.step_model import choose_engine, kv_shape
from tests.sandbox.engine.runs import WAYS, Runner, Talk, run_ways
from tests.support.real_models import reference_meta

# What MindSpore, which is slow here, answers in the fast suite.
FAST = {"onnx": WAYS, "mindir": ("cold", "together at once", "after eviction")}


def talks(count: int, vocab_size: int, turns: int = 3) -> list[Talk]:
    """Talks of several lengths; each begins with the prefix token."""
    random = np.random.default_rng(5)

    def say() -> list[int]:
        return [int(token) for token in random.integers(6, vocab_size, random.integers(1, 40))]

    return [[[1, *say()], *(say() for _ in range(turns - 1))] for _ in range(count)]


@pytest.fixture(scope="module")
def tiny_ways(tiny_bundle: Path) -> dict[str, dict[str, Any]]:
    """16 talks with the tiny model, by engine."""
    vocab_size = load_bundle(tiny_bundle).model.vocab_size
    return {name: run_ways(tiny_bundle, name, talks(16, vocab_size), ways) for name, ways in FAST.items()}


def check(found: dict[str, Any]) -> None:
    """Every way that was run gives the tokens of the first."""
    cold = found["cold"]
    for way in WAYS[1:7]:
        if way in found:
            assert found[way] == (cold[:2] if way == "interleaved" else cold), way
    if "after eviction" in found:
        assert found["after eviction"] == cold
    assert found.get("drawn together") == found.get("drawn alone")
    assert found["used"] == 0


@pytest.mark.parametrize("engine", ["onnx", "mindir"])
def test_s29_s30_s33_s37_the_way_never_shows_in_the_tokens(
    tiny_ways: dict[str, dict[str, Any]], engine: str
) -> None:
    """Cold alone against warm, cancelled, interleaved, evicted, and 16 at once; greedy and drawn."""
    check(tiny_ways[engine])


@pytest.mark.slow
def test_s29_s30_s33_s37_every_way_with_mindspore(tiny_bundle: Path) -> None:
    vocab_size = load_bundle(tiny_bundle).model.vocab_size
    found = run_ways(tiny_bundle, "mindir", talks(16, vocab_size))
    check(found)
    assert len({tuple(ids) for ids in found["drawn alone"]}) == 16


def test_mindir_and_onnx_take_the_same_tokens(tiny_ways: dict[str, dict[str, Any]]) -> None:
    assert tiny_ways["mindir"]["cold"] == tiny_ways["onnx"]["cold"]


@pytest.mark.parametrize("engine", ["onnx", pytest.param("mindir", marks=pytest.mark.slow)])
def test_golden_ids_of_one_two_and_three_turns(
    stories_bundle: Bundle, shared_data: Path, engine: str
) -> None:
    """The reference's float64 continuation, cut into turns whose next words the user says."""
    golden: list[int] = reference_meta(shared_data, "stories260K")["greedy_from_bos"]["token_ids"]
    talk = [[1], golden[20:25], golden[45:50]]
    found = run_ways(stories_bundle.path, engine, [talk, [[1, 403], *talk[1:]]])
    assert found["cold"][0] == [golden[:20], golden[25:45], golden[50:70]]
    check(found)


@pytest.mark.slow
def test_smollm2_answers_the_same_in_every_way(smollm2_bundle: Bundle) -> None:
    check(run_ways(smollm2_bundle.path, "onnx", talks(8, smollm2_bundle.model.vocab_size), new_tokens=12))


def filled(model: FusedModel, spec: Any, count: int, room: int = 128) -> KvRows:
    rows = KvRows(spec, count * room)
    rows.lay_out(room, [])
    random = np.random.default_rng(1)
    for part in rows.parts:
        part[:] = random.normal(size=part.shape)
    return rows


def test_s37_logits_have_the_same_bits_in_every_batch_and_chunk(tiny_bundle: Path) -> None:
    """A near-tie can't flip: not even the last bit depends on rows, chunks or room."""
    bundle = load_bundle(tiny_bundle)
    model, shape = open_onnx(bundle, 32), kv_shape(bundle)
    assert isinstance(model, FusedModel)
    assert model.is_exact()
    random = np.random.default_rng(2)
    ids = random.integers(0, bundle.model.vocab_size, 90).tolist()
    whole = filled(model, shape, 1)
    logits = model.prefill(whole, 0, ids, 0)
    for count in (2, 3, 5, 8, 17, 32):
        rows = filled(model, shape, count, 128 if count % 2 else 256)
        row, start = count // 2, 0
        while start < 90:
            end = min(90, start + int(random.integers(1, 30)))
            pieces = model.prefill(rows, row, ids[start:end], start)
            start = end
        assert np.array_equal(pieces, logits)
        for part, alone in zip(rows.parts, whole.parts, strict=True):
            assert np.array_equal(part[row, :, :90], alone[0, :, :90])
        tokens = random.integers(0, bundle.model.vocab_size, count, dtype=np.int32)
        lengths = random.integers(1, 120, count, dtype=np.int32)
        tokens[row], lengths[row] = 7, 90
        beside = model.decode(rows, list(range(count)), tokens, lengths)[row]
        alone = model.decode(whole, [0], np.array([7], np.int32), np.array([90], np.int32))[0]
        assert np.array_equal(beside, alone)


def test_the_fused_graph_computes_what_the_bundles_graph_does(tiny_bundle: Path) -> None:
    bundle = load_bundle(tiny_bundle)
    from evalkit.backends.onnx_session import open_session
    from evalkit.bundle import DECODE_ONNX

    session = open_session(bundle.graph_file(DECODE_ONNX))
    names = [port.name for port in session.get_inputs()]
    plain = ConcatModel(bundle.model, lambda arrays: session.run(None, dict(zip(names, arrays, strict=True))))
    fused = open_onnx(bundle, 4)
    ids = np.random.default_rng(3).integers(0, bundle.model.vocab_size, 60).tolist()
    found = {}
    for name, model in (("plain", plain), ("fused", fused)):
        rows = KvRows(kv_shape(bundle), 512)
        rows.lay_out(128, [])
        for start in range(0, 60, 32):
            logits = model.prefill(rows, 2, ids[start : start + 32], start)
        token = np.full(3, 9, np.int32)
        found[name] = [logits.copy(), model.decode(rows, [2], token, np.full(3, 60, np.int32))[0].copy()]
        found[name] += [part[2, :, :61].copy() for part in rows.parts]
    for mine, theirs in zip(found["fused"], found["plain"], strict=True):
        assert np.abs(mine - theirs).max() < 2e-4 * max(1.0, np.abs(theirs).max())


def test_rows_one_by_one_give_the_same_tokens(tiny_bundle: Path) -> None:
    """What a processor gets on which bits depend on the shape."""
    vocab_size = load_bundle(tiny_bundle).model.vocab_size
    runner = Runner(tiny_bundle, "onnx", talks(4, vocab_size), 12)
    cold = [runner.talk(talk, cold=True) for talk in talks(4, vocab_size)]
    assert isinstance(runner.model, FusedModel)
    runner.model.fix_shapes()
    runner.begin_again()
    assert runner.together(settle=True) == cold


def test_onnx_is_chosen_where_the_bundle_has_it(tiny_bundle: Path) -> None:
    bundle = load_bundle(tiny_bundle)
    assert choose_engine(bundle) == "onnx"
    assert choose_engine(bundle, "mindir") == "mindir"
