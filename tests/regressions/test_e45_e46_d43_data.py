"""Public faults of data pipelines: E07, E45, E46, D43."""

import json
from itertools import islice

import numpy as np
import pytest

from tests.trainer.fixtures import CONFIG, write_records
from trainer.config import load_config
from trainer.data.cursor import Cursor
from trainer.data.pipeline import prepare


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Data of its own, and a home of its own."""
    monkeypatch.setenv("EVALKIT_HOME", str(tmp_path / "home"))
    write_records(tmp_path / "train.jsonl", 0, 60)
    write_records(tmp_path / "validation.jsonl", 100, 20)
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def load(folder):
    return prepare(load_config(folder / "config.yaml"), folder)


def test_e07_a_genuine_padding_id_is_learned_whatever_the_padding_is(folder):
    """The mask comes from where a document ends, never from an id: the end token as padding stays a token."""
    config = load_config(folder / "config.yaml")
    padded = config.model_copy(update={"data": config.data.model_copy(update={"pad_token_id": 2})})
    one, two = prepare(config, folder), prepare(padded, folder)
    learned = []
    for data, settings in ((one, config), (two, padded)):
        batches = list(data.epoch(settings, 0))
        learned.append([batch.targets[batch.weights > 0].tolist() for batch in batches])
        assert any((batch.targets[batch.weights > 0] == 2).any() for batch in batches)
    assert learned[0] == learned[1]


def test_e45_prepared_data_isnt_trusted_because_it_is_there(folder, capsys):
    first = load(folder)
    shard = first.folder / first.rows[0].name
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.chmod(0o600)
    shard.write_bytes(content)
    again = load(folder)
    assert (
        "has another SHA-256 than when it was written; the data is prepared again" in capsys.readouterr().err
    )
    config = load_config(folder / "config.yaml")
    assert [batch.token_ids.tobytes() for batch in again.epoch(config, 0)] == [
        batch.token_ids.tobytes() for batch in first.epoch(config, 0)
    ]


def test_e46_data_that_changed_is_prepared_anew(folder):
    first = load(folder)
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(lines[4])
    lines[4] = json.dumps(row | {"text": row["text"] + "!"})
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    again = load(folder)
    assert again.folder != first.folder and again.train_sha256 != first.train_sha256


@pytest.mark.parametrize("size", [2, 4, 7])
def test_d43_no_rank_repeats_a_row_to_fill_its_share(folder, size):
    config = load_config(folder / "config.yaml")
    data = load(folder)
    total = sum(file.rows for file in data.rows)
    steps = -(-total // (config.batch_size * size))
    rows = [
        row.tobytes()
        for rank in range(size)
        for _, batch in islice(data.batches(config, Cursor(), rank=rank, size=size), steps)
        for row in batch.token_ids[batch.segments.any(axis=1)]
    ]
    whole = [
        row.tobytes()
        for batch in data.epoch(config, 0)
        for row in batch.token_ids[batch.segments.any(axis=1)]
    ]
    assert len(rows) == total and sorted(rows) == sorted(whole)
    assert np.unique(rows).size == np.unique(whole).size
