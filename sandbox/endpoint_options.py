"""The options of `sandbox serve --engine openai`, and which of them go together."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from evalkit.errors import InputError
from sandbox.option_types import FiniteRange

if TYPE_CHECKING:
    from evalkit.scenario.model_schema import EndpointRef

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

OPENAI = "openai"

# What a field must look like, in place of a regular expression.
_FORMS = {
    "model": "is empty; write what the endpoint calls the model",
    "declare": "isn't a name; use up to 128 letters, digits and ._:/@+-, and begin with a letter or a digit",
    "api_key_env": "isn't the name of an environment variable; use letters, digits and _",
}


def endpoint_options(command: CommandT) -> CommandT:
    """Add the options to a command."""
    options = (
        click.option(
            "--endpoint",
            metavar="URL",
            help="With --engine openai: address of a served model, up to and with /v1.",
        ),
        click.option("--model", metavar="NAME", help="What the endpoint calls the model."),
        click.option(
            "--declare",
            metavar="ID",
            help="What the model is, as its operator says; a run measures it under this name.",
        ),
        click.option(
            "--api-key-env", metavar="VAR", help="Environment variable that holds the endpoint's API key."
        ),
        click.option(
            "--endpoint-timeout-s",
            type=FiniteRange(min=0, max=3600, min_open=True),
            default=120.0,
            show_default=True,
            help="The endpoint may take so long to connect, and before each piece of an answer.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def served_model(
    bundle: Path | None,
    engine: str | None,
    *,
    endpoint: str | None,
    model: str | None,
    declare: str | None,
    api_key_env: str | None,
    endpoint_timeout_s: float,
) -> "EndpointRef | None":
    """The endpoint that is asked for; None where a bundle is.

    Raises:
        InputError: options that don't go together, or a value that can't be used.
    """
    given = {"--endpoint": endpoint, "--model": model, "--declare": declare}
    if engine != OPENAI:
        foreign = [
            name for name, value in {**given, "--api-key-env": api_key_env}.items() if value is not None
        ]
        if foreign:
            raise InputError(f"{foreign[0]}: belongs to --engine openai; leave it out, or add that")
        if bundle is None:
            raise InputError(
                "BUNDLE: is missing; give a bundle folder, or --engine openai with an --endpoint"
            )
        return None
    if bundle is not None:
        raise InputError("BUNDLE: --engine openai serves an --endpoint, not a bundle; leave one of them out")
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise InputError(f"{missing[0]}: is missing; --engine openai needs --endpoint, --model and --declare")
    return _reference(
        {
            "endpoint": endpoint,
            "model": model,
            "declare": declare,
            "api_key_env": api_key_env,
            "timeout_s": endpoint_timeout_s,
        }
    )


def _reference(values: dict[str, Any]) -> "EndpointRef":
    from pydantic import ValidationError

    from evalkit.scenario.model_schema import EndpointRef

    try:
        return EndpointRef.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # Checks of the whole begin their message with the field; the schema's names are not the options'.
        field, _, told = first["msg"].removeprefix("Value error, ").partition(": ")
        if first["loc"]:
            field = str(first["loc"][0])
            told = _FORMS.get(field) or first["msg"]
        raise InputError(f"{_option(field)}: {told.replace('api_key_env', _option('api_key_env'))}") from None


def _option(field: str) -> str:
    return "--endpoint-timeout-s" if field == "timeout_s" else f"--{field.replace('_', '-')}"
