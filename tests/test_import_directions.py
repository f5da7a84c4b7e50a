"""Imports flow one way: sandbox → evalkit ← trainer; and light commands stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
FORBIDDEN = {"evalkit": {"sandbox", "trainer"}, "sandbox": {"trainer"}, "trainer": {"sandbox"}}


def imported_packages(file: Path) -> set[str]:
    """Top-level names that a file imports anywhere, lazily or not."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_package_imports_only_what_the_design_allows(package: str) -> None:
    files = sorted((PROJECT / package).rglob("*.py"))
    assert files
    for file in files:
        foreign = imported_packages(file) & FORBIDDEN[package]
        assert not foreign, f"{file.relative_to(PROJECT)} imports {sorted(foreign)}"


def test_relative_imports_are_not_used() -> None:
    for package in FORBIDDEN:
        for file in (PROJECT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                assert not (isinstance(node, ast.ImportFrom) and node.level), file


HEAVY = ("mindspore", "pandas", "sklearn", "matplotlib", "grpc")


@pytest.mark.parametrize(
    "command", ["--help", "run --help", "judge --help", "report --help", "verify --help"]
)
def test_help_loads_nothing_heavy(command: str) -> None:
    program = (
        "import sys\n"
        "from evalkit.cli import cli\n"
        f"cli.main({command.split()!r}, standalone_mode=False)\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "HEAVY []" in done.stderr
