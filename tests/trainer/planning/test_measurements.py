"""Tables of runs and run folders, and the rows in them that can't be right."""

import json
from itertools import pairwise

import pytest

from evalkit.errors import InputError
from tests.trainer.planning.public_runs import read_sweep, sweep_map
from trainer.planning.doubts import find_doubts
from trainer.planning.measurements import TableMap, read_map, read_measurements

DATES = ("02-21", "02-23", "02-24", "02-25", "02-26", "02-27", "02-28")
HEADER = "hidden_size,layers,heads,intermediate_size,vocab_size,sequence_length,data,rows_per_step,seconds_per_step"
ROW = "64,4,4,128,512,128,2,8,1.5"


def table(folder, text, name="runs.csv"):
    (folder / name).write_text(text)
    return folder / name


def test_csv_and_json_lines_under_our_names(tmp_path):
    (row,) = read_measurements(table(tmp_path, f"{HEADER}\n{ROW}\n"))
    fields = dict(zip(HEADER.split(","), map(float, ROW.split(",")), strict=True))
    fields = {name: int(value) if value.is_integer() else value for name, value in fields.items()}
    (same,) = read_measurements(table(tmp_path, json.dumps(fields) + "\n", "runs.jsonl"))
    assert (row.shape, row.training, row.seconds) == (same.shape, same.training, same.seconds)
    assert row.seconds == 1.5 and row.training.strategy.micro_batches == 4
    assert row.memory_gib is None and not row.out_of_memory


def test_a_flag_is_true_false_1_or_0(tmp_path):
    text = "".join(f"{ROW},{flag}\n" for flag in ("1", "0", "True", "false", "1.0", ""))
    rows = read_measurements(table(tmp_path, f"{HEADER},out_of_memory\n{text}"))
    assert [row.out_of_memory for row in rows] == [True, False, True, False, True, False]


def test_a_map_reads_the_table_of_others(sweep):
    assert len(sweep) == 102
    assert sum(row.out_of_memory for row in sweep) == 4
    assert sum(row.memory_gib is not None for row in sweep) == 69
    assert {row.training.gradient_type for row in sweep} == {"fp16", "fp32", "fp32_accumulation"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{HEADER}\n{ROW.replace('1.5', '-1')}\n", "runs.csv:2: seconds_per_step: a positive number"),
        (f"{HEADER}\n{ROW.replace('1.5', 'soon')}\n", "runs.csv:2: seconds_per_step"),
        (f"{HEADER}\n{ROW.replace('64,', 'wide,', 1)}\n", "runs.csv:2: hidden_size"),
        (f"{HEADER}\n", "no measurements"),
        ("layers\n3\n", "runs.csv:2"),
        (f"{HEADER.replace(',rows_per_step', ',rows')}\n{ROW}\n", "rows_per_step is missing"),
        (f"{HEADER}\n{ROW.replace('2,8,', '0,8,')}\n", "runs.csv:2: data: Input should be greater than 0"),
        (f"{HEADER}\n{ROW.replace('2,8,', 'two,8,')}\n", "runs.csv:2: data: Input should be a valid integer"),
        (f"{HEADER}\n{ROW.replace('2,8,', '2,inf,')}\n", "runs.csv:2: rows_per_step: a positive number"),
        (f"{HEADER}\n{ROW.replace('2,8,', '2,many,')}\n", "runs.csv:2: rows_per_step: a positive number"),
        (f"{HEADER}\n{ROW},7\n", "runs.csv:2: another number of cells than the header has"),
        (f"{HEADER}\n{ROW.rpartition(',')[0]}\n", "runs.csv:2: another number of cells than the header has"),
        (f"{HEADER},layers\n{ROW},7\n", "runs.csv:1: the column 'layers' is given twice"),
        (
            f"{HEADER},out_of_memory\n{ROW},no\n",
            "runs.csv:2: out_of_memory: true or false is needed, found 'no'",
        ),
        (f"{HEADER},tied_head\n{ROW},2\n", "runs.csv:2: tied_head: true or false is needed"),
        (
            f"{HEADER}\n{ROW.replace('64,4', '64,true', 1)}\n",
            "runs.csv:2: layers: Input should be a valid integer",
        ),
    ],
)
def test_a_wrong_table_names_its_line(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        read_measurements(table(tmp_path, text))


def test_a_map_that_names_a_column_which_isnt_there_is_refused(tmp_path):
    """Every row would silently take the default in its place."""
    path = table(tmp_path, f"{HEADER}\n{ROW}\n")
    for part in ({"columns": {"layers": "nlayer"}}, {"where": {"date": "02-25"}}):
        with pytest.raises(
            InputError, match=r"runs\.csv: there is no column '(nlayer|date)'; there are data, heads, "
        ):
            read_measurements(path, TableMap.model_validate(part), {"layers": 8})


def test_a_wrong_map_names_its_column(tmp_path):
    (tmp_path / "map.yaml").write_text("columns: {hidden: nhidden}\n")
    with pytest.raises(InputError, match="hidden: not a column"):
        read_map(tmp_path / "map.yaml")


def test_broken_json_lines_are_named(tmp_path):
    with pytest.raises(InputError, match=r"runs\.jsonl:1: not a JSON object"):
        read_measurements(table(tmp_path, "[1]\n", "runs.jsonl"))


def test_a_run_of_our_own_is_a_measurement(tiny_run):
    row = read_measurements(tiny_run)[0]
    log = [json.loads(line) for line in (tiny_run / "log.jsonl").read_text().splitlines()]
    times = [record["elapsed_ns"] / 1e9 for record in log]
    assert min(b - a for a, b in pairwise(times)) <= row.seconds < times[0]
    assert row.training.sequence_length == 48 and row.shape.hidden_size == 16


def test_the_real_sweep_contradicts_itself_only_where_its_note_says(traces):
    """Of the rows since 21 February one, whose dp · tp · pp isn't its number of devices."""
    (row,) = read_sweep(traces, line="648")
    dated = [item for date in DATES for item in read_sweep(traces, date=date)]
    (doubt,) = find_doubts(dated, limit_gib=80)
    assert doubt.startswith(row.where) and "check both, the cut" in doubt


def test_a_rate_that_does_not_fit_the_operations_is_doubtful(traces):
    row = read_sweep(traces, date="02-25", line="776")[0]
    wrong = type(row)(**{**row.__dict__, "tflops": row.tflops * 1.04})
    assert find_doubts([row]) == []
    assert "+4.0 %" in find_doubts([wrong])[0]


def test_the_map_of_the_sweep_is_a_valid_file():
    assert TableMap.model_validate(sweep_map().model_dump()) == sweep_map()


def test_an_error_of_the_whole_row_has_no_empty_field_name(tmp_path):
    with pytest.raises(InputError, match=r"runs.csv:2: hidden_size 64 isn't a multiple of heads 3"):
        read_measurements(table(tmp_path, f"{HEADER}\n{ROW.replace('64,4,4', '64,4,3')}\n"))


def test_a_bottomless_line_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"runs.jsonl:1: not a JSON object"):
        read_measurements(table(tmp_path, "[" * 100_000, "runs.jsonl"))
