"""Whose file is it: from the user's map, the file's content, the folder's own info files, or the name."""

import json
import re
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from evalkit.yaml_source import YamlSource
from trainer.ranks import MOST_RANKS
from trainer.regular_file import require_regular

_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_ ]?(\d+)", re.IGNORECASE)
_MINDINSIGHT = re.compile(
    r"^(?:ascend_|gpu_|cpu_)?(?:timeline_display|timeline_summary|output_timeline_data|step_trace_raw|hccl_raw|"
    r"flops_summary|aicore_intermediate|framework_raw|minddata_pipeline_raw|pipeline_profiling|device_queue_profiling|"
    r"dynamic_shape_info|cluster_analyse.*|cpu_ms_memory_record|profiler_info)_(\d+)(?:_detail_time|_detail|_type)?\."
)
_IN_FOLDER = re.compile(r"^(?:device|rank)[-_]?(\d+)$", re.IGNORECASE)
_INFO_NAMES = ("info.json*", "profiler_info_*.json")
_LEVELS_UP = 3
_INNER_FOLDERS = ("ASCEND_PROFILER_OUTPUT", "FRAMEWORK")

RankMap = dict[str, int]


def read_rank_map(path: Path | str) -> RankMap:
    """A YAML file of `pattern: rank`; patterns are file names or paths relative to the folder, with wildcards.

    Raises:
        InputError: no mapping, or a rank that isn't a whole number from 0 below MOST_RANKS.
    """
    path = Path(path)
    require_regular(path)
    source = YamlSource(path)
    for pattern, rank in source.value.items():
        if not isinstance(pattern, str):
            raise InputError(f"{path}: {pattern!r} is no file pattern; write it in quotes")
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
            raise InputError(f"{path}: {pattern}: {rank!r} is no rank; a whole number from 0 is needed")
        if rank >= MOST_RANKS:
            raise InputError(f"{path}: {pattern}: a rank beyond the limit; the highest is {MOST_RANKS - 1}")
    return dict(source.value)


def rank_from_map(name: str, ranks: RankMap) -> int | None:
    """The rank that the user's map gives a file: the first pattern that fits decides."""
    pattern = _pattern_of(name, ranks)
    return ranks[pattern] if pattern is not None else None


def unused_patterns(names: Iterable[str], ranks: RankMap) -> list[str]:
    """The patterns of a map that decide for no file: a slip of the pen, most likely."""
    used = {_pattern_of(name, ranks) for name in names} if ranks else set()
    return [pattern for pattern in ranks if pattern not in used]


def _pattern_of(name: str, ranks: RankMap) -> str | None:
    fitting = (p for p in ranks if fnmatch(name, p) or fnmatch(Path(name).name, p))
    return next(fitting, None)


def rank_from_header(header: dict[str, Any]) -> int | None:
    """Kineto's distributedInfo.rank; a negative one is none."""
    told = header.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None


def rank_from_place(path: Path, root: Path) -> int | None:
    """From the file's name, the profiler's info file beside or above it, or a folder named device_N / rank_N."""
    for pattern in (_MINDINSIGHT, _IN_NAME):
        found = pattern.search(path.name)
        if found:
            return int(found.group(1))
    folder = path.parent
    for _ in range(_LEVELS_UP):
        rank = _rank_of_info(folder)
        if rank is not None:
            return rank
        found = _IN_FOLDER.match(folder.name)
        if found:
            return int(found.group(1))
        if folder == root or folder.parent == folder:
            break
        folder = folder.parent
    return None


class FolderRanks:
    """Numbers for folders whose files don't say whose they are: the files of one profile are one rank's."""

    def __init__(self, known: set[int]) -> None:
        """`known`: ranks that other files' names or places tell, which aren't given again."""
        self._known = known
        self._numbers: dict[Path, int] = {}

    def of(self, path: Path) -> int:
        """The number of a file's profile, a new one for a new profile."""
        key = profile_folder(path)
        if key not in self._numbers:
            taken = self._known | set(self._numbers.values())
            self._numbers[key] = next(number for number in range(len(taken) + 1) if number not in taken)
        return self._numbers[key]

    def given(self, path: Path) -> int | None:
        """The number of a file's profile, if another file of it needed one."""
        return self._numbers.get(profile_folder(path))


def profile_folder(path: Path) -> Path:
    """The folder of the profile that a file belongs to."""
    return path.parent.parent if path.parent.name in _INNER_FOLDERS else path.parent


def _rank_of_info(folder: Path) -> int | None:
    for pattern in _INFO_NAMES:
        found = sorted(path for path in folder.glob(pattern) if not path.name.endswith(".done"))
        if len(found) != 1:
            continue  # several: they don't say which is meant
        try:
            content = json.loads(found[0].read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        rank = content.get("rank_id") if isinstance(content, dict) else None
        if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
            return rank
    return None
