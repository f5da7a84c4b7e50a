"""Folders as people have them: linked, half readable, with a map of ranks that doesn't fit, with nothing in them."""

import pytest

from evalkit.errors import InputError
from tests.trainer.timeline.synthetic import kernel, write_run, write_trace
from trainer.timeline.run import analyse


def test_ranks_behind_links_are_read(tmp_path):
    run = write_run(tmp_path / "run", 4, slow_rank=1)
    linked = tmp_path / "linked"
    linked.mkdir()
    for rank in range(4):
        (linked / f"rank_{rank}").symlink_to(run / f"rank_{rank}")
    there, here = analyse(run), analyse(linked)
    assert [rank.rank for rank in here.ranks] == [0, 1, 2, 3]
    assert here.findings == there.findings


def test_a_link_that_was_not_followed_is_in_the_report(tmp_path):
    run = write_run(tmp_path / "run", 1)
    (run / "up").symlink_to(tmp_path)
    rows = analyse(run).to_json()["quarantine"]
    assert [(row["file"], row["kind"]) for row in rows] == [("up", "unreadable_folder")]


def test_a_pattern_of_the_rank_map_that_fits_nothing_is_told(tmp_path):
    write_trace(tmp_path / "a.json", [kernel("MatMul-op1", 0, 900)])
    analysis = analyse(tmp_path, {"a.json": 4, "*.json": 5, "rank0/*": 6})
    assert [rank.rank for rank in analysis.ranks] == [4]
    told = [note for note in analysis.notes() if "rank map" in note]
    assert ["'*.json'" in told[0], "'rank0/*'" in told[1], len(told)] == [True, True, 2]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([], "the folder is empty"),
        (
            ["a.log", "b.log", "notes"],
            r"it holds no .json, .csv, .txt or .gz file \(2 .log, 1 without a suffix\)",
        ),
        (["msprof_1.db"], ".*; databases aren't read, export the profile as text"),
        (["a.json", "b.json", "c.json", "d.json"], "a.json: an empty file; .*; and 1 more"),
    ],
)
def test_why_a_folder_is_of_no_use(tmp_path, names, why):
    folder = tmp_path / "profile"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    with pytest.raises(InputError, match=f"profile: (nothing in it can be used: )?{why}"):
        analyse(folder)


def test_the_quarantine_in_lines_for_a_terminal(tmp_path):
    run = write_run(tmp_path / "run", 1)
    for number in range(9):
        (run / f"{number}.json").touch()
    lines = analyse(run).recording.quarantine.lines()
    assert lines[0] == "0.json: not_a_timeline, 1 dropped: an empty file"
    assert (len(lines), lines[-1]) == (9, "1 more rows stand in the report")


def test_paths_may_be_texts(tmp_path):
    run = write_run(tmp_path / "run", 1)
    assert analyse(str(run)).to_json() == analyse(run).to_json()


def test_a_step_table_with_absurd_ticks(tmp_path):
    """Found by changing bytes of real files at random: 64 bits of nanoseconds didn't hold them."""
    head = "step_num,start_point,end_point,total,fp_point,bp_point,iteration_interval,fp_and_bp,tail"
    rows = "1,99999999999999999999999,999999999999999999999999,1,1,1,5,1,1\n2,100,300,200,1,1,5,1,1\n"
    (tmp_path / "step_trace_raw_0_detail_time.csv").write_text(f"{head}\n{rows}")
    analysis = analyse(tmp_path)
    assert [mark.step for mark in analysis.ranks[0].steps] == [2]
    assert analysis.recording.quarantine.count("malformed_row") == 1
