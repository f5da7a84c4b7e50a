"""A bundle is checked before anything of it is used."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalkit.bundle import FileSpec, ModelSpec, load_bundle, manifest_digest, model_digest
from evalkit.canonical import sha256_file
from evalkit.errors import InputError

MODEL = ModelSpec(
    family="llama", hidden_size=8, layers=1, heads=2, kv_heads=1, intermediate_size=16, vocab_size=16, max_length=32,
    attention_window=None, norm="rmsnorm", norm_eps=1e-5, positions="rotary", activation="swiglu", tied_head=True,
    parameters=100, dtype="float32",
)  # fmt: skip


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle without graphs: what the manifest promises, nothing more."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(b"weights" * 50)
    (folder / "tokenizer.json").write_bytes(b"{}" * 20)
    files = {
        name: FileSpec(sha256=sha256_file(folder / name), bytes=(folder / name).stat().st_size).model_dump()
        for name in ("weights.safetensors", "tokenizer.json")
    }
    weights, tokenizer = files["weights.safetensors"]["sha256"], files["tokenizer.json"]["sha256"]
    content: dict[str, Any] = {
        "schema": "evalkit.bundle/1",
        "name": "tiny",
        "created": "2026-01-01T00:00:00Z",
        "model_digest": model_digest(weights, tokenizer, MODEL),
        "model": MODEL.model_dump(),
        "tokenizer": {"sha256": tokenizer, "prefix_token": 1, "end_token": 2, "chat_template": None},
        "graphs": {},
        "files": files,
    }
    write_manifest(folder, content)
    return folder


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    content["manifest_sha256"] = manifest_digest(content)
    (folder / "manifest.json").write_text(json.dumps(content, indent=2))


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    change(content)
    write_manifest(folder, content)


def test_a_whole_bundle_loads(bundle: Path) -> None:
    loaded = load_bundle(bundle)
    assert loaded.model == MODEL
    assert loaded.token_counts is None
    assert loaded.word_counts is None
    with pytest.raises(InputError, match="no graph for the role 'score'"):
        loaded.graph_file("score")


def test_one_flipped_bit_anywhere_is_refused(bundle: Path) -> None:
    rng = random.Random(7)
    for file in sorted(bundle.iterdir()):
        data = file.read_bytes()
        for _ in range(60):
            position, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
            flipped = bytearray(data)
            flipped[position] ^= bit
            file.write_bytes(bytes(flipped))
            with pytest.raises(InputError):
                load_bundle(bundle)
        file.write_bytes(data)
    load_bundle(bundle)


def test_missing_folder_manifest_and_file(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such bundle folder"):
        load_bundle(tmp_path / "absent")
    (bundle / "weights.safetensors").unlink()
    with pytest.raises(InputError, match=r"weights\.safetensors: missing"):
        load_bundle(bundle)
    (bundle / "manifest.json").unlink()
    with pytest.raises(InputError, match="isn't a bundle"):
        load_bundle(bundle)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "a/../../b", "a\\b"])
def test_a_path_that_leaves_the_folder_is_refused(bundle: Path, name: str) -> None:
    edit(bundle, lambda content: content["files"].update({name: {"sha256": "0" * 64, "bytes": 1}}))
    with pytest.raises(InputError, match="leaves the bundle folder"):
        load_bundle(bundle)


def test_a_link_that_leaves_the_folder_is_refused(bundle: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes((bundle / "weights.safetensors").read_bytes())
    (bundle / "weights.safetensors").unlink()
    (bundle / "weights.safetensors").symlink_to(outside)
    with pytest.raises(InputError, match="a link that leaves"):
        load_bundle(bundle)


def test_the_model_is_what_the_digest_names(bundle: Path) -> None:
    edit(bundle, lambda content: content["model"].update(attention_window=4))
    with pytest.raises(InputError, match="model_digest doesn't fit"):
        load_bundle(bundle)


def test_a_graph_that_is_not_listed_is_refused(bundle: Path) -> None:
    edit(
        bundle,
        lambda content: content["graphs"].update(score={"format": "mindir", "file": "graphs/score.mindir"}),
    )
    with pytest.raises(InputError, match=r"graphs\.score\.file"):
        load_bundle(bundle)


def test_a_file_that_is_no_graph_is_refused(bundle: Path) -> None:
    graph = bundle / "graphs" / "score.mindir"
    graph.parent.mkdir()
    graph.write_bytes(b"\xff" * 64)

    def add(content: dict[str, Any]) -> None:
        content["graphs"]["score"] = {"format": "mindir", "file": "graphs/score.mindir"}
        content["files"]["graphs/score.mindir"] = {"sha256": sha256_file(graph), "bytes": 64}

    edit(bundle, add)
    with pytest.raises(InputError, match="not a MindIR graph"):
        load_bundle(bundle)
