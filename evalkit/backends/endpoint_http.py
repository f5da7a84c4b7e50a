"""What every HTTP client of an OpenAI-compatible endpoint shares: the connection, the API key, errors in one line.

httpx comes with the extra `endpoint`; it is imported when an endpoint is used, not before.
"""

import email.utils
import json
import math
import os
import ssl
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from evalkit.errors import InputError

if TYPE_CHECKING:
    import httpx

    from evalkit.scenario.model_schema import EndpointRef

# The endpoint is alive, but not now.
BUSY = frozenset({408, 429, 500, 502, 503, 504, 529})
# What no other request would be answered differently to.
REFUSALS = {
    401: "it doesn't accept the API key",
    403: "it refuses access",
    404: "it doesn't know this address or model",
    405: "it doesn't take completions at this address",
}
_SHOWN = 200
# Who asks for more than a day asks for it as well, and any number of digits may stand in a header.
_LONGEST_WAIT_S = 86_400.0


class EndpointHttp:
    """One endpoint's connections, and its errors as one line without the key.

    Attributes:
        url: without a slash at its end.
        http: the client; requests go to f"{url}/..." by its methods.
    """

    def __init__(self, ref: "EndpointRef", *, connections: int) -> None:
        """Prepare; nothing is sent.

        Args:
            ref: of the endpoint; its `timeout_s` holds for connecting, sending and each wait for bytes.
            connections: at most so many at once.

        Raises:
            InputError: httpx isn't installed, or the variable of the API key isn't set.
        """
        try:
            import httpx
        except ImportError:
            raise InputError(
                f'{ref.url}: endpoints need the package httpx; pip install "evalkit[endpoint]"'
            ) from None
        self.url = ref.url
        self._key = _api_key(ref)
        headers = {"User-Agent": "evalkit"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        self.http = httpx.AsyncClient(
            headers=headers,
            timeout=ref.timeout_s,
            # The certificates of the system, not those of a package.
            verify=ssl.create_default_context(),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            # A proxy from the environment is for the world outside.
            trust_env=not _is_local(ref.url),
        )

    def error_message(self, response: "httpx.Response") -> str:
        """What an error answer says, wherever this server puts it; its content must have been read."""
        try:
            content = response.json()
        except (ValueError, RecursionError):
            return self.line(response.text)
        return self.line(error_text(content)) if isinstance(content, dict) else self.line(response.text)

    def line(self, text: str) -> str:
        """A server's text as one short line."""
        # JSON may hold half a character, which no message of ours could be sent with.
        line = " ".join(text.encode(errors="replace").decode().split())
        # Servers have been seen to repeat the key in their messages.
        line = line.replace(self._key, "***") if self._key else line
        return f"{line[:_SHOWN]}…" if len(line) > _SHOWN else line or "no further word"


def error_text(content: "dict[str, object]") -> str:
    """The message in an error object, wherever this server puts it."""
    found = content.get("error", content)
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail") or json.dumps(found, ensure_ascii=False)
    return str(found)


def retry_after_s(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, given as a number or a date; at most a day."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(0.0, seconds), _LONGEST_WAIT_S) if math.isfinite(seconds) else None


def _api_key(ref: "EndpointRef") -> str | None:
    if ref.api_key_env is None:
        return None
    key = os.environ.get(ref.api_key_env, "").strip()
    if not key:
        raise InputError(
            f"api_key_env: the environment variable {ref.api_key_env} isn't set; export the key of {ref.url} in it"
        )
    if not key.isascii() or not key.isprintable():
        raise InputError(
            f"api_key_env: the value of {ref.api_key_env} can't stand in an HTTP header; export it again"
        )
    return key


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
