"""The examples in the documentation are files that the commands take."""

import re
from pathlib import Path

import pytest

from evalkit.yaml_source import load_yaml
from trainer.planning.cluster import ClusterFile, ScreenFile
from trainer.planning.measurements import TableMap
from trainer.planning.settings import MemoryFile

DOCS = Path(__file__).resolve().parents[3] / "docs"


def examples(page: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "number", "model"),
    [
        ("memory.md", 0, MemoryFile),
        ("strategy.md", 0, ClusterFile),
        ("strategy.md", 1, ScreenFile),
        ("strategy.md", 2, TableMap),
    ],
)
def test_an_example_is_valid(tmp_path, page, number, model):
    (tmp_path / "example.yaml").write_text(examples(page)[number])
    load_yaml(tmp_path / "example.yaml", model)
