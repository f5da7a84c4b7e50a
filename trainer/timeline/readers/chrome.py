"""Chrome-trace JSON: CANN's and MindSpore's trace_view / msprof, MindInsight's timeline_display, Kineto."""

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from trainer.timeline.clock import BadTime, to_ns
from trainer.timeline.events import Columns, concatenate
from trainer.timeline.json_stream import Event, EventFile
from trainer.timeline.model import Recording, TraceFile

NO_RANK = 0xFFFFFFFF  # HCCL writes the largest uint32 where a task has no peer
_LAUNCH_FLOWS = ("async_npu", "mindspore_to_npu", "ac2g", "async_gpu", "HostToDevice")
_DEVICE_CATEGORIES = frozenset({"kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})


def read_chrome(path: Path, name: str, rank: int | None, recording: Recording) -> TraceFile:
    """Read one file into columns; bad events go to the quarantine table."""
    file = TraceFile(path, name, rank)
    reader = _Reader(file, recording)
    source = EventFile(path, lambda kind, example, count: reader.reject(kind, example, count))
    for batch in source.batches():
        reader.take(batch)
    file.header = source.header
    reader.finish()
    return file


class _Reader:
    def __init__(self, file: TraceFile, recording: Recording) -> None:
        self._file = file
        self._recording = recording
        self._columns: dict[tuple[Any, Any], Columns] = {}
        self._processes: dict[Any, str] = {}
        self._threads: dict[tuple[Any, Any], str] = {}
        self._open: dict[tuple[Any, Any], list[tuple[str, int, Any, Event]]] = {}
        # Launch flows by category: ids and times of their two ends.
        self._flows: dict[str, tuple[array[int], array[int], array[int], array[int]]] = {}
        self._correlated = (array("q"), array("q"), array("q"), array("q"))

    def reject(self, kind: str, example: str = "", count: int = 1) -> None:
        self._recording.quarantine.add(self._file.name, kind, example, count)

    def take(self, batch: list[Event]) -> None:
        """Sort events by their phase."""
        complete, columns = self._complete, self._columns
        for event in batch:
            try:
                phase = event.get("ph")
                if phase == "X":
                    key = (event.get("pid"), event.get("tid"))
                    track = columns.get(key)
                    if track is None:
                        track = columns[key] = Columns()
                    complete(event, track, to_ns(event["ts"]), to_ns(event.get("dur", 0)))
                elif phase == "M":
                    self._metadata(event)
                elif phase == "s" or phase == "f" or phase == "t":
                    self._flow(event, phase)
                elif phase == "B":
                    self._begin(event)
                elif phase == "E":
                    self._end(event)
            except BadTime as error:
                self.reject(error.kind, f"{event.get('name')}: {error}")
            except (AttributeError, KeyError, TypeError):
                self.reject("malformed_event", repr(event))

    def _complete(self, event: Event, track: Columns, start: int, duration: int) -> None:
        if duration <= 0:
            name = f"{event.get('name')} at {event['ts']}"
            if duration < 0:
                self.reject("negative_duration", name)
                return
            self.reject("zero_duration", name)
        args = event.get("args")
        kind = event.get("cat")
        if args.__class__ is dict:
            if not kind:
                kind = self._kind(args)
            if "correlation" in args:
                self._correlate(event, args, str(kind), start)
            elif "transport type" in args:
                self._link(args, duration)
        recording = self._recording
        track.add(start, duration, recording.names.id_of(event["name"]), recording.kinds.id_of(kind or ""))

    @staticmethod
    def _kind(args: dict[str, Any]) -> str:
        task = args.get("Task Type") or args.get("task type")
        if task:
            return str(task)
        of_type = args.get("type")
        if of_type and ("fullname" in args or "op_full_name" in args):
            return str(of_type) if of_type == "cuLaunchKernel" else f"operator type {of_type}"
        return str(of_type or "")

    def _metadata(self, event: Event) -> None:
        args = event.get("args") or {}
        if event["name"] == "process_name":
            self._processes[event.get("pid")] = str(args.get("name", ""))
        elif event["name"] == "thread_name":
            self._threads[event.get("pid"), event.get("tid")] = str(args.get("name", ""))

    def _flow(self, event: Event, phase: str) -> None:
        category = event.get("cat")
        if category not in _LAUNCH_FLOWS or phase == "t":
            return
        ends = self._flows.setdefault(category, (array("q"), array("q"), array("q"), array("q")))
        first = 0 if phase == "s" else 2
        ends[first].append(_flow_id(event.get("id")))
        ends[first + 1].append(to_ns(event["ts"]))

    def _correlate(self, event: Event, args: dict[str, Any], category: str, start: int) -> None:
        number = args["correlation"]
        if number.__class__ is not int or not 0 < number < 1 << 62:
            return
        launches, launch_ns, devices, device_ns = self._correlated
        if category in _DEVICE_CATEGORIES:
            devices.append(number)
            device_ns.append(start)
        elif "Launch" in event["name"]:
            launches.append(number)
            launch_ns.append(start)

    def _link(self, args: dict[str, Any], duration: int) -> None:
        source, target = args.get("src rank"), args.get("dst rank")
        if source.__class__ is not int or target.__class__ is not int:
            return
        if NO_RANK in (source, target) or source == target:
            return
        self._file.peers.update((source, target))
        size = args.get("size(Byte)", 0)
        if size.__class__ is int and size > 0 and duration > 0:
            inline = str(args.get("task type", "")).lower().startswith("reduce")
            transport = str(args.get("link type") or args.get("transport type"))
            self._file.links.append((source, target, size, duration, inline, transport))

    def _begin(self, event: Event) -> None:
        key = (event.get("pid"), event.get("tid"))
        self._open.setdefault(key, []).append(
            (str(event.get("name", "")), to_ns(event["ts"]), event.get("id"), event)
        )

    def _end(self, event: Event) -> None:
        """Close the most recent B; one of the same name and id where the E tells them."""
        key = (event.get("pid"), event.get("tid"))
        end_ns = to_ns(event["ts"])
        waiting = self._open.get(key, [])
        name, number = event.get("name"), event.get("id")
        at = len(waiting) - 1
        if name is not None:
            while at >= 0 and (waiting[at][0] != name or waiting[at][2] != number):
                at -= 1
        if at < 0:
            self.reject("unmatched_end", str(name))
            return
        if at != len(waiting) - 1:
            self.reject("crossed_end", str(name))
        _, start, _, begin = waiting.pop(at)
        if "args" not in begin and "args" in event:
            begin["args"] = event["args"]
        self._complete(begin, self._columns.setdefault(key, Columns()), start, end_ns - start)

    def finish(self) -> None:
        """Give the tracks their names and pair launches with what they launched."""
        for waiting in self._open.values():
            for name, _, _, _ in waiting:
                self.reject("unmatched_begin", name)
        parts: dict[tuple[str, str], list[Columns]] = {}
        for key, columns in self._columns.items():
            if len(columns):
                parts.setdefault(self._row(key), []).append(columns)
        file = self._file
        for row, found in parts.items():
            slices = [columns.freeze() for columns in found]
            file.tracks[row] = concatenate(slices)
        file.events = sum(len(slices) for slices in file.tracks.values())
        self._pair_launches()

    def _row(self, key: tuple[Any, Any]) -> tuple[str, str]:
        process = self._processes.get(key[0]) or f"pid {key[0]}"
        thread = self._threads.get(key) or f"tid {key[1]}"
        if process not in ("Ascend Hardware", "HCCL", "Communication", "Overlap Analysis", "CANN", "CPU OP"):
            # Two processes may share a name ("python"): their rows stay apart.
            process = process if process.startswith("pid ") else f"{process} {key[0]}"
        return process, thread

    def _pair_launches(self) -> None:
        ends = next((self._flows[name] for name in _LAUNCH_FLOWS if name in self._flows), None)
        launches, launch_ns, devices, device_ns = (np.frombuffer(ends, np.int64) for ends in self._correlated)
        if not len(launches) and ends is not None:
            launches, launch_ns, devices, device_ns = (np.frombuffer(end, np.int64) for end in ends)
        if not len(launches):
            return
        order = np.argsort(devices, kind="stable")
        at = np.searchsorted(devices[order], launches)
        found = at < len(devices)
        found[found] = devices[order][at[found]] == launches[found]
        file = self._file
        file.launch_ns = launch_ns[found]
        file.launched_ns = device_ns[order][at[found]]
        file.lost_launch_ns = launch_ns[~found]
        early = int((file.launched_ns < file.launch_ns).sum())
        self.reject("device_before_launch", f"{early} of {len(file.launch_ns)} launches", early)
        self.reject(
            "launch_without_kernel",
            f"{len(file.lost_launch_ns)} of {len(launches)} launches",
            len(file.lost_launch_ns),
        )


def _flow_id(value: object) -> int:
    if value.__class__ is int and abs(value) < 1 << 62:
        return value
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 19 else hash(text) >> 2
