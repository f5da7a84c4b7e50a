"""HTTP to an OpenAI-compatible endpoint: bounded concurrency, retries with back-off, every failure in one clear line."""

import asyncio
import email.utils
import json
import os
import random
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from evalkit.errors import IncompleteError, InputError

if TYPE_CHECKING:
    import httpx

    from evalkit.scenario.model_schema import EndpointRef

Json = dict[str, Any]
AnswerT = TypeVar("AnswerT")

_ATTEMPTS = 5
_FIRST_WAIT_S = 0.5
# A server may ask for a longer wait than this; then its text is given up, or the run stops and can be resumed.
_LONGEST_WAIT_S = 120.0
_BUSY = frozenset({408, 429, 500, 502, 503, 504, 529})
# What no other text would be answered differently to.
_REFUSALS = {
    401: "it doesn't accept the API key",
    403: "it refuses access",
    404: "it doesn't know this address or model",
    405: "it doesn't take completions at this address",
}
_SHOWN = 200


class ReplyError(Exception):
    """An answer for one prompt that can't be used; the message is one line."""


@dataclass(frozen=True)
class Failed:
    """One prompt that got no usable answer although the endpoint is alive; `reason` is one line."""

    reason: str


class _EndpointError(Exception):
    """The endpoint as a whole doesn't answer."""


class _RetryableError(Exception):
    """One attempt failed in a way that the next may not; `wait_s` is what the server asked for."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class EndpointClient:
    """Asks one served model; its connections and tasks live in a thread of their own, so that any thread may call."""

    def __init__(self, ref: "EndpointRef") -> None:
        """Prepare; nothing is sent.

        Raises:
            InputError: httpx isn't installed, or the variable of the API key isn't set.
        """
        try:
            import httpx
        except ImportError:
            raise InputError(
                f'{ref.url}: endpoints need the package httpx; pip install "evalkit[endpoint]"'
            ) from None
        self.url, self.model = ref.url, ref.model
        self._key = _api_key(ref)
        self.concurrency = ref.concurrency
        self._alive_body: Json | None = None
        headers = {"User-Agent": "evalkit"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=ref.timeout_s,
            # The certificates of the system, not those of a package.
            verify=ssl.create_default_context(),
            limits=httpx.Limits(max_connections=ref.concurrency, max_keepalive_connections=ref.concurrency),
            # A proxy from the environment is for the world outside.
            trust_env=not _is_local(ref.url),
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="evalkit endpoint", daemon=True).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    def get_json(self, path: str) -> Json | None:
        """GET, once; None where the endpoint has nothing there."""

        async def get() -> Json | None:
            try:
                response = await self._http.get(f"{self.url}/{path}")
                content = response.json() if response.status_code == 200 else None
            except Exception:  # whatever is wrong will show in the completions too, with its reason
                return None
            return content if isinstance(content, dict) else None

        return self._run(get())

    def probe(self, body: Json, read: Callable[[Json], AnswerT]) -> AnswerT:
        """Ask for one completion and remember the body as the sign of life.

        Args:
            body: the request without `model`.
            read: makes the answer of the reply.

        Raises:
            ReplyError: the endpoint answers, but not with what `read` needs.
            IncompleteError: the endpoint doesn't answer.
        """
        try:
            answer = self._run(self._ask(body, read))
        except _EndpointError as error:
            raise IncompleteError(f"{self.url}: {error}") from None
        except _RetryableError as error:
            raise IncompleteError(
                f"{self.url}: no usable answer after {_ATTEMPTS} attempts: {error}"
            ) from None
        self._alive_body = body
        return answer

    def ask_all(
        self, bodies: Sequence[Json], reads: Sequence[Callable[[Json], AnswerT]]
    ) -> list[AnswerT | Failed]:
        """Ask for completions, several at a time; answers in the order of the requests.

        Args:
            bodies: requests without `model`.
            reads: make the answer of each reply, or raise ReplyError.

        Raises:
            IncompleteError: the endpoint doesn't answer any more.
        """

        async def ask_all() -> list[AnswerT | Failed]:
            slots = asyncio.Semaphore(self.concurrency)

            async def ask(body: Json, read: Callable[[Json], AnswerT]) -> AnswerT | Failed:
                async with slots:
                    try:
                        return await self._ask(body, read)
                    except ReplyError as error:
                        return Failed(str(error))
                    except _RetryableError as error:
                        await self._check_alive(str(error))
                        return Failed(f"no usable answer after {_ATTEMPTS} attempts: {error}")

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(body, read)) for body, read in zip(bodies, reads, strict=True)]
            return [task.result() for task in tasks]

        try:
            return self._run(ask_all())
        except ExceptionGroup as group:
            ours, _ = group.split(_EndpointError)
            if ours is None:
                raise
            raise IncompleteError(f"{self.url}: {ours.exceptions[0]}") from None

    async def _ask(self, body: Json, read: Callable[[Json], AnswerT]) -> AnswerT:
        for attempt in range(_ATTEMPTS):
            try:
                return read(await self._post(body))
            except _RetryableError as error:
                # Doubled each time and jittered, so that many clients don't come back at once.
                wait_s = _FIRST_WAIT_S * 2**attempt * random.uniform(0.75, 1.25)
                wait_s = max(wait_s, error.wait_s or 0.0)
                if attempt == _ATTEMPTS - 1 or wait_s > _LONGEST_WAIT_S:
                    raise
            await asyncio.sleep(wait_s)
        raise AssertionError("unreachable")

    async def _check_alive(self, reason: str) -> None:
        """Tell a prompt that fails from an endpoint that does: the latter doesn't answer the probe either."""
        if self._alive_body is None:
            return
        try:
            await self._post(self._alive_body)
        except (_RetryableError, ReplyError):
            raise _EndpointError(f"{reason}; it doesn't answer a short prompt either") from None

    async def _post(self, body: Json) -> Json:
        import httpx

        try:
            response = await self._http.post(f"{self.url}/completions", json={"model": self.model, **body})
        except httpx.TimeoutException as error:
            raise _RetryableError(f"no answer within timeout_s ({type(error).__name__})") from None
        except httpx.HTTPError as error:
            raise _RetryableError(f"{type(error).__name__}: {self._line(str(error))}") from None
        status = response.status_code
        if status in _BUSY:
            raise _RetryableError(
                f"HTTP {status}: {self._message(response)}",
                _retry_after_s(response.headers.get("retry-after")),
            )
        if status in _REFUSALS:
            raise _EndpointError(
                f"{_REFUSALS[status]} (model {self.model!r}, HTTP {status}: {self._message(response)})"
            )
        if status != 200:
            raise ReplyError(f"HTTP {status}: {self._message(response)}")
        try:
            # Not response.json(): what is NaN there must be read as such, to be named.
            content = json.loads(response.content)
        except ValueError:
            raise _RetryableError(f"the answer isn't JSON: {self._line(response.text)}") from None
        if not isinstance(content, dict):
            raise ReplyError(f"the answer isn't a JSON object: {self._line(response.text)}")
        return content

    def _message(self, response: "httpx.Response") -> str:
        """What an error answer says, wherever this server puts it."""
        try:
            content = response.json()
        except ValueError:
            return self._line(response.text)
        if isinstance(content, dict):
            found = content.get("error", content)
            if isinstance(found, dict):
                found = found.get("message") or found.get("detail") or found
            return self._line(str(found))
        return self._line(response.text)

    def _line(self, text: str) -> str:
        line = " ".join(text.split())
        # Servers have been seen to repeat the key in their messages.
        line = line.replace(self._key, "***") if self._key else line
        return f"{line[:_SHOWN]}…" if len(line) > _SHOWN else line or "no further word"

    def _run(self, work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # An interrupt here must not leave requests under way.
            future.cancel()
            raise


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


def _retry_after_s(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, given as a number or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
