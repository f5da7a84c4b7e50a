"""Read a rank table of any template into one shape; what is missing or of the wrong type becomes a finding."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evalkit.errors import InputError
from evalkit.files import read_text
from trainer.diagnosis.rank_table_fields import Node, Problems, kind_of
from trainer.regular_file import require_regular

Template = Literal["1.0", "1.2", "legacy", "2.0", "global"]


@dataclass(frozen=True)
class Device:
    """One device (one rank). `ports` holds (field, number) of the ports that it names."""

    where: str
    device_id: int | None = None
    rank_id: int | None = None
    addresses: tuple[str, ...] = ()
    address_field: str = "device_ip"
    ports: tuple[tuple[str, int], ...] = ()
    super_device_id: str | None = None
    backup_ip: str | None = None


@dataclass(frozen=True)
class Server:
    """A server and its devices, in the order of the file. `server_id` None: the table doesn't say."""

    where: str
    server_id: str | None
    devices: tuple[Device, ...]


@dataclass(frozen=True)
class SuperPod:
    """A super pod: (field path, server_id) of its servers."""

    where: str
    pod_id: str | None
    servers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RankTable:
    """One communication world. A global table holds several, one a group."""

    template: Template
    group: str
    servers: tuple[Server, ...]
    super_pods: tuple[SuperPod, ...] = ()
    knows_servers: bool = True

    @property
    def devices(self) -> list[Device]:
        """All devices, in the order of the file."""
        return [device for server in self.servers for device in server.devices]


def load_table(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The JSON object of a file, and the keys that stand twice in one object.

    Raises:
        InputError: no such file, not JSON, or not an object.
    """
    require_regular(path)
    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        twice.extend(key for key in dict.fromkeys(keys) if keys.count(key) > 1)
        return dict(items)

    try:
        value = json.loads(read_text(path), object_pairs_hook=pairs)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise InputError(f"{path}: a text holds {half}, half of a character; write valid Unicode") from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}: not JSON: {error.msg}; a rank table is one object"
        ) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: not a rank table: {str(error)[:80] or 'nested too deeply'}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: {kind_of(value)}, a rank table is one JSON object")
    return value, twice


def template_of(value: dict[str, Any]) -> Template:
    """The template by what only it has; `version` decides the rest."""
    if "group_list" in value:
        return "legacy"
    if "server_group_list" in value:
        return "global"
    if "rank_list" in value or value.get("version") in ("2.0", 2.0):
        return "2.0"
    if "super_pod_list" in value or value.get("version") in ("1.2", 1.2):
        return "1.2"
    return "1.0"


def read_tables(value: dict[str, Any], problems: Problems) -> Iterator[RankTable]:
    """The worlds of a table. Problems of form are added on the way."""
    template = template_of(value)
    root = Node(value, "", problems, template == "2.0")
    status = root.text("status")
    if status is not None and status != "completed":
        problems.add("status_not_completed", "status", status)
    if template != "legacy":
        version = root.text("version")
        if version is not None and version not in ("1.0", "1.2", "2.0"):
            problems.add("version_unknown", "version", version)
    if template == "legacy":
        yield from _legacy(root)
    elif template == "global":
        for group in root.nodes("server_group_list"):
            name = group.text("group_id") or group.where
            yield RankTable(template, name, _servers(group, needs_devices=False), _super_pods(group))
    elif template == "2.0":
        yield RankTable(template, "", (_flat(root),), knows_servers=False)
    else:
        pods = _super_pods(root) if root.has("super_pod_list") or template == "1.2" else ()
        yield RankTable(template, "", _servers(root, needs_devices=True), pods)


def _servers(node: Node, *, needs_devices: bool) -> tuple[Server, ...]:
    entries = node.nodes("server_list")
    servers = []
    for entry in entries:
        # Coordinators and controllers of a global table are servers without devices.
        devices = entry.nodes("device", required=needs_devices)
        servers.append(
            Server(
                entry.where, entry.text("server_id"), tuple(_device(item, "device_ip") for item in devices)
            )
        )
    if isinstance(node.value.get("server_list"), list):
        node.count("server_count", len(node.value["server_list"]))
    return tuple(servers)


def _device(node: Node, address: str) -> Device:
    ports = (
        (name, node.number(name, required=False))
        for name in ("device_port", "host_port", "backup_device_port")
    )
    ip = node.text(address, required=False)
    return Device(
        node.where,
        node.number("device_id"),
        node.number("rank_id"),
        (ip,) if ip is not None else (),
        address,
        tuple((name, port) for name, port in ports if port is not None),
        node.text("super_device_id", required=False),
        node.text("backup_device_ip", required=False),
    )  # fmt: skip


def _super_pods(node: Node) -> tuple[SuperPod, ...]:
    pods = []
    for pod in node.nodes("super_pod_list", required=False):
        servers = ((item.path("server_id"), item.text("server_id")) for item in pod.nodes("server_list"))
        pods.append(
            SuperPod(
                pod.where,
                pod.text("super_pod_id"),
                tuple((where, name) for where, name in servers if name is not None),
            )
        )
    return tuple(pods)


def _legacy(root: Node) -> Iterator[RankTable]:
    groups = root.nodes("group_list")
    if isinstance(root.value.get("group_list"), list):
        root.count("group_count", len(root.value["group_list"]))
    for group in groups:
        name = "device_list" if group.has("device_list") else "instance_list"
        instances = group.nodes(name)
        servers: dict[str | None, list[Device]] = {}
        for instance in instances:
            server = instance.text("server_id")
            rank = instance.number("rank_id")
            for item in instance.nodes("devices"):
                ip = item.text("device_ip", required=False)
                device = Device(item.where, item.number("device_id"), rank, (ip,) if ip is not None else ())
                servers.setdefault(server, []).append(device)
        if isinstance(group.value.get(name), list):
            group.count("instance_count", len(instances), required=False)
        group.count(
            "device_count" if group.has("device_count") else "device_num",
            sum(len(devices) for devices in servers.values()),
            required=False,
        )
        group.count("server_num", len(servers), required=False)
        yield RankTable(
            "legacy",
            str(group.value.get("group_name") or ""),
            tuple(Server(group.where, server, tuple(devices)) for server, devices in servers.items()),
        )


def _flat(root: Node) -> Server:
    devices = []
    for entry in root.nodes("rank_list"):
        addresses = []
        for level in entry.nodes("level_list"):
            for item in level.nodes("rank_addr_list", required=False):
                address = item.text("addr")
                # Other kinds of address (EID) have their own form.
                if address is not None and item.value.get("addr_type") in ("IPV4", "IPV6"):
                    addresses.append(address)
        entry.number("local_id", required=False)
        devices.append(
            Device(
                entry.where,
                entry.number("device_id"),
                entry.number("rank_id"),
                tuple(dict.fromkeys(addresses)),
                "level_list",
            )
        )
    if isinstance(root.value.get("rank_list"), list):
        root.count("rank_count", len(root.value["rank_list"]))
    return Server("rank_list", None, tuple(devices))
