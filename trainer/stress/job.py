"""One job under stress: starts its workers, sees them die, starts them again."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evalkit.errors import EvalkitError
from evalkit.files import write_json_atomic
from trainer.run_log import LOG
from trainer.stress.plan import Fault
from trainer.stress.processes import WORKER, descendants, free_port, is_worker, kill, wait

_PROJECT = Path(__file__).resolve().parents[2]
_POLL_S = 0.02
_KEPT = "job.json"


@dataclass
class Attempt:
    """One start of the job. Times in seconds of the monotonic clock; None: didn't happen.

    Attributes:
        steps_before: in the log when it was started.
        resumed_after: the step whose checkpoint it went on from; 0: none.
        ready_s: when the first worker said where it goes on from.
        first_step_s: when its first step stood in the log.
        down_s: when the supervisor saw a worker gone, the job hung, or its regular end.
        down_because: in words.
        passed_over: checkpoints that it named as damaged.
        interrupted: the stress test itself was ended meanwhile; `down_s` isn't known then.
    """

    number: int
    started_s: float
    steps_before: int
    resumed_after: int | None = None
    ready_s: float | None = None
    first_step_s: float | None = None
    down_s: float | None = None
    down_because: str = ""
    passed_over: list[str] = field(default_factory=list)
    code: int | None = None
    interrupted: bool = False


class Job:
    """The workers of one training, in one folder: run/, signs/, logs-N/, attempt.json (what the workers are told), job.json.

    A folder in which a job was begun is taken up with the attempts that job.json holds.
    """

    def __init__(self, folder: Path, config_path: Path, workers: int, stall_timeout_s: float) -> None:
        self.folder, self._config, self._workers = folder, config_path.resolve(), workers
        self._stall_s = stall_timeout_s
        self.attempts: list[Attempt] = []
        self.given_up = False
        (folder / "signs").mkdir(parents=True, exist_ok=True)
        if (folder / _KEPT).is_file():
            kept = json.loads((folder / _KEPT).read_text())
            self.attempts = [Attempt(**record) for record in kept["attempts"]]
            self.given_up = bool(kept["given_up"])

    def keep(self) -> None:
        """Write down what is known, for a test that is taken up again."""
        kept = {"attempts": [asdict(attempt) for attempt in self.attempts], "given_up": self.given_up}
        write_json_atomic(self.folder / _KEPT, kept)

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: its last attempt reached the end, or it was given up."""
        return self.given_up or (bool(self.attempts) and self.attempts[-1].code == 0)

    @property
    def broken_off(self) -> bool:
        """Whether the test was ended while an attempt was under way."""
        return bool(self.attempts) and self.attempts[-1].down_s is None

    @property
    def log_path(self) -> Path:
        """The training's log."""
        return self.folder / "run" / LOG

    def struck(self, fault: Fault) -> dict[str, Any] | None:
        """What the first worker struck by a fault said; None where none was yet."""
        found = [json.loads(path.read_text()) for path in self.folder.glob(f"signs/struck-{fault.number}-*")]
        return min(found, key=lambda sign: float(sign["at_s"])) if found else None

    def attempt(self, faults: Sequence[Fault]) -> Iterator[None]:
        """Start the workers and watch them to the end; yields now and then, so that several jobs can be watched.

        The result is the last of `attempts`.
        """
        number = len(self.attempts) + 1
        record = Attempt(number, time.monotonic(), self._lines())
        self.attempts.append(record)
        self.keep()
        armed = [fault.to_json() for fault in faults if self.struck(fault) is None]
        write_json_atomic(
            self.folder / "attempt.json",
            {
                "attempt": number,
                "config": str(self._config),
                "faults": armed,
                "supervisor": os.getpid(),
            },
        )
        logs = self.folder / f"logs-{number}"
        logs.mkdir()
        with self._started(logs) as process:
            grew_s, size = time.monotonic(), self._size()
            while True:
                now, known = time.monotonic(), (record.ready_s, record.first_step_s)
                self._look(record, logs, now)
                if known != (record.ready_s, record.first_step_s):
                    self.keep()
                if self._size() != size:
                    grew_s, size = now, self._size()
                code = process.poll()
                gone = None if code is not None else self._gone(number)
                if code is not None:
                    record.code = code
                    record.down_because = "ended" if code == 0 else f"the launcher ended with code {code}"
                elif gone is not None:
                    record.down_because = f"the process of rank {gone} is gone"
                elif now - grew_s > self._stall_s:
                    record.down_because = f"no new step for {self._stall_s:g} s"
                if record.down_because:
                    record.down_s = now
                    break
                yield
                time.sleep(_POLL_S)
            if gone is not None:  # the end of a job that is done may be seen before the launcher's own
                record.code = wait(process, 15.0)
                if record.code == 0:
                    record.down_because = "ended"
        self._look(record, logs, time.monotonic())
        self.keep()

    @contextmanager
    def _started(self, logs: Path) -> Iterator[subprocess.Popen[bytes]]:
        python = Path(sys.executable)
        job = str(self.folder.resolve())
        if self._workers == 1:
            command = [str(python), str(WORKER), job]
        else:
            command = [str(python.parent / "msrun"), f"--worker_num={self._workers}"]
            command += [f"--local_worker_num={self._workers}", "--master_addr=127.0.0.1", "--join=True"]
            command += [f"--master_port={free_port()}", f"--log_dir={logs}", "--cluster_time_out=120"]
            command += [str(WORKER), job]
        paths = os.pathsep.join(part for part in (str(_PROJECT), os.environ.get("PYTHONPATH", "")) if part)
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        with (logs / ("worker_0.log" if self._workers == 1 else "msrun.log")).open("wb") as stream:
            try:
                process = subprocess.Popen(
                    command, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
                )
            except OSError as error:
                raise EvalkitError(f"{command[0]}: cannot be started ({error.strerror})") from None
            try:
                yield process
            finally:
                for pid in [process.pid, *descendants(process.pid)]:
                    kill(pid)
                for path in self.folder.glob(f"signs/worker-{len(self.attempts)}-*"):
                    pid = int(json.loads(path.read_text())["pid"])
                    if is_worker(pid, job):
                        kill(pid)
                process.wait()

    def _gone(self, attempt: int) -> int | None:
        """The rank of a worker that was there and is no more."""
        for path in sorted(self.folder.glob(f"signs/worker-{attempt}-*")):
            pid = int(json.loads(path.read_text())["pid"])
            if not is_worker(pid, str(self.folder.resolve())):
                return int(path.name.rsplit("-", 1)[1])
        return None

    def _look(self, record: Attempt, logs: Path, now: float) -> None:
        """Read what the first worker says, and whether the log has a step of this attempt."""
        if record.ready_s is None or (record.down_s is not None and not record.passed_over):
            said = _text(logs / "worker_0.log")
            for line in said.splitlines():
                if line.startswith("passed over: ") and line not in record.passed_over:
                    record.passed_over.append(line)
            if record.ready_s is None and "going on after step " in said:
                record.resumed_after = int(said.split("going on after step ", 1)[1].split()[0])
                record.ready_s = now
            elif record.ready_s is None and "starting with the first step" in said:
                record.resumed_after, record.ready_s = 0, now
        if (
            record.first_step_s is None
            and record.resumed_after is not None
            and _text(
                self.folder / "signs" / f"arrivals-{record.number}-0.jsonl"
            )  # the log has been cut back
            and self._lines() > record.resumed_after
        ):
            record.first_step_s = now

    def _lines(self) -> int:
        return _text(self.log_path).count("\n")

    def _size(self) -> int:
        try:
            return self.log_path.stat().st_size
        except OSError:
            return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
