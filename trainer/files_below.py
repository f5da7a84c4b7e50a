"""The files below a folder, links to folders followed; what could not be listed is told, not left out."""

import os
from pathlib import Path


def files_below(folder: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Every file below a folder, sorted, and the folders that could not be listed, with the reason.

    Folders are read under their own names first, then those that only a link leads to, each once. A link to a folder
    that lies around `folder` isn't followed: it would bring in everything.
    """
    files: list[Path] = []
    unread: list[tuple[Path, str]] = []
    around = folder.resolve()
    seen: set[Path] = set()
    waiting = [folder]
    while waiting:
        links: list[Path] = []
        for start in waiting:
            target = start.resolve()
            if target in seen:
                continue
            if start != folder and target in around.parents:
                unread.append((start, "a link to a folder around it, not followed"))
                continue
            _walk(start, seen, files, links, unread)
        waiting = sorted(links)
    return sorted(files), unread


def _walk(
    start: Path, seen: set[Path], files: list[Path], links: list[Path], unread: list[tuple[Path, str]]
) -> None:
    def failed(error: OSError) -> None:
        unread.append((Path(error.filename), f"cannot be listed ({error.strerror})"))

    for place, folders, names in os.walk(start, onerror=failed):
        here = Path(place)
        seen.add(here.resolve())
        files.extend(here / name for name in names)
        links.extend(here / name for name in folders if (here / name).is_symlink())
