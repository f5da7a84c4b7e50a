"""Check a rank table: which template it follows, and what HCCL or MindSpore would refuse."""

import ipaddress
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from trainer.diagnosis.rank_table_fields import Problems
from trainer.diagnosis.rank_table_reader import (
    RankTable,
    Server,
    Template,
    load_table,
    read_tables,
    template_of,
)
from trainer.findings import SEVERITIES, Finding, Severity

_LONGEST_SERVER_ID = 64
_LAST_RESERVED_PORT, _LAST_PORT = 1023, 65535
_SHOWN = 8


@dataclass(frozen=True)
class RankTableReport:
    """What was read and what was found, the gravest first."""

    template: Template
    ranks: int
    servers: int
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Severity | None:
        """The gravest severity; None without a finding."""
        return self.findings[0].severity if self.findings else None

    @property
    def valid(self) -> bool:
        """Whether no error was found."""
        return self.worst != "error"


def check_rank_table(path: Path | str) -> RankTableReport:
    """Check a file.

    Raises:
        InputError: it can't be read as a JSON object at all.
    """
    value, twice = load_table(Path(path))
    problems = Problems()
    for key in twice:
        problems.add("duplicate_key", key)
    return _check(value, problems)


def check_rank_table_value(value: dict[str, Any]) -> RankTableReport:
    """Check a table that is already in memory."""
    return _check(value, Problems())


def generate_rank_table(servers: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A table of template 1.0 from the device addresses of each server, in the order of their device ids.

    Ranks follow the order of the servers. Templates 1.2 and 2.0 need ids that only the machines know (super_device_id,
    topology files): those tables come from the cluster manager.

    Raises:
        InputError: no servers, or the table would be refused.
    """
    if not servers:
        raise InputError("no servers; give --server NAME=ADDRESS,ADDRESS for each of them")
    rank = 0
    entries = []
    for server, addresses in servers.items():
        devices = []
        for device, address in enumerate(addresses):
            devices.append({"device_id": str(device), "device_ip": address, "rank_id": str(rank)})
            rank += 1
        entries.append({"server_id": server, "device": devices})
    table = {
        "status": "completed",
        "version": "1.0",
        "server_count": str(len(entries)),
        "server_list": entries,
    }
    report = check_rank_table_value(table)
    if not report.valid:
        raise InputError(
            f"the table would be refused: {report.findings[0].summary}; {report.findings[0].action}"
        )
    return table


def _check(value: dict[str, Any], problems: Problems) -> RankTableReport:
    tables = list(read_tables(value, problems))
    for table in tables:
        _ranks(table, problems)
        if table.knows_servers:
            _servers(table, problems)
            _super_pods(table, problems)
        _ports(table, problems)
    # Addresses are shared by all groups of a global table.
    _addresses(tables, problems)
    return RankTableReport(
        template_of(value),
        sum(len(table.devices) for table in tables),
        sum(len(table.servers) for table in tables if table.knows_servers),
        tuple(sorted(problems.findings, key=lambda finding: SEVERITIES.index(finding.severity))),
    )


def _ranks(table: RankTable, problems: Problems) -> None:
    where = _in_group(table, "rank_id")
    ranks = [device.rank_id for device in table.devices if device.rank_id is not None]
    for rank, count in _repeated(ranks):
        problems.add("duplicate_rank_id", where, rank, count=count)
    # With an unreadable rank or list of devices the range can't be judged: that has its own finding.
    whole = table.template == "global" or all(server.devices for server in table.servers)
    if ranks and whole and len(ranks) == len(table.devices):
        missing = sorted(set(range(len(ranks))) - set(ranks))
        beyond = sorted(set(ranks) - set(range(len(ranks))))
        repeats_only = not beyond and len(set(ranks)) < len(ranks)
        if missing and not repeats_only:
            problems.add(
                "rank_id_range", where, ranks=len(ranks), last=len(ranks) - 1, missing=_list(missing), beyond=_list(beyond)
            )  # fmt: skip
    order = [device for device in table.devices if device.rank_id is not None]
    for before, after in pairwise(order):
        assert before.rank_id is not None and after.rank_id is not None
        if after.rank_id < before.rank_id:
            problems.add("rank_order", f"{after.where}.rank_id", after.rank_id, before=before.rank_id)
            break
    if table.knows_servers:
        _interleaving(table, problems)


def _interleaving(table: RankTable, problems: Problems) -> None:
    of = [{d.rank_id for d in server.devices if d.rank_id is not None} for server in table.servers]
    every = sorted(set[int]().union(*of))
    for server, own in zip(table.servers, of, strict=True):
        if not own:
            continue
        between = slice(bisect_right(every, min(own)), bisect_left(every, max(own)))
        # Of a server's own ranks all but the two at the ends lie between them.
        if between.stop - between.start > max(0, len(own) - 2):
            foreign = [rank for rank in every[between] if rank not in own]
            problems.add(
                "rank_interleaved", server.where, server=server.server_id, own=_list(sorted(own)), foreign=_list(foreign)
            )  # fmt: skip
            return


def _servers(table: RankTable, problems: Problems) -> None:
    names = [server.server_id for server in table.servers if server.server_id is not None]
    for name, count in _repeated(names):
        problems.add("duplicate_server_id", _in_group(table, "server_id"), name, count=count)
    for server in table.servers:
        if server.server_id is not None and len(server.server_id) > _LONGEST_SERVER_ID:
            problems.add(
                "server_id_too_long",
                f"{server.where}.server_id",
                server.server_id,
                length=len(server.server_id),
            )
        _devices(server, problems)
    other = [name for name in names if _address(name) is None]
    if other:
        problems.add("server_id_not_ip", _in_group(table, "server_id"), other[0])
    counts = {len(server.devices) for server in table.servers if server.devices}
    if len(counts) > 1:
        problems.add("device_counts_differ", _in_group(table, "server_list"), counts=_list(sorted(counts)))


def _devices(server: Server, problems: Problems) -> None:
    ids = [device.device_id for device in server.devices if device.device_id is not None]
    for device_id, count in _repeated(ids):
        problems.add("duplicate_device_id", server.where, device_id, server=server.server_id, count=count)
    placed = sorted(
        (device.rank_id, device.device_id)
        for device in server.devices
        if device.rank_id is not None and device.device_id is not None
    )
    turned = [
        f"rank {low[0]} on device {low[1]}, rank {high[0]} on device {high[1]}"
        for low, high in pairwise(placed)
        if high[1] < low[1]
    ]
    if turned:
        problems.add("device_order", server.where, server=server.server_id, pairs=turned[0])
    for port, count in _repeated(
        port for device in server.devices for name, port in device.ports if name == "host_port"
    ):
        problems.add("host_port_repeated", server.where, port, server=server.server_id, count=count)


def _ports(table: RankTable, problems: Problems) -> None:
    for device in table.devices:
        for name, port in device.ports:
            if not 1 <= port <= _LAST_PORT:
                problems.add("port_out_of_range", f"{device.where}.{name}", port)
            elif port <= _LAST_RESERVED_PORT:
                problems.add("port_reserved", f"{device.where}.{name}", port)


def _super_pods(table: RankTable, problems: Problems) -> None:
    if not table.super_pods:
        return
    servers = {server.server_id: server for server in table.servers if server.server_id is not None}
    where = _in_group(table, "super_pod_list")
    for pod_id, count in _repeated(pod.pod_id for pod in table.super_pods if pod.pod_id is not None):
        problems.add("duplicate_super_pod_id", where, pod_id, count=count)
    for pod in table.super_pods:
        for path, name in pod.servers:
            if name not in servers:
                problems.add("super_pod_unknown_server", path, name)
        devices = [d for _, name in pod.servers if name in servers for d in servers[name].devices]
        for device in devices:
            if device.super_device_id is None:
                problems.add("field_missing", f"{device.where}.super_device_id")
        ids = (device.super_device_id for device in devices if device.super_device_id is not None)
        for value, count in _repeated(ids):
            problems.add("duplicate_super_device_id", pod.where, value, pod=pod.pod_id, count=count)
    listed = Counter(name for pod in table.super_pods for _, name in pod.servers)
    for name in servers:
        if listed[name] != 1:
            problems.add("super_pod_server_count", where, name, count=listed[name])


def _addresses(tables: list[RankTable], problems: Problems) -> None:
    families: Counter[int] = Counter()
    every: list[str] = []
    for table in tables:
        many = len(table.servers) > 1
        for device in table.devices:
            if many and not device.addresses:
                problems.add("device_ip_missing", f"{device.where}.{device.address_field}")
            for text in device.addresses:
                address = _address(text)
                if address is None:
                    problems.add("ip_malformed", f"{device.where}.{device.address_field}", text)
                    continue
                families[address.version] += 1
                every.append(str(address))
            _backup(device.where, device.backup_ip, device.addresses, problems)
    for value, count in _repeated(every):
        problems.add("duplicate_device_ip", "device_ip", value, count=count)
    if len(families) > 1:
        problems.add("ip_family_mixed", "device_ip", v4=families[4], v6=families[6])


def _backup(where: str, backup: str | None, own: tuple[str, ...], problems: Problems) -> None:
    if backup is None:
        return
    if _address(backup) is None:
        problems.add("ip_malformed", f"{where}.backup_device_ip", backup)
    elif backup in own:
        problems.add("backup_is_own_address", f"{where}.backup_device_ip", backup)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _repeated(values: Iterable[Any]) -> list[tuple[Any, int]]:
    return [(value, count) for value, count in Counter(values).items() if count > 1]


def _list(values: Sequence[int]) -> str:
    shown = ", ".join(str(value) for value in values[:_SHOWN]) or "none"
    return f"{shown}, and {len(values) - _SHOWN} more" if len(values) > _SHOWN else shown


def _in_group(table: RankTable, name: str) -> str:
    return f"group {table.group}: {name}" if table.group else name
