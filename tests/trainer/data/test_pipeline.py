"""From files to batches: order, shares, resume, counts, facts, faults."""

import gzip
import io
import json
import pickle
import sys
from itertools import islice, pairwise

import numpy as np
import pytest
import yaml

from evalkit.errors import InputError
from tests.trainer.fixtures import CONFIG, write_records
from trainer.checkpoint import read_checkpoint
from trainer.config import load_config
from trainer.data import build as build_module
from trainer.data import pipeline
from trainer.data.cursor import Cursor
from trainer.data.pipeline import prepare

BOTH_LANGUAGES = [
    {"id": "en", "text": "Please send 1250 euros to Maria, thank you."},
    {"id": "zh", "text": "请转账 1250 欧元给玛丽，谢谢您。"},
]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Data of its own, and a home of its own."""
    monkeypatch.setenv("EVALKIT_HOME", str(tmp_path / "home"))
    write_records(tmp_path / "train.jsonl", 0, 60)
    write_records(tmp_path / "validation.jsonl", 100, 20)
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def config_with(folder, **data):
    """The configuration with other values under `data`."""
    content = yaml.safe_load(CONFIG.replace("1.0e-2", "0.01"))
    content["data"] |= data
    (folder / "config.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return load_config(folder / "config.yaml")


def load(folder, **data):
    config = config_with(folder, **data)
    return config, prepare(config, folder)


def ids(batch):
    return (batch.token_ids.tobytes(), tuple(batch.record_ids))


# -- order


def test_a_run_that_goes_on_sees_what_an_uninterrupted_one_sees(folder, monkeypatch):
    config, data = load(folder)
    whole = [(place, ids(batch)) for place, batch in islice(data.batches(config, Cursor()), 20)]
    assert whole[-1][0].epoch >= 2 and len({place for place, _ in whole}) == 20
    asked = []
    plain = pipeline.read_rows
    monkeypatch.setattr(
        pipeline,
        "read_rows",
        lambda where, files, numbers: asked.append(len(numbers)) or plain(where, files, numbers),
    )
    rows = sum(file.rows for file in data.rows)
    for start, (place, content) in enumerate(whole):
        asked.clear()
        found_place, found = next(data.batches(config, place))
        assert (found_place, ids(found)) == (place, content)
        # Nothing before the place is read.
        assert asked == [rows - place.batch * config.batch_size]
        rest = [(place, ids(batch)) for place, batch in islice(data.batches(config, place), 3)]
        assert rest[: len(whole) - start] == whole[start : start + 3]


def test_epochs_hold_the_same_rows_in_another_order(folder):
    config, data = load(folder)
    epochs = [list(data.epoch(config, epoch)) for epoch in (0, 1, 0)]
    rows = [[row.tobytes() for batch in batches for row in batch.token_ids] for batches in epochs]
    assert rows[0] == rows[2] != rows[1] and sorted(rows[0]) == sorted(rows[1])
    other = config.model_copy(update={"seed": 8})
    assert [row.tobytes() for batch in data.epoch(other, 0) for row in batch.token_ids] != rows[0]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_share_an_epoch_without_repeating_a_row(folder, size):
    """The order is one; MindDataset's own sharding would fill the shards up with rows that were there already."""
    config, data = load(folder)
    count = -(-sum(file.rows for file in data.rows) // (config.batch_size * size))
    shares = [
        [batch for _, batch in islice(data.batches(config, Cursor(), rank=rank, size=size), count)]
        for rank in range(size)
    ]
    wide = config.model_copy(update={"batch_size": config.batch_size * size})
    for step, batch in enumerate(data.epoch(wide, 0)):
        together = [share[step] for share in shares]
        assert np.array_equal(np.concatenate([part.token_ids for part in together]), batch.token_ids)
        assert np.array_equal(np.concatenate([part.segments for part in together]), batch.segments)
        assert [name for part in together for name in part.record_ids] == batch.record_ids
    assert step + 1 == count


def test_ids_tie_a_batch_to_its_records(folder):
    config, data = load(folder, packing=False)
    texts = {
        row["id"]: row.get("text") or row["messages"][0]["content"]
        for row in map(json.loads, (folder / "train.jsonl").read_text(encoding="utf-8").splitlines())
    }
    for batch in data.epoch(config, 0):
        rows = batch.token_ids[: len(batch.record_ids)]
        for record_id, row in zip(batch.record_ids, rows, strict=True):
            text = data.tokenizer.decode([int(token) for token in row])
            assert text.startswith(texts[record_id][:20])


# -- what rows hold


@pytest.mark.parametrize("packing", [True, False])
def test_both_languages_come_back_from_the_rows(folder, packing):
    write_jsonl(folder / "train.jsonl", BOTH_LANGUAGES)
    write_jsonl(folder / "validation.jsonl", [{"id": "v", "text": "validation"}])
    config, data = load(folder, packing=packing, sequence_length=64, pad_token_id=7)
    found = {}
    for batch in data.epoch(config, 0):
        assert (batch.token_ids[batch.segments == 0] == 7).all()
        names = iter(batch.record_ids)
        for tokens, targets, segments in zip(batch.token_ids, batch.targets, batch.segments, strict=True):
            for segment in range(1, segments.max() + 1):
                place = segments == segment
                found[next(names)] = [*tokens[place].tolist(), int(targets[place][-1])]
    assert {name: data.tokenizer.decode(tokens) for name, tokens in found.items()} == {
        row["id"]: row["text"] for row in BOTH_LANGUAGES
    }
    assert all(tokens[0] == 1 and tokens[-1] == 2 for tokens in found.values())
    counts = np.load(io.BytesIO(data.token_counts))["counts"]
    every = [token for tokens in found.values() for token in tokens]
    assert counts.tolist() == np.bincount(every, minlength=len(counts)).tolist()
    words = gzip.decompress(data.word_counts).decode().splitlines()
    assert words[0] == "1250\t2" and "欧元给玛丽，谢谢您。\t1" in words and len(words) == 10


def test_the_probe_is_real_text(folder):
    _, data = load(folder)
    assert data.probe.tokens == sum(batch.tokens for batch in data.validation)
    assert (data.probe.targets[data.probe.segments > 0] > 0).any()


def test_a_remainder_that_is_dropped_is_counted(folder):
    _, keep = load(folder, sequence_length=16)
    _, drop = load(folder, sequence_length=16, remainder="drop")
    assert keep.facts["train"]["tokens_left_out"] == 0 < drop.facts["train"]["tokens_left_out"]
    assert (
        drop.facts["train"]["tokens"] + drop.facts["train"]["tokens_left_out"]
        == keep.facts["train"]["tokens"]
    )
    assert keep.token_counts == drop.token_counts  # of the records, whatever the rows leave out


# -- facts


def test_cleaning_is_counted_shown_and_kept(folder, capsys):
    rows = [
        *BOTH_LANGUAGES,
        {"id": "again", "text": BOTH_LANGUAGES[0]["text"]},
        {"id": "bell", "text": "a bell\x07"},
    ]
    write_jsonl(folder / "train.jsonl", rows)
    write_jsonl(folder / "validation.jsonl", [BOTH_LANGUAGES[1], {"id": "new", "text": "something new"}])
    for _ in range(2):  # made, then found
        _, data = load(folder, clean="default")
        err = capsys.readouterr().err
        assert "train: 3 of 4 records kept (control characters: 1 mended; exact duplicates: 1 dropped)" in err
        assert "validation: 2 of 2 records kept" in err
        assert "warning: 1 texts of data.validation are also in data.train" in err
        assert data.facts["cleaning"]["train"]["rules"]["exact_duplicates"]["records"] == 1
        assert data.facts["validation_in_train"] == 1 and data.facts["prepared"] == data.folder.name
    json.dumps(data.facts)


def test_other_content_settings_or_code_make_other_data(folder, monkeypatch):
    names = [load(folder)[1].folder.name]
    names.append(load(folder, sequence_length=32)[1].folder.name)
    names.append(load(folder, packing=False)[1].folder.name)
    names.append(load(folder, clean={"exact_duplicates": "skip"})[1].folder.name)
    names.append(load(folder, pad_token_id=1)[1].folder.name)
    (folder / "tokenizer.json").write_bytes(load(folder)[1].tokenizer_json)
    config = load_config(folder / "config.yaml")
    given = config.tokenizer.model_copy(update={"train": None, "file": "tokenizer.json"})
    names.append(prepare(config.model_copy(update={"tokenizer": given}), folder).folder.name)
    monkeypatch.setattr(build_module, "_code_digest", lambda: "other")
    names.append(load(folder)[1].folder.name)
    monkeypatch.undo()
    monkeypatch.setenv("EVALKIT_HOME", str(folder / "home"))
    write_records(folder / "train.jsonl", 1, 60)
    names.append(load(folder)[1].folder.name)
    assert len(set(names)) == len(names)


def test_prepared_data_is_found_again_wherever_the_files_lie(folder, tmp_path_factory):
    first = load(folder)[1]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("train.jsonl", "validation.jsonl"):
        (elsewhere / name).write_bytes((folder / name).read_bytes())
    config = load_config(folder / "config.yaml")
    again = prepare(config, elsewhere)
    assert again.folder == first.folder and again.train_sha256 == first.train_sha256
    assert [ids(batch) for batch in again.epoch(config, 3)] == [
        ids(batch) for batch in first.epoch(config, 3)
    ]


# -- faults


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train": ["missing.jsonl"]}, r"missing.jsonl: no such file"),
        ({"validation": ["missing.jsonl"]}, r"missing.jsonl: no such file"),
        ({"train": ["."]}, r"is a folder"),
        ({"train": ["broken.jsonl"]}, r"broken.jsonl:1: broken JSON"),
        ({"train": ["user.jsonl"]}, r"data.train: no token to learn \(data.loss_on is assistant\)"),
        ({"validation": ["user.jsonl"]}, r"data.validation: no token to learn"),
        ({"train": ["bells.jsonl"]}, r"data.train: cleaning left no record"),
        ({"validation": ["bells.jsonl"]}, r"data.validation: cleaning left no record"),
        ({"pad_token_id": 300}, r"data.pad_token_id: 300 isn't a token; the vocabulary has 300"),
        (
            {"train": ["surrogate.jsonl"], "clean": {"invalid_unicode": "skip"}},
            r"surrogate.jsonl:1: holds a lone surrogate",
        ),
        (
            {"clean": "none"},
            r"config.yaml:\d+: data.clean: default, or a mapping of cleaning rules, is needed",
        ),
        ({"clean": {"mojibake": "guess"}}, r"config.yaml:\d+: data.clean.mojibake: .*'fix'"),
        ({"clean": {"spelling": "fix"}}, r"config.yaml:\d+: data.clean.spelling: unknown key"),
        ({"clean": {"near_duplicate_threshold": 0.2}}, r"data.clean.near_duplicate_threshold: "),
        ({"remainder": "some"}, r"data.remainder: "),
        ({"pad_token_id": -1}, r"data.pad_token_id: "),
        ({"sequence_length": 1}, r"data.sequence_length: "),
    ],
)
def test_a_fault_is_one_line_and_leaves_nothing(folder, data, message):
    (folder / "broken.jsonl").write_text("{\n")
    write_jsonl(folder / "user.jsonl", [{"id": "a", "messages": [{"role": "user", "content": "hi"}]}])
    write_jsonl(folder / "bells.jsonl", [{"id": "a", "text": "\x07"}])
    write_jsonl(folder / "surrogate.jsonl", [{"id": "a", "text": "x\ud800"}])
    with pytest.raises(InputError, match=message) as caught:
        load(folder, **data)
    assert "\n" not in str(caught.value)
    home = folder / "home" / "data"
    assert not home.exists() or all(path.suffix == ".lock" for path in home.iterdir())


# -- loading

_found: list[object] = []
_watching = False


def _audit(event, arguments):
    if _watching and event == "pickle.find_class":
        _found.append(arguments)


sys.addaudithook(_audit)


def test_nothing_is_unpickled(folder):
    global _watching
    _watching = True
    try:
        pickle.loads(pickle.dumps(Cursor(1, 2)))
        assert len(_found) == 1  # the hook sees what it is for
        for _ in range(2):
            config, data = load(folder)
            assert len(list(islice(data.batches(config, Cursor()), 20))) == 20
    finally:
        _watching = False
    assert len(_found) == 1


def test_batches_of_a_step_never_repeat_a_place(folder):
    config, data = load(folder)
    places = [place for place, _ in islice(data.batches(config, Cursor(0, 1)), 15)]
    assert all((a.epoch, a.batch) < (b.epoch, b.batch) for a, b in pairwise(places))


# -- what a run keeps


def test_the_log_names_the_records_of_each_step(tiny_run, training_folder):
    config = load_config(training_folder / "config.yaml")
    data = prepare(config, training_folder)
    log = [json.loads(line) for line in (tiny_run / "log.jsonl").read_text().splitlines()]
    expected = [batch.record_ids for _, batch in islice(data.batches(config, Cursor()), len(log))]
    assert [entry["sample_ids"] for entry in log] == expected


def test_a_checkpoint_says_what_cleaning_did(tiny_run, training_folder):
    facts = read_checkpoint(tiny_run).meta.training["data"]
    assert facts == prepare(load_config(training_folder / "config.yaml"), training_folder).facts
    assert facts["cleaning"]["train"]["records_read"] == 60
