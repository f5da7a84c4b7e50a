"""Folders with links, loops and places that can't be listed."""

import os

from trainer.files_below import files_below


def below(folder):
    files, unread = files_below(folder)
    return [path.relative_to(folder).as_posix() for path in files], [
        (path.relative_to(folder).as_posix(), why) for path, why in unread
    ]


def test_folders_behind_links_are_read_under_the_links_name(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep" / "a.json").touch()
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rank_3").symlink_to(elsewhere)
    assert below(folder) == (["rank_3/deep/a.json"], [])
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    assert below(linked) == (["rank_3/deep/a.json"], [])


def test_a_folder_is_read_once_and_under_its_own_name(tmp_path):
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "rank_0" / "a.json").touch()
    (tmp_path / "a_link").symlink_to(tmp_path / "rank_0")
    (tmp_path / "rank_0" / "itself").symlink_to(tmp_path / "rank_0")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert below(tmp_path) == (["rank_0/a.json"], [])


def test_two_links_that_lead_round_and_round_end(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (one / "to_two").symlink_to(two)
    (two / "to_one").symlink_to(one)
    (two / "b.csv").touch()
    assert below(one) == (["to_two/b.csv"], [])


def test_a_link_to_a_folder_around_is_told(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "other.json").touch()
    (folder / "up").symlink_to(tmp_path)
    assert below(folder) == ([], [("up", "a link to a folder around it, not followed")])


def test_a_folder_that_cannot_be_listed_is_told(tmp_path, monkeypatch):
    """Root may list everything: the system's answer is played."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "open.json").touch()
    listed = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert below(tmp_path) == (["open.json"], [("closed", "cannot be listed (Permission denied)")])
