"""MindRecord files: what is written comes back, in any order, or there is one clear line."""

import errno
import os

import numpy as np
import pytest

from evalkit.errors import InputError
from tests.trainer.data.rows import random_rows
from trainer.data import mindrecord
from trainer.data.mindrecord import RowFile, read_rows, write_rows


def same(one, two):
    return (
        all(
            np.array_equal(getattr(one, name), getattr(two, name))
            and getattr(one, name).dtype == getattr(two, name).dtype
            for name in ("token_ids", "targets", "loss_mask", "lengths")
        )
        and one.record_ids == two.record_ids
    )


@pytest.mark.parametrize("packing", [True, False])
def test_rows_come_back_in_any_order_from_several_files(tmp_path, monkeypatch, packing):
    monkeypatch.setattr(mindrecord, "_SHARD_BYTES", 20 * (9 * 32 + 256))
    monkeypatch.setattr(mindrecord, "_PART_BYTES", 5 * (9 * 32 + 256))
    monkeypatch.setattr(mindrecord, "_WINDOW_ROWS", 7)
    rows = random_rows(packing=packing)
    folder = tmp_path / "数据 with a space"
    folder.mkdir()
    files = write_rows(folder, "train", rows, 32)
    assert len(files) > 1 and sum(file.rows for file in files) == len(rows)
    assert {path.name for path in folder.iterdir()} == {
        name for file in files for name in (file.name, f"{file.name}.db")
    }
    order = np.random.default_rng(0).permutation(len(rows))
    order = np.r_[order, order[:3]]
    found = list(read_rows(folder, files, order))
    assert len(found) == len(order)
    assert all(same(row, rows[number]) for row, number in zip(found, order, strict=True))


def test_the_files_may_move_as_a_folder_and_stay_small(tmp_path):
    (tmp_path / "a").mkdir()
    rows = random_rows()
    files = write_rows(tmp_path / "a", "rows", rows, 32)
    assert (tmp_path / "a" / files[0].name).stat().st_size < 4 << 20
    (tmp_path / "a").rename(tmp_path / "b")
    assert same(next(read_rows(tmp_path / "b", files, np.array([7]))), rows[7])


def test_no_rows_make_no_files(tmp_path):
    assert write_rows(tmp_path, "rows", [], 32) == [] and list(tmp_path.iterdir()) == []
    assert list(read_rows(tmp_path, [], np.arange(0))) == []


def test_a_row_that_mindrecord_leaves_out_is_noticed(tmp_path, monkeypatch):
    """Rows of another dtype are dropped with a warning only (MindSpore 2.10)."""
    plain = mindrecord._fields

    def wrong(number, row):
        fields = plain(number, row)
        return {**fields, "targets": row.targets.astype(np.int64)} if number == 3 else fields

    monkeypatch.setattr(mindrecord, "_fields", wrong)
    with pytest.raises(InputError):
        write_rows(tmp_path, "rows", random_rows(), 32)


def test_a_row_that_changed_on_its_way_is_noticed(tmp_path, monkeypatch):
    plain = mindrecord._read

    def flipped(*args):
        for fields in plain(*args):
            yield {**fields, "token_ids": fields["token_ids"] ^ (fields["row"] == 5)}

    monkeypatch.setattr(mindrecord, "_read", flipped)
    with pytest.raises(InputError, match="came back from MindRecord unchanged"):
        write_rows(tmp_path, "rows", random_rows(), 32)


def test_ids_that_fill_a_page_are_refused_in_one_line(tmp_path):
    rows = random_rows(4)
    rows[0].record_ids[0] = "x" * (2 << 20)
    with pytest.raises(
        InputError, match=r"rows-00000.mindrecord: cannot be written .*[Pp]age size.*shorten"
    ) as caught:
        write_rows(tmp_path, "rows", rows, 32)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        list(read_rows(tmp_path, [RowFile("rows-00000.mindrecord", 2)], np.arange(2)))


def test_a_write_that_would_fail_is_an_error_before_mindrecord_crashes_the_process(tmp_path, monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        write_rows(tmp_path, "rows", random_rows(), 32)
    assert not list(tmp_path.glob("*.space"))
