"""Runs that are broken off and taken up again: N + N steps are 2N steps, bit for bit."""

import itertools
import json
import resource
import shutil

import pytest
from mindspore.train import Callback

from evalkit.canonical import sha256_bytes
from evalkit.errors import InputError
from tests.trainer.small_training import read_lines
from trainer.checkpoint import STATE, read_checkpoint, saved_steps, step_folder
from trainer.config import load_config
from trainer.data.pipeline import prepare
from trainer.loop import train
from trainer.resume import find_checkpoint
from trainer.run_log import LOG, JsonLines, check_complete

# What a log line says about the training, not about the clock.
CLOCKS = ("elapsed_ns", "tokens_per_s")


class StopAfter(Callback):
    """Asks for the end after a step."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self.step:
            run_context.request_stop()


def without_clocks(path):
    return [{key: value for key, value in entry.items() if key not in CLOCKS} for entry in read_lines(path)]


def assert_same_end(run, other, step=12):
    """Weights, optimizer, loss scale, counters, log and evaluations of two runs are equal to the bit."""
    for name in ("weights.safetensors", STATE):
        files = [step_folder(out, step) / name for out in (run, other)]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    ends = [read_checkpoint(step_folder(out, step)).meta.resume for out in (run, other)]
    assert ends[0].model_copy(update={"elapsed_ns": 0}) == ends[1].model_copy(update={"elapsed_ns": 0})
    for name in ("log.jsonl", "evaluations.jsonl"):
        assert without_clocks(run / name) == without_clocks(other / name)
    assert (run / "best.json").read_bytes() == (other / "best.json").read_bytes()


@pytest.fixture(scope="module")
def config(training_folder):
    return load_config(training_folder / "config.yaml")


@pytest.fixture(scope="module")
def half_run(config, training_folder, tmp_path_factory):
    """A run that a callback ended after 6 of 12 steps."""
    out = tmp_path_factory.mktemp("half") / "run"
    summary = train(config, training_folder, out, callbacks=[StopAfter(6)])
    assert summary.steps == 6 and summary.checkpoint == step_folder(out, 6)
    return out


@pytest.fixture(scope="module")
def run_identity(config, training_folder):
    """What a checkpoint is compared with."""
    data = prepare(config, training_folder)
    return config, data, sha256_bytes(data.tokenizer_json)


def test_resumed_equals_uninterrupted(config, training_folder, tiny_run, half_run, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(half_run, out)
    summary = train(config, training_folder, out, resume=True)
    assert summary.steps == 12 and "going on after step 6" in capsys.readouterr().err
    assert_same_end(out, tiny_run)
    log = read_lines(out / "log.jsonl")
    assert [entry["step"] for entry in log] == list(range(1, 13))
    assert all(a["elapsed_ns"] < b["elapsed_ns"] for a, b in itertools.pairwise(log))


def test_a_folder_without_a_checkpoint_starts_at_the_first_step(
    config, training_folder, tiny_run, tmp_path, capsys
):
    out = tmp_path / "run"
    out.mkdir()
    (out / "log.jsonl").write_text('{"step": 1}\n{"st')
    train(config, training_folder, out, resume=True)
    assert "no checkpoint yet, starting with the first step" in capsys.readouterr().err
    assert_same_end(out, tiny_run)


def test_a_finished_run_has_nothing_to_do(config, training_folder, tiny_run, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(tiny_run, out)
    summary = train(config, training_folder, out, resume=True)
    assert summary.steps == 12 and summary.final_loss == read_lines(tiny_run / "log.jsonl")[-1]["loss"]
    assert_same_end(out, tiny_run)


def test_a_torn_checkpoint_is_passed_over(config, training_folder, tiny_run, half_run, tmp_path, capsys):
    """Steps that were done after the last whole checkpoint, and what a kill left half-written, leave no trace."""
    out = tmp_path / "run"
    shutil.copytree(half_run, out)
    file = step_folder(out, 6) / STATE
    file.write_bytes(file.read_bytes()[:-7])
    with (out / "log.jsonl").open("ab") as log:
        log.write(b'{"step": 7, "loss": 99.0}\n{"step": 8, "lo')
    (out / "checkpoints" / ".step-8.half").mkdir()
    (out / "checkpoints" / ".removed-step-2").mkdir()
    # The damaged one doesn't count among the last that are kept.
    few = changed(config, checkpoints=changed(config.checkpoints, every=1, keep_last=1, keep_best=None))
    train(few, training_folder, out, resume=True, callbacks=[StopAfter(5)])
    said = capsys.readouterr().err
    assert "passed over" in said and f"step-6/{STATE}" in said and "going on after step 4" in said
    assert saved_steps(out) == [5]
    train(config, training_folder, out, resume=True)
    assert_same_end(out, tiny_run)
    assert not list((out / "checkpoints").glob(".*"))


@pytest.mark.parametrize("name", ["weights.safetensors", STATE, "checkpoint.json", "tokenizer.json"])
def test_any_damage_is_noticed(run_identity, half_run, tmp_path, name):
    shutil.copytree(half_run, tmp_path / "run")
    file = step_folder(tmp_path / "run", 6) / name
    file.write_bytes(file.read_bytes()[:-7])
    found = find_checkpoint(tmp_path / "run", *run_identity)
    assert found.path.name == "step-4" and len(found.passed_over) == 1 and name in found.passed_over[0]


def test_no_whole_checkpoint_is_an_error(run_identity, half_run, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(half_run, out)
    for step in saved_steps(out):
        (step_folder(out, step) / STATE).unlink()
    with pytest.raises(InputError, match=rf"step-6/{STATE}: missing.*no checkpoint of this run is whole"):
        find_checkpoint(out, *run_identity)


def changed(config, **fields):
    return config.model_copy(update=fields)


def test_a_foreign_checkpoint_is_an_error_that_names_what_differs(
    config, training_folder, half_run, tmp_path
):
    cases = [
        ({"seed": 8}, r"step-6: was trained with seed 7, the configuration says 8"),
        (
            {"model": changed(config.model, heads=2)},
            r"was trained with model.heads 4, the configuration says 2",
        ),
        (
            {"optimizer": changed(config.optimizer, learning_rate=0.02)},
            r"was trained with optimizer.learning_rate 0.01, the configuration says 0.02",
        ),
    ]
    for fields, message in cases:
        with pytest.raises(InputError, match=message):
            train(changed(config, **fields), training_folder, half_run, resume=True)
    other = tmp_path / "other"
    shutil.copytree(training_folder, other, ignore=shutil.ignore_patterns("run", "bundle"))
    lines = (other / "train.jsonl").read_text().replace("Bonn", "Genf")
    (other / "train.jsonl").write_text(lines)
    with pytest.raises(InputError, match=r"was trained on other data.*train into another folder"):
        train(config, other, half_run, resume=True)
    # Nothing was touched by the refusals.
    assert [entry["step"] for entry in read_lines(half_run / "log.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_a_foreign_checkpoint_names_an_earlier_one_that_fits(run_identity, half_run, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(half_run, out)
    meta = step_folder(out, 6) / "checkpoint.json"
    content = json.loads(meta.read_text())
    content["config"]["seed"] = 99
    meta.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"step-6: was trained with seed 99.*step-4 is the newest that fits"):
        find_checkpoint(out, *run_identity)


def test_what_doesnt_touch_the_weights_may_change(run_identity, half_run):
    config, *others = run_identity
    free = changed(config, checkpoints=None, evaluation=None, callbacks=("a:b",), out="elsewhere")
    assert find_checkpoint(half_run, free, *others).path.name == "step-6"


@pytest.mark.slow
def test_dropout_and_accumulation_resume_to_the_bit(config, training_folder, tmp_path):
    """Masks and a step over several batches, across the end of an epoch."""
    dropout = changed(
        config, model=changed(config.model, dropout=0.3), accumulation=3, checkpoints=None, steps=10
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(dropout, training_folder, whole)
    train(dropout, training_folder, parts, callbacks=[StopAfter(4)])
    train(dropout, training_folder, parts, resume=True)
    assert read_lines(whole / "log.jsonl")[-1]["epoch"] > 0
    for name in ("weights.safetensors", STATE):
        assert (step_folder(whole, 10) / name).read_bytes() == (step_folder(parts, 10) / name).read_bytes()
    assert without_clocks(whole / "log.jsonl") == without_clocks(parts / "log.jsonl")


def test_a_log_with_a_hole_is_refused(config, training_folder, half_run, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(half_run, out)
    lines = (out / "log.jsonl").read_text().splitlines(keepends=True)
    (out / "log.jsonl").write_text("".join(lines[:2] + lines[3:]))
    with pytest.raises(InputError, match=r"log.jsonl:3: step 3 is missing or out of place"):
        train(config, training_folder, out, resume=True)


def test_two_runs_in_one_folder_are_refused(config, training_folder, tmp_path):
    class Intruder(Callback):
        def on_train_begin(self, run_context):
            with pytest.raises(InputError, match="another run works in this folder"):
                train(config, training_folder, tmp_path / "run", resume=True)
            run_context.request_stop()

    train(config, training_folder, tmp_path / "run", callbacks=[Intruder(), StopAfter(1)])


def test_a_full_disk_is_one_line_and_spares_earlier_checkpoints(config, training_folder, half_run, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(half_run, out)
    before = {step: sorted(p.name for p in step_folder(out, step).iterdir()) for step in saved_steps(out)}
    prepare(config, training_folder)  # the data lies there already: it's the checkpoint that finds no room
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(InputError, match=r"cannot be written \(File too large\); make room") as caught:
            train(config, training_folder, out, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert {s: sorted(p.name for p in step_folder(out, s).iterdir()) for s in saved_steps(out)} == before
    assert not list((out / "checkpoints").glob(".*")) and read_checkpoint(out).path.name == "step-6"


def test_json_lines_keep_and_check(tmp_path):
    path = tmp_path / LOG
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    lines = JsonLines(path, 2)
    lines.write({"step": 3, "loss": float("nan")})
    lines.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1},
        {"step": 2},
        {"step": 3, "loss": None},
    ]
    check_complete(path, 3)
    path.write_bytes(b"not a record\n")
    JsonLines(path, 0).close()  # a run from the first step keeps nothing and looks at nothing
    assert path.read_bytes() == b""
    path.write_bytes(b'{"step": 1}\nnot a record\n{"step": 2}\n')
    with pytest.raises(InputError, match=r"log.jsonl:2: not a record"):
        JsonLines(path, 2)
    JsonLines(path, 1).close()
    assert path.read_bytes() == b'{"step": 1}\n'
