"""Links compared within one size of message: a link that carries small messages only isn't slow because of that."""

import math
from collections import Counter
from dataclasses import dataclass
from statistics import median

from trainer.timeline.assemble import Rank
from trainer.timeline.facts.subject import Fact, Subject, ratio
from trainer.timeline.model import LinkTransfer, Recording
from trainer.timeline.rulebook import rulebook

# Sizes within 10 % are compared. Wider bins won't do: below about 100 kB a transfer takes the same time whatever
# its size, so that its bandwidth grows with the size.
_BIN = math.log(1.1)


@dataclass
class _Sum:
    size_bytes: float = 0.0
    duration_ns: float = 0.0
    count: int = 0

    def add(self, size_bytes: float, duration_ns: float) -> None:
        self.size_bytes += size_bytes
        self.duration_ns += duration_ns
        self.count += 1

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second."""
        found = ratio(self.size_bytes, self.duration_ns)
        return None if found is None else found * 1e9


def transfers_of(ranks: list[Rank], recording: Recording) -> list[LinkTransfer]:
    """Single transfers between two ranks: from the tasks inside collectives, and from tables. Copies inside a rank are left out."""
    found = [
        item for item in recording.transfers if len(set(item.link.split("-"))) > 1 or "-" not in item.link
    ]
    for rank in ranks:
        for source, target, size, duration, _, transport in rank.links:
            found.append(
                LinkTransfer(
                    rank.rank, f"{source}-{target}", transport, "task", size, duration, None, rank.sources[0]
                )
            )
    return [item for item in found if item.size_bytes > 0 and item.duration_ns > 0]


def link_subjects(transfers: list[LinkTransfer]) -> list[Subject]:
    """One subject a link and size of message , and one a link for what a summary states."""
    bins: dict[tuple[str, int], dict[str, _Sum]] = {}
    for item in transfers:
        size = item.message_bytes or item.size_bytes
        of_bin = bins.setdefault((item.transport, round(math.log(size) / _BIN)), {})
        of_bin.setdefault(_link(item), _Sum()).add(item.size_bytes, item.duration_ns)
    subjects = []
    # (time at the speed of the other links, own time) over all sizes of message
    paces: dict[tuple[str, str], list[float]] = {}
    for (transport, number), links in sorted(bins.items()):
        for link, own in sorted(links.items()):
            others = [other.bandwidth for name, other in links.items() if name != link and other.bandwidth]
            below = None
            if others and own.bandwidth is not None:
                typical = median(others)
                below = 1 - own.bandwidth / typical
                pace = paces.setdefault((transport, link), [0.0, 0.0])
                pace[0] += own.size_bytes / typical * 1e9
                pace[1] += own.duration_ns
            subjects.append(_bin_subject(transport, number, link, own, others, below))
    return subjects + _stated(transfers, {key: 1 - usual / own for key, (usual, own) in paces.items()})


def _link(item: LinkTransfer) -> str:
    # Two files may both speak of a link 1-0: of different pairs of a pipeline.
    return f"{item.link} (rank {item.rank})" if item.link.partition(" ")[0] != "rank" else item.link


def _bin_subject(
    transport: str, number: int, link: str, own: _Sum, others: list[float], below: float | None
) -> Subject:
    bandwidth = own.bandwidth
    kb = own.size_bytes / own.count / 1e3
    return Subject(
        "link",
        f"link {link} over {transport}",
        {
            "bandwidth_below_peers": Fact(
                below, "share", f"messages of about {math.exp(number * _BIN) / 1e3:.3g} kB"
            ),
            "bandwidth_gb_s": Fact(None if bandwidth is None else bandwidth / 1e9, "GB/s"),
            "peers_bandwidth_gb_s": Fact(
                median(others) / 1e9 if others else None, "GB/s", f"median of {len(others)} links"
            ),
            "message_kb": Fact(kb, "kB"),
            "link_bytes": Fact(own.size_bytes, "B"),
            "link_transfers": Fact(float(own.count), ""),
        },
    )


def _stated(transfers: list[LinkTransfer], below: dict[tuple[str, str], float]) -> list[Subject]:
    """Links by the bandwidth that a profiler's summary states, against the average of all links."""
    stated: dict[tuple[str, str], float] = {}
    real: dict[tuple[str, str], _Sum] = {}
    for item in transfers:
        if item.stated_bandwidth is not None:
            key = (item.transport, _link(item))
            stated[key] = item.stated_bandwidth
            real.setdefault(key, _Sum()).add(item.size_bytes, item.duration_ns)
    subjects = []
    for key, value in sorted(stated.items()):
        same = [other for (transport, _), other in stated.items() if transport == key[0]]
        average = sum(same) / len(same)
        own = real[key]
        bandwidth = own.bandwidth
        subjects.append(
            Subject(
                "link_total",
                f"link {key[1]} over {key[0]}",
                {
                    "stated_below_average": Fact(
                        1 - value / average if average > 0 else None, "share", f"average of {len(same)} links"
                    ),
                    "stated_bandwidth_gb_s": Fact(value / 1e9, "GB/s", "a sum over operations"),
                    "real_bandwidth_gb_s": Fact(
                        None if bandwidth is None else bandwidth / 1e9, "GB/s", "bytes over time"
                    ),
                    "mean_message_kb": Fact(own.size_bytes / own.count / 1e3, "kB"),
                    "bandwidth_below_peers": Fact(
                        below.get(key), "share", "against the other links, message size by message size"
                    ),
                    "link_transfers": Fact(float(own.count)),
                },
            )
        )
    return subjects


def transport_subjects(transfers: list[LinkTransfer]) -> list[Subject]:
    """Small packets by transport."""
    limits = rulebook().small_packet_mb
    small, every, small_ns, every_ns = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for item in transfers:
        # Only a distribution of packet sizes tells packets; a ring's tasks are chunks of one large operation.
        size = item.message_bytes
        if item.transport not in limits or size is None:
            continue
        packets = max(1, round(item.size_bytes / size))
        every[item.transport] += packets
        every_ns[item.transport] += round(item.duration_ns)
        if size < limits[item.transport] * 1e6:
            small[item.transport] += packets
            small_ns[item.transport] += round(item.duration_ns)
    return [
        Subject(
            "transport",
            name,
            {
                "small_packet_share": Fact(ratio(small[name], count), "share"),
                "small_packets": Fact(float(small[name])),
                "small_packet_time_share": Fact(ratio(small_ns[name], every_ns[name]), "share"),
                "packet_limit_mb": Fact(limits[name], "MB"),
            },
        )
        for name, count in sorted(every.items())
    ]
