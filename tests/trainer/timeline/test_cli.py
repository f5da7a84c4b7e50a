"""The command, as a user meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evalkit.errors import InputError
from tests.trainer.timeline.synthetic import communication, kernel, write_run, write_trace
from trainer.timeline.run import analyse, write_analysis

PROJECT = Path(__file__).resolve().parents[3]


def trainer(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "trainer", "timeline", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        check=False,
    )


def fails_in_one_line(result, message):
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and message in lines[0], result.stderr


def test_json_is_the_contract_and_an_analysis_exits_0(tmp_path):
    result = trainer(write_run(tmp_path / "run", 4, slow_rank=1), "--out", tmp_path / "out", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert {"findings", "missing_ranks", "quarantine", "skew"} <= set(found)
    assert {"rule", "severity", "evidence", "rivals", "action"} <= set(found["findings"][0])
    assert found["findings"][0]["rule"] == "load_imbalance"
    assert found["skew"]["ranks"]["1"]["uncertainty_us"] > 0
    assert (tmp_path / "out" / "heatmap.html").is_file()


def test_text_for_people(tmp_path):
    result = trainer(write_run(tmp_path / "run", 4, slow_rank=1), "--out", tmp_path / "out")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("warning: load_imbalance: Rank 1 ")
    assert lines[1].startswith("  do: ")
    assert lines[-1] == f"report: {tmp_path / 'out' / 'heatmap.html'}"


def test_ranks_from_a_map(tmp_path):
    write_trace(tmp_path / "run" / "first.json", [kernel("MatMul-op1", 0, 900)])
    write_trace(tmp_path / "run" / "b" / "second.json", [kernel("MatMul-op1", 0, 900)])
    (tmp_path / "map.yaml").write_text("first.json: 6\nb/*: 2\n")
    result = trainer(tmp_path / "run", "--out", tmp_path / "out", "--ranks", tmp_path / "map.yaml", "--json")
    assert json.loads(result.stdout)["ranks_present"] == [2, 6]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "nothing", "no such file or folder"),
        (lambda p: (p / "empty").mkdir() or p / "empty", "empty: the folder is empty"),
        (
            lambda p: (p / "a.json").write_text("not json") and p / "a.json",
            "no timed events, no known columns",
        ),
        (lambda p: (p / "a.json").write_text('{"x": 1}') and p / "a.json", "no timed events"),
        (lambda p: (p / "a.csv").write_text("a,b\n1,2\n") and p / "a.csv", "known are trace_view.json"),
        (
            lambda p: (p / "a.json.gz").write_bytes(b"\x1f\x8b\x08garbage") and p / "a.json.gz",
            "damaged",
        ),
        (
            lambda p: (p / "a.json").write_bytes(b"") or p / "a.json",
            "a.json: nothing in it can be used: an empty file",
        ),
        (lambda p: (p / "x.csv").write_bytes(b"a,b\rc,d") and p / "x.csv", "no known columns"),
        (
            lambda p: (p / "notes").write_text("nothing here") and p / "notes",
            "notes: nothing in it can be used: no timed",
        ),
    ],
)
def test_bad_input(tmp_path, make, message):
    fails_in_one_line(trainer(make(tmp_path), "--out", tmp_path / "out"), message)
    assert not (tmp_path / "out").exists()


def test_an_existing_folder_is_never_written_into(tmp_path):
    (tmp_path / "out").mkdir()
    run = write_trace(tmp_path / "trace_view.json", [kernel("MatMul-op1", 0, 900)])
    fails_in_one_line(trainer(run, "--out", tmp_path / "out"), "exists already")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("text", ["a: -1", "a: true", "a: x", "- 1", "1: 1"])
def test_a_bad_rank_map(tmp_path, text):
    run = write_trace(tmp_path / "trace_view.json", [kernel("MatMul-op1", 0, 900)])
    (tmp_path / "map.yaml").write_text(text)
    fails_in_one_line(trainer(run, "--out", tmp_path / "out", "--ranks", tmp_path / "map.yaml"), "map.yaml")


def test_neither_mindspore_nor_pandas_is_loaded(tmp_path):
    code = (
        "import sys; from pathlib import Path; from trainer.timeline.run import analyse, write_analysis\n"
        "write_analysis(analyse(Path(sys.argv[1])), Path(sys.argv[2]), 'x')\n"
        "print([m for m in ('mindspore', 'pandas', 'scipy', 'sklearn') if m in sys.modules])"
    )
    run = write_trace(tmp_path / "trace_view.json", [kernel("MatMul-op1", 0, 900)])
    result = subprocess.run(
        [sys.executable, "-c", code, str(run), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        check=True,
    )
    assert result.stdout.strip() == "[]"


def test_an_earlier_report_inside_the_folder_is_no_trace(tmp_path):
    run = write_run(tmp_path / "run", 2)
    assert trainer(run, "--out", run / "report", "--json").returncode == 0
    again = json.loads(trainer(run, "--out", tmp_path / "again", "--json").stdout)
    assert len(again["files_read"]) == 2


@pytest.mark.parametrize(
    "event",
    [
        '{"ph": "X"}',
        '{"ph": "X", "name": null, "pid": {}, "ts": 1}',
        '{"ph": "X", "name": ["a"], "pid": 1, "ts": 1, "dur": 2}',
        '{"ph": "X", "name": "a", "pid": 1, "ts": 1, "dur": 2, "cat": {"x": 1}}',
        '{"ph": "X", "name": "a", "pid": 1, "ts": 99999999999999999999999999, "dur": 2}',
        '{"ph": "X", "name": "a", "pid": 1, "ts": "1e999999999", "dur": 2}',
        '{"ph": "M", "name": "thread_name", "args": [1]}',
        '{"ph": "E", "ts": 1}',
        '{"ph": "s", "cat": "ac2g", "ts": 1}',
        "[1, 2]",
        "7",
    ],
)
def test_hostile_events_cost_only_themselves(tmp_path, event):
    path = write_trace(
        tmp_path / "trace_view.json", [kernel("MatMul-op1", 0, 900), kernel("MatMul-op2", 1000, 900)]
    )
    text = path.read_text()
    cut = text.index('{"ph": "X", "name": "MatMul-op2"')
    path.write_text(text[:cut] + event + ", " + text[cut:])
    analysis = analyse(path)
    assert analysis.fact("compute_share") == pytest.approx(1800 / 1900)
    write_analysis(analysis, tmp_path / "out", "x")


def test_an_endless_duration_does_not_stretch_the_window(tmp_path):
    events = [kernel("MatMul-op1", 0, 900), communication("hcom_allReduce__1", 900, 1e15)]
    path = write_trace(tmp_path / "trace_view.json", events)
    found = json.loads(trainer(path, "--out", tmp_path / "out", "--json").stdout)
    assert [row["kind"] for row in found["quarantine"]] == ["overflow"]
    assert found["facts"]["compute_share"]["value"] == 1.0


def test_tables_with_bad_cells(tmp_path):
    head = "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free\n"
    rows = "0,1,10,5,0,5,85\n0,2,x,0,0,0,9\n0,3,-1,0,0,0,9\n0,4,1\n0,5,nan,1,1,1,1\n"
    (tmp_path / "step_trace_time.csv").write_text(head + rows)
    found = json.loads(trainer(tmp_path, "--out", tmp_path / "out", "--json").stdout)
    assert [(row["kind"], row["count"]) for row in found["quarantine"]] == [("malformed_row", 4)]
    assert found["facts"]["free_share"]["value"] == 0.85


def test_profiles_that_dont_say_their_rank_keep_their_files_together(tmp_path):
    """Two profile folders without a rank: the tables of each belong to its trace."""
    for folder, computing in (("a_ascend_ms", 40), ("b_ascend_ms", 60)):
        inner = tmp_path / "run" / folder / "ASCEND_PROFILER_OUTPUT"
        write_trace(inner / "trace_view.json", [kernel("MatMul-op1", 0, 900)])
        head = "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free"
        (inner / "step_trace_time.csv").write_text(f"{head}\n1,{computing},0,0,0,{100 - computing}\n")
    analysis = analyse(tmp_path / "run")
    assert [(row.ranks, row.computing_ns) for row in analysis.recording.steps] == [
        ((0,), 40_000),
        ((1,), 60_000),
    ]
    assert [(rank.rank, rank.sources[0][:1]) for rank in analysis.ranks] == [(0, "a"), (1, "b")]


def test_a_rank_in_the_map_beyond_the_limit_is_an_input_error(tmp_path):
    ranks = tmp_path / "ranks.yaml"
    ranks.write_text("trace_view.json: 99999999999999999999\n")
    run = write_run(tmp_path / "run", 1)
    result = trainer(run, "--out", tmp_path / "out", "--ranks", ranks)
    fails_in_one_line(result, "ranks.yaml: trace_view.json: a rank beyond the limit; the highest is 65535")


def test_a_name_that_is_not_utf8_is_shown(tmp_path):
    run = write_run(tmp_path / "run", 1)
    (trace,) = run.rglob("*.json")
    odd = tmp_path / os.fsdecode(b"tr\xff.json")
    trace.rename(odd)
    result = trainer(odd, "--out", tmp_path / "out", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["files_read"] == ["tr\\xff.json"]
    assert "\\xff" in (tmp_path / "out" / "heatmap.html").read_text()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a.json", {"rank": 10**9, "world_size": 2}),
        ("a.json", {"rank": 0, "world_size": 10**8}),
        ("rank-999999999.json", {}),
    ],
)
def test_an_absurd_rank_is_quarantined(tmp_path, name, told):
    (trace,) = write_run(tmp_path / "run", 1).rglob("*.json")
    content = json.loads(trace.read_text())
    content = content if isinstance(content, dict) else {"traceEvents": content}
    path = tmp_path / name
    path.write_text(json.dumps({**content, "distributedInfo": told}))
    found = analyse(path).to_json()
    assert [(row["file"], row["kind"]) for row in found["quarantine"]] == [(name, "rank_beyond_limit")]
    assert any("isn't believed" in note for note in found["notes"]) == (
        told != {"rank": 0, "world_size": 10**8}
    )
    assert found["ranks_present"] == [0] and len(found["missing_ranks"]) <= 1


STEP_TIMES = (
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble"
)
MEMORY = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("kernel_details.csv", "Name,Start Time(us),Duration(us)\n", "kernel_details.csv: no rows"),
        ("step_trace_time.csv", f"{STEP_TIMES}\n0,1,nan,5,0,5,1,10,0\n", "step_trace_time.csv: line 2"),
        ("memory_record.csv", f"{MEMORY}\nAPP,1,-5,5,NPU:0\nAPP,2,5,1e999,NPU:0\n", "-5 allocated"),
    ],
)
def test_tables_without_a_usable_row_are_an_input_error(tmp_path, name, text, why):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=f"nothing in it can be used: .*{why}"):
        analyse(tmp_path)


def test_a_pipe_in_the_folder_is_quarantined(tmp_path):
    run = write_run(tmp_path / "run", 1)
    os.mkfifo(run / "pipe.json")
    (run / "gone.json").symlink_to(tmp_path / "gone")
    rows = analyse(run).to_json()["quarantine"]
    assert [row["file"] for row in rows if row["kind"] == "unreadable_file"] == ["gone.json", "pipe.json"]
