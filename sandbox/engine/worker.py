"""The engine process: loads the model, then runs the batcher over the turns in flight.

It is started by the supervisor as `python -m sandbox.engine.worker` and speaks frames over stdin and stdout. The main
thread alone touches the model; a second thread reads the pipe, so that a cancel is seen at the next token, and ends
the process when the server is gone, even if it was killed.
"""

import os
import queue
import sys
import threading
import time
from pathlib import Path

from evalkit.bundle import load_bundle
from evalkit.errors import EvalkitError, ExitCode
from sandbox.engine.batcher import Batcher, BatchLimits
from sandbox.engine.kv_cache import KvRows, divide_budget, room_for
from sandbox.engine.pacing import PacedOutbox
from sandbox.engine.pipe import ChildPipe, Message
from sandbox.engine.prefix_cache import PrefixCache
from sandbox.engine.step_model import choose_engine, kv_shape, open_step_model

# The reader gets the interpreter from the loop after this; Python's own 5 ms would be several steps of a small model.
_SWITCH_INTERVAL_S = 0.0005


def main() -> None:
    """Load what the first message names, say so, and serve."""
    pipe = ChildPipe.take_over_stdio()
    start = pipe.read()
    if start is None:
        return
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    loaded = threading.Event()
    threading.Thread(target=_read_until_the_server_is_gone, args=(pipe, inbox, loaded), daemon=True).start()
    # This thread and all that the model makes: whoever has little to do on this machine goes first. The reader keeps its
    # priority, since it says when a turn arrived.
    os.nice(start["nice"])
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        batcher, engine = build(start, pipe)
    except EvalkitError as error:
        pipe.write({"event": "failed", "message": str(error), "exit_code": int(error.exit_code)})
        raise SystemExit(int(ExitCode.INPUT)) from None
    except MemoryError:
        told = f"no memory for the model and {start['kv_bytes'] >> 20} MiB of cache; give a smaller --kv-mib"
        pipe.write({"event": "failed", "message": told, "exit_code": int(ExitCode.INPUT)})
        raise SystemExit(int(ExitCode.INPUT)) from None
    loaded.set()
    pipe.write({"event": "ready", "engine": engine})
    batcher.run(inbox)


def build(start: Message, pipe: ChildPipe) -> tuple[Batcher, str]:
    """The loop that the first message asks for, with everything compiled, and the name of its engine.

    Raises:
        InputError: the bundle can't be used, or the budget is too small.
    """
    bundle = load_bundle(Path(start["bundle"]))
    engine = choose_engine(bundle, start["engine"])
    limits = BatchLimits(start["max_rows"], start["max_waiting"], bundle.model.max_length)
    shape = kv_shape(bundle)
    plan = divide_budget(shape, start["kv_bytes"], limits.max_length, limits.max_rows)
    model = open_step_model(bundle, engine, limits.max_rows)
    rows = KvRows(shape, plan.row_tokens)
    rows.lay_out(room_for(1, limits.max_length), [])
    model.warm_up(rows)
    cache = PrefixCache(shape, plan.blocks)
    outbox = PacedOutbox(pipe, start["stream_interval_ms"])
    return Batcher(model, bundle.tokenizer, cache, rows, outbox, limits), engine


def _read_until_the_server_is_gone(
    pipe: ChildPipe, inbox: "queue.SimpleQueue[Message]", loaded: threading.Event
) -> None:
    loaded.wait()  # a thread that reads stdin can't be left behind when loading fails and the process ends
    while (message := pipe.read()) is not None:
        # Stamped here: while it lies in the inbox it waits for a step of the model, and that is time in the engine.
        inbox.put({**message, "arrived_ns": time.perf_counter_ns()})
    # The main thread may be deep inside the model: no clean-up could wait for it, and there is nothing to save.
    os._exit(0)


if __name__ == "__main__":
    main()
