"""Training logs of five programs, wrapped, prefixed, damaged."""

import math

import pytest

from evalkit.errors import InputError
from tests.trainer.diagnosis.spike_logs import jsonl, megatron, mindformers
from trainer.diagnosis.plog import read_log
from trainer.diagnosis.spikes import diagnose_spikes, read_training_log
from trainer.diagnosis.spikes.records import stretches


def read(tmp_path, text):
    path = tmp_path / "run.log"
    path.write_text(text)
    return read_training_log(path)


def test_mindformers(tmp_path):
    log = read_training_log(mindformers(tmp_path / "a.log", [7.25, 7.1]))
    first = log.steps[0]
    assert (log.format, first.step, first.loss, first.loss_scale) == ("mindformers", 1, 7.25, 65536.0)
    assert (first.grad_norm, first.learning_rate, first.seconds) == (0.61234, 1.5e-5, 0.512)
    assert (first.skipped, first.epoch, str(first.time)) == (False, 1, "2026-05-01 10:00:10")


@pytest.mark.parametrize(
    "line",
    [
        "{ Epoch:[  2/  3], step:[   10/  100], loss: 3.5, per_step_time: 9ms, lr: 1e-05, overflow cond: True, loss_scale: 4096.0, global_norm: [1.5]",
        "{ Epoch:[  2/  3, step:[   10/  100, loss:[3.500/3.600], per_step_time: 9ms, lr: [1e-05], overflow cond: [True], loss_scale: [4096], global_norm: 1.5",
        "Epoch: 2/3 step: 10/100 loss: 3.5e0, lr: 1e-5, overflow cond: True, loss_scale: 4096.0, global_norm: [1.5",
    ],
)
def test_mindformers_with_damaged_brackets(tmp_path, line):
    (step,) = read(tmp_path, line).steps
    assert (step.step, step.loss, step.loss_scale, step.grad_norm, step.skipped) == (
        110,
        3.5,
        4096.0,
        1.5,
        True,
    )


def test_megatron(tmp_path):
    log = read(tmp_path, f"[default7]:{megatron(17, 2.5)}\ntime (ms)\n")
    (step,) = log.steps
    assert (log.format, step.step, step.loss, step.grad_norm) == ("megatron", 17, 2.5, 0.31)
    assert (step.samples, step.batch_size, step.seconds, step.skipped) == (17 * 64, 64, 0.5125, False)


@pytest.mark.parametrize("width", [60, 97, 158, 170])
def test_a_line_that_a_terminal_wrapped_is_put_together(tmp_path, width):
    whole = [megatron(step, 2.0 + step / 100) for step in (1, 2, 3)]
    wrapped = "\n".join(line[at : at + width] for line in whole for at in range(0, len(line), width))
    log = read(tmp_path, wrapped)
    assert [(step.step, step.loss, step.loss_scale) for step in log.steps] == [
        (step.step, step.loss, step.loss_scale) for step in read(tmp_path, "\n".join(whole)).steps
    ]


def test_a_cut_line_keeps_what_is_whole(tmp_path):
    log = read(tmp_path, megatron(1, 2.5)[:-60] + "\n" + megatron(2, 2.6) + "\n")
    assert log.cut_lines == 1 and [step.loss for step in log.steps] == [2.5, 2.6]
    cut_in_the_loss = megatron(3, 2.75).partition("2.75")[0] + "2.7"
    log = read(tmp_path, cut_in_the_loss + "\n" + megatron(4, 2.6) + "\n")
    assert [step.loss for step in log.steps] == [None, 2.6]  # not 2.7


def test_values_that_stand_for_not_measured(tmp_path):
    log = read(
        tmp_path, megatron(1, 2.5, scale=-1.0, norm=0.0) + "\n" + megatron(2, None, scale=4294967296.0) + "\n"
    )
    first, second = log.steps
    assert (first.loss_scale, first.grad_norm, log.no_scales, log.zero_norms) == (None, None, 1, 1)
    assert (second.loss, second.loss_scale, second.skipped) == (None, 4294967296.0, True)


def test_an_overflow_line_marks_the_step_behind_it(tmp_path):
    text = "\n".join(
        [
            megatron(1, 2.5),
            "[2022-01-19 13:09:13,305] [INFO] [stage.py:1:step] [deepscale] OVERFLOW! Rank 0 Skipping step.",
            megatron(2, 4.5),
        ]
    )
    log = read(tmp_path, text)
    assert [step.skipped for step in log.steps] == [False, True] and log.overflow_lines == 1
    assert str(log.steps[1].time) == "2022-01-19 13:09:13.305000"


def test_llm_c_and_nanogpt(tmp_path):
    log = read(tmp_path, "s:0 tel:11.0\ns:0 trl:11.0091 lr:0.000001 norm:15.37\ns:1 trl:10.9598\n")
    assert (log.format, [step.loss for step in log.steps]) == ("llm.c", [11.0091, 10.9598])
    assert (log.steps[0].learning_rate, log.steps[0].grad_norm) == (1e-6, 15.37)
    log = read(tmp_path, "step:0/9 val_loss:9.0 x\nstep:1/9 train_loss:8.5 train_time:3ms step_avg:nanms\n")
    assert (log.format, [step.loss for step in log.steps]) == ("nanogpt", [8.5])
    log = read(
        tmp_path, "step 0: train loss 9.1, val loss 9.2\niter 100: loss 4.1234, time 250.12ms, mfu 12.30%\n"
    )
    assert [(s.step, s.loss, s.seconds) for s in log.steps] == [(100, 4.1234, 0.25012)]


def test_our_own_log(tmp_path):
    log = read_training_log(jsonl(tmp_path / "log.jsonl", 3))
    step = log.steps[2]
    assert (log.format, step.step, step.sample_ids, step.skipped, step.seconds) == (
        "jsonl",
        3,
        "s3",
        False,
        1e-3,
    )


def test_our_own_log_writes_null_for_nan_but_a_skipped_step_has_no_loss(tmp_path):
    log = read(
        tmp_path,
        '{"step": 1, "loss": null, "overflow": false}\n{"step": 2, "loss": null, "overflow": true}\n',
    )
    assert math.isnan(log.steps[0].loss) and log.steps[1].loss is None


def test_a_loss_that_is_no_number_stays_one(tmp_path):
    log = read(tmp_path, "s:1 trl:nan\ns:2 trl:inf\n")
    assert math.isnan(log.steps[0].loss) and math.isinf(log.steps[1].loss)


def test_a_loss_as_a_text_is_read_and_one_of_another_kind_is_no_step(tmp_path):
    wrong = ["true", '"abc"', "[3.0]", "{}"]
    lines = [f'{{"step": {step}, "loss": {loss}}}' for step, loss in enumerate(['"3.5"', '"nan"', *wrong])]
    log = read(tmp_path, "\n".join(lines) + "\n")
    assert [step.step for step in log.steps] == [0, 1]
    assert log.steps[0].loss == 3.5 and math.isnan(log.steps[1].loss)


@pytest.mark.parametrize("text", ["", "hello\n", '{"a": 1}\n', '{"step": true, "loss": 1}\n', "{" * 3000])
def test_a_log_without_steps_is_an_input_error(tmp_path, text):
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


def test_attempts_gaps_and_resumes(tmp_path):
    steps = [1, 2, 3, 4, 5, 4, 5, 6, 2000, 2001]
    log = read(tmp_path, "\n".join(f"s:{step} trl:2.0" for step in steps))
    found = stretches(log.steps)
    assert [(s.attempt, s.steps[0].step, s.resumed, len(s.before)) for s in found] == [
        (1, 1, False, 0),
        (2, 4, True, 3),
        (2, 2000, False, 0),
    ]


def test_going_back_without_the_step_before_is_no_known_resume(tmp_path):
    log = read(tmp_path, "\n".join(f"s:{step} trl:2.0" for step in [9000, 9001, 5000, 5001]))
    assert [stretch.resumed for stretch in stretches(log.steps)] == [False, False]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x1f\x8b\x08\x00abc", "compressed data, unpack it"),
        ("iter 1: loss 2.5, time 3ms\n".encode("utf-16"), "UTF-16 text, convert it to UTF-8"),
        (b"iter 1\0: loss", "a binary file, or text in UTF-16"),
        (b" \n", "empty"),
        (b"nothing about steps\n", "no training step was recognised"),
    ],
)
def test_why_a_log_cannot_be_used(tmp_path, content, why):
    path = tmp_path / "run.log"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"run.log: {why}"):
        read_training_log(path)
    if "step" not in why and why != "empty":  # joined as another log they would look like logs without errors
        with pytest.raises(InputError, match=f"run.log: {why}"):
            read_log(path)


def test_paths_may_be_texts(tmp_path):
    path = mindformers(tmp_path / "a.log", [7.25, 7.1])
    assert diagnose_spikes([str(path)], [str(path)]) == diagnose_spikes([path], [path])
    with pytest.raises(TypeError, match="lists of paths"):
        diagnose_spikes(str(path))


def test_a_byte_order_mark_hides_no_first_line(tmp_path):
    log = jsonl(tmp_path / "log.jsonl", steps=5)
    log.write_bytes(b"\xef\xbb\xbf" + log.read_bytes())
    assert [step.step for step in read_training_log(log).steps] == [1, 2, 3, 4, 5]
    line = "[ERROR] HCCL(123,python):2026-05-01-10:00:00.000.001 [a.cc:1][123]timeout\n"
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "plog.log").write_bytes(mark + line.encode())
        (first,) = read_log(tmp_path / "plog.log").lines
        assert first.shown.startswith("[ERROR] HCCL")
