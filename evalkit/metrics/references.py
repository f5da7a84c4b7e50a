"""Code of the user: found by entry point, or as `module:attr` in the scenario's own folder of modules.

Its identity is the SHA-256 of its source file; it is part of the signature of every number that it makes.
"""

import importlib
import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from evalkit.canonical import sha256_file
from evalkit.errors import InputError

ENTRY_POINTS = "evalkit.metrics"

# Names the folder of modules for commands that have no scenario at hand (verify, judge, rescore): a run folder alone
# must never be able to say which code is executed.
MODULES_VARIABLE = "EVALKIT_MODULES"

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class MissingModuleError(InputError):
    """Code of the user isn't where it is looked for: nothing can be said about what it made."""


@dataclass(frozen=True)
class LoadedReference:
    """What a reference stands for.

    Attributes:
        text: the reference as it was written.
        target: the object.
        sha256: of the source file of its module.
    """

    text: str
    target: Any
    sha256: str


_trusted: ContextVar[Path | None] = ContextVar("trusted modules", default=None)


@contextmanager
def trusted_modules(folder: Path | None) -> Iterator[None]:
    """Within the block the user's own modules come from `folder`: the one that the scenario names."""
    token = _trusted.set(folder)
    try:
        yield
    finally:
        _trusted.reset(token)


def modules_folder() -> Path | None:
    """Where the modules of a run are: in the folder that its scenario named, else in that of `EVALKIT_MODULES`."""
    name = os.environ.get(MODULES_VARIABLE)
    return _trusted.get() or (Path(name) if name else None)


def load_reference(
    text: str, modules: Path | None, sha256: str | None = None, group: str = ENTRY_POINTS
) -> LoadedReference:
    """Load what `text` names.

    Args:
        text: `module:attr`, or the name of an entry point of the group.
        modules: folder in which modules are looked for first; None: only installed ones are known.
        sha256: which source it must have; None: any.
        group: of entry points.

    Raises:
        InputError: not found, its code can't be loaded, or it isn't the expected source.
    """
    if ":" in text and _PATH.fullmatch(text) is None:
        raise InputError(f"{text!r}: module:attr is needed, e.g. my_metrics:short_words")
    module_name, attributes = text.split(":") if ":" in text else _entry_point(text, group)
    file = None if modules is None else modules.joinpath(*module_name.split(".")).with_suffix(".py")
    if file is not None and ":" in text and file.is_file():
        _check_source(text, file, sha256)
        module = _from_file(text, module_name, file)
    else:
        module = _installed(text, module_name, sha256)
    target: Any = module
    for attribute in attributes.split("."):
        if not hasattr(target, attribute):
            raise InputError(f"{text}: {module_name} has no {attribute!r}; correct the name")
        target = getattr(target, attribute)
    return LoadedReference(text, target, sha256_file(Path(str(module.__file__))))


def _entry_point(name: str, group: str) -> tuple[str, str]:
    found: list[EntryPoint] = [point for point in entry_points(group=group) if point.name == name]
    if len(found) != 1:
        known = sorted({point.name for point in entry_points(group=group)})
        problem = "no installed package has" if not found else f"{len(found)} installed packages have"
        raise InputError(
            f"{name!r}: {problem} an entry point of this name in the group {group} "
            f"(there are: {', '.join(known) or 'none'}); install it, or write module:attr"
        )
    return found[0].module, found[0].attr


def _installed(text: str, module_name: str, sha256: str | None) -> ModuleType:
    try:
        spec = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise MissingModuleError(
            f"{text}: no module {module_name!r}; name its folder with the key `modules` of the scenario, or, for a "
            f"finished run, with the environment variable {MODULES_VARIABLE}"
        )
    _check_source(text, Path(spec.origin), sha256)
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything
        raise _broken(text, error) from None


def _from_file(text: str, module_name: str, file: Path) -> ModuleType:
    # A name of its own: neither does it shadow an installed module nor do two scenarios' modules mix.
    spec = importlib.util.spec_from_file_location(f"_evalkit_user_{module_name.replace('.', '_')}", file)
    if spec is None or spec.loader is None:
        raise InputError(f"{text}: {file} can't be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's module may raise anything
        raise _broken(text, error, file) from None
    return module


def _check_source(text: str, file: Path, sha256: str | None) -> None:
    found = sha256_file(file)
    if sha256 is not None and found != sha256:
        raise InputError(
            f"{text}: {file} isn't the code of the run (SHA-256 {found[:8]}, {sha256[:8]} is needed); "
            "take the version that the run used"
        )


def _broken(text: str, error: Exception, file: Path | None = None) -> InputError:
    trace = error.__traceback__
    line = None
    while trace is not None:
        if file is not None and trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        line = error.lineno
    where = text if file is None else f"{file}:{line or 1}"
    return InputError(
        f"{where}: {text} can't be loaded ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
    )
