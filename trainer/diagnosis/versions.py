"""Whether MindSpore, MindFormers, CANN and the driver were released together, by the version table."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from evalkit.yaml_source import load_yaml
from trainer.diagnosis.rulebook import RuleText, Strict, make_finding, rules_path
from trainer.findings import Evidence, Finding

COMPONENTS = ("mindformers", "mindspore", "cann", "driver")
_PAIRS = (("mindformers", "mindspore"), ("mindspore", "cann"), ("cann", "driver"))
_PARTS = re.compile(r"[._-]+")
_VERSION_LINE = re.compile(
    r"^\s*(?:[Vv]ersion|package_version|runtime_running_version)\s*=\s*\[?([^\]\s:]+)", re.MULTILINE
)
# Where CANN's and the driver's installers write their versions.
_FILES = {
    "cann": ("{toolkit}/version.cfg", "{toolkit}/version.info", "{toolkit}/compiler/version.info"),
    "driver": ("{root}/driver/version.info",),
}


class VersionRow(Strict):
    """Versions that were released together; None where the page doesn't say."""

    mindspore: str
    cann: str
    source: str
    mindformers: str | None = None
    driver: str | None = None


class VersionTable(Strict):
    """rules/versions.yaml."""

    rows: tuple[VersionRow, ...]


@lru_cache(maxsize=1)
def version_table() -> tuple[VersionRow, ...]:
    """The rows of this package, newest first."""
    return load_yaml(rules_path("versions"), VersionTable).rows


def normal_version(text: str) -> str:
    """One spelling a version: lower case, dots, no `v`, no `beta1` behind a release candidate, no local part.

    8.0.RC3.beta1 and 8.0.RC3 are one version, as are 2.6.0-rc1, 2.6.0rc1 and 2.6.0.rc1.
    """
    text = text.strip().lower().removeprefix("v").partition("+")[0]
    text = re.sub(r"(?<=\d)(rc|beta|alpha)", r".\1", text)
    parts = [part for part in _PARTS.split(text) if part]
    if len(parts) > 1 and parts[-1] == "beta1":
        parts = parts[:-1]
    return ".".join(part.lstrip("0") or "0" if part.isdecimal() else part for part in parts)


def installed_versions(environment: Mapping[str, str]) -> dict[str, str]:
    """What is installed here, without importing anything; a component that isn't found is left out."""
    found = {}
    for name in ("mindformers", "mindspore"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    root = Path(environment.get("ASCEND_HOME") or "/usr/local/Ascend")
    toolkit = Path(environment.get("ASCEND_TOOLKIT_HOME") or root / "ascend-toolkit" / "latest")
    for name, patterns in _FILES.items():
        for pattern in patterns:
            path = Path(pattern.format(toolkit=toolkit, root=root))
            if path.is_file() and (match := _VERSION_LINE.search(path.read_text(errors="replace"))):
                found[name] = match.group(1)
                break
    return found


def check_versions(versions: Mapping[str, str], texts: Mapping[str, RuleText]) -> Iterator[Finding]:
    """Findings about versions of COMPONENTS; each pair is compared by the rows that hold its first version."""
    for name in COMPONENTS:
        if name in versions and not any(_same(getattr(row, name), versions[name]) for row in version_table()):
            evidence = [Evidence("name", name), Evidence("version", versions[name])]
            yield make_finding("version_not_in_table", texts["version_not_in_table"], evidence)
    unknown = [name for name in COMPONENTS if name not in versions]
    for first, second in _PAIRS:
        if first not in versions or second not in versions:
            continue
        rows = [row for row in version_table() if _same(getattr(row, first), versions[first])]
        expected = [getattr(row, second) for row in rows if getattr(row, second) is not None]
        if expected and not any(_same(value, versions[second]) for value in expected):
            evidence = [
                Evidence("first", first),
                Evidence("first_version", versions[first]),
                Evidence("second", second),
                Evidence("expected", " or ".join(expected)),
                Evidence("found", versions[second]),
                Evidence("row", rows[0].source),
            ]
            yield make_finding(
                "versions_not_released_together", texts["versions_not_released_together"], evidence
            )
    if unknown:
        yield make_finding(
            "version_unknown", texts["version_unknown"], [Evidence("names", ", ".join(unknown))]
        )


def _same(one: str | None, other: str) -> bool:
    return one is not None and normal_version(one) == normal_version(other)
