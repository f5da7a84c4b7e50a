"""HTTP to an OpenAI-compatible endpoint: bounded concurrency, retries with back-off, every failure in one clear line."""

import asyncio
import json
import random
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from evalkit.backends.endpoint_http import BUSY, REFUSALS, EndpointHttp, retry_after_s
from evalkit.errors import IncompleteError

if TYPE_CHECKING:
    from evalkit.scenario.model_schema import EndpointRef

Json = dict[str, Any]
AnswerT = TypeVar("AnswerT")

_ATTEMPTS = 5
_FIRST_WAIT_S = 0.5
# A server may ask for a longer wait than this; then its text is given up, or the run stops and can be resumed.
_LONGEST_WAIT_S = 120.0


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
        self._endpoint = EndpointHttp(ref, connections=ref.concurrency)
        self._http = self._endpoint.http
        self.url, self.model = self._endpoint.url, ref.model
        self.concurrency = ref.concurrency
        self._alive_body: Json | None = None
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
            raise _RetryableError(f"{type(error).__name__}: {self._endpoint.line(str(error))}") from None
        status = response.status_code
        if status in BUSY:
            raise _RetryableError(
                f"HTTP {status}: {self._endpoint.error_message(response)}",
                retry_after_s(response.headers.get("retry-after")),
            )
        if status in REFUSALS:
            raise _EndpointError(
                f"{REFUSALS[status]} (model {self.model!r}, HTTP {status}: {self._endpoint.error_message(response)})"
            )
        if status != 200:
            raise ReplyError(f"HTTP {status}: {self._endpoint.error_message(response)}")
        try:
            # Not response.json(): what is NaN there must be read as such, to be named.
            content = json.loads(response.content)
        except ValueError:
            raise _RetryableError(f"the answer isn't JSON: {self._endpoint.line(response.text)}") from None
        if not isinstance(content, dict):
            raise ReplyError(f"the answer isn't a JSON object: {self._endpoint.line(response.text)}")
        return content

    def _run(self, work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # An interrupt here must not leave requests under way.
            future.cancel()
            raise
