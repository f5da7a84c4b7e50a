"""Rank tables of every template: what is refused, what is only told, and what a generated one looks like."""

import copy
import json
import random
from pathlib import Path

import pytest

from evalkit.errors import InputError
from trainer.diagnosis.rank_table import check_rank_table, check_rank_table_value, generate_rank_table

SEVERITY = {"INVALID": "error", "WARN": "warning", "VALID_WITH_NOTE": "info"}
# The rule that states each labelled reason.
RULE = {
    "rank_interleaved_across_servers": "rank_interleaved",
    "duplicate_rank_id": "duplicate_rank_id",
    "rank_gap": "rank_id_range",
    "rank_not_from_zero": "rank_id_range",
    "duplicate_device_ip": "duplicate_device_ip",
    "duplicate_server_id": "duplicate_server_id",
    "server_count_mismatch": "count_mismatch",
    "status_initializing": "status_not_completed",
    "multi_server_without_device_ip": "device_ip_missing",
    "ip_family_mixed": "ip_family_mixed",
    "device_port_reserved": "port_reserved",
    "device_port_out_of_range": "port_out_of_range",
    "host_port_repeated_on_server": "host_port_repeated",
    "server_id_too_long": "server_id_too_long",
    "duplicate_device_id_on_server": "duplicate_device_id",
    "v1.2_without_super_pod_id": "field_missing",
    "no_server_list": "field_missing",
    "server_list_is_string": "field_type",
    "server_list_empty": "field_empty",
    "server_id_missing": "field_missing",
    "server_id_is_list": "field_type",
    "server_id_empty": "field_empty",
    "device_missing": "field_missing",
    "device_is_string": "field_type",
    "device_empty": "field_empty",
    "device_id_missing": "field_missing",
    "device_id_not_number": "number_malformed",
    "rank_id_missing": "field_missing",
    "rank_id_not_number": "number_malformed",
    "rank_id_order": "rank_order",
    "server_id_is_node_name": "server_id_not_ip",
}


def cases(shared_data: Path) -> list[dict]:
    path = shared_data / "traces" / "rank_tables" / "negative_cases.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_labelled_reason_is_found_at_its_labelled_severity(shared_data):
    found = {}
    for case in cases(shared_data):
        report = check_rank_table_value(case["table"])
        found[case["case"]] = {(finding.rule, finding.severity) for finding in report.findings}
    assert len(found) == 31
    for case in cases(shared_data):
        assert (RULE[case["case"]], SEVERITY[case["expected"]]) in found[case["case"]], case["case"]


def test_the_verdict_is_the_label(shared_data):
    """Of 30 cases as they are. `rank_id_order` has a second fault, which the same labels call INVALID; see below."""
    for case in cases(shared_data):
        if case["case"] != "rank_id_order":
            assert check_rank_table_value(case["table"]).worst == SEVERITY[case["expected"]], case["case"]


def test_entries_out_of_order_are_a_warning_unless_a_rank_stands_twice(shared_data):
    """`rank_id_order`, labelled WARN for its order, was made by writing 5 for rank 0: rank 5 stands twice, rank 0
    is missing, and server n0 holds a rank behind one of n1. Sorted, as the warning advises, the table still has the two
    faults that the same file labels INVALID elsewhere, so that no rule can call this one a warning and those errors.
    """
    disordered = next(c["table"] for c in cases(shared_data) if c["case"] == "rank_id_order")
    assert "duplicate_rank_id" in {finding.rule for finding in check_rank_table_value(disordered).findings}
    sorted_table = copy.deepcopy(disordered)
    for server in sorted_table["server_list"]:
        server["device"].sort(key=lambda device: int(device["rank_id"]))
    report = check_rank_table_value(sorted_table)
    refused = {finding.rule for finding in report.findings if finding.severity == "error"}
    assert refused == {"duplicate_rank_id", "rank_interleaved"}
    for reason in ("duplicate_rank_id", "rank_interleaved_across_servers"):
        assert RULE[reason] in refused
        assert next(c for c in cases(shared_data) if c["case"] == reason)["expected"] == "INVALID"
    # The order alone: the same table with its ranks written once each.
    order_only = copy.deepcopy(disordered)
    devices = order_only["server_list"][0]["device"]
    devices[0]["rank_id"], devices[1]["rank_id"] = "1", "0"
    assert check_rank_table_value(order_only).worst == SEVERITY["WARN"]


@pytest.mark.parametrize(
    ("name", "template", "ranks"),
    [
        ("synthetic_ok_legacy_group_list_2dev.json", "legacy", 2),
        ("synthetic_ok_v1.0_2server_16dev_nodename.json", "1.0", 16),
        ("synthetic_ok_v1.2_superpod_16dev.json", "1.2", 16),
        ("synthetic_ok_v2.0_rank_list_2p.json", "2.0", 2),
    ],
)
def test_valid_tables_are_accepted(shared_data, name, template, ranks):
    report = check_rank_table(shared_data / "traces" / "rank_tables" / name)
    assert (report.valid, report.template, report.ranks) == (True, template, ranks)
    assert {finding.rule for finding in report.findings} <= {"server_id_not_ip"}


def table(ranks: int = 2) -> dict:
    return generate_rank_table(
        {"10.1.0.1": [f"10.0.0.{n}" for n in range(ranks)], "10.1.0.2": [f"10.0.1.{n}" for n in range(ranks)]}
    )


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_generated_table_has_no_finding(tmp_path, ranks):
    path = tmp_path / "hccl.json"
    path.write_text(json.dumps(table(ranks)))
    report = check_rank_table(path)
    assert report.findings == () and report.ranks == 2 * ranks and report.servers == 2


def test_what_would_be_refused_isnt_generated():
    for servers in ({}, {"a": ["10.0.0.1", "10.0.0.1"]}, {"a": ["nonsense"]}, {"a" * 65: ["10.0.0.1"]}):
        with pytest.raises(InputError):
            generate_rank_table(servers)


GLOBAL = {
    "status": "completed",
    "version": "1.0",
    "server_group_list": [
        {"group_id": "0", "server_count": "1", "server_list": [{"server_id": "a", "server_ip": "10.0.0.9"}]},
        {
            "group_id": "2",
            "server_count": "1",
            "server_list": [
                {
                    "server_id": "b",
                    "device": [
                        {"device_id": "0", "device_ip": "10.0.0.1", "device_logical_id": "0", "rank_id": "0"},
                        {"device_id": "1", "device_ip": "10.0.0.2", "device_logical_id": "1", "rank_id": "1"},
                    ],
                }
            ],
        },
    ],
}


def test_a_global_table_numbers_its_ranks_a_group():
    report = check_rank_table_value(GLOBAL)
    assert report.template == "global" and report.valid and report.ranks == 2
    twice = copy.deepcopy(GLOBAL)
    twice["server_group_list"][1]["server_list"][0]["device"][1]["rank_id"] = "0"
    assert "duplicate_rank_id" in {finding.rule for finding in check_rank_table_value(twice).findings}


def test_super_pods_are_checked(shared_data):
    path = shared_data / "traces" / "rank_tables" / "synthetic_ok_v1.2_superpod_16dev.json"
    sound = json.loads(path.read_text())

    def rules(change) -> set[str]:
        value = copy.deepcopy(sound)
        change(value)
        return {
            finding.rule for finding in check_rank_table_value(value).findings if finding.severity == "error"
        }

    assert rules(lambda value: None) == set()
    assert rules(lambda v: v["super_pod_list"][0]["server_list"].append({"server_id": "ghost"})) == {
        "super_pod_unknown_server"
    }
    assert rules(lambda v: v["super_pod_list"][0]["server_list"].pop()) == {"super_pod_server_count"}
    assert rules(
        lambda v: v["super_pod_list"][1].update(super_pod_id=v["super_pod_list"][0]["super_pod_id"])
    ) == {"duplicate_super_pod_id"}
    assert rules(lambda v: v["server_list"][0]["device"][1].update(super_device_id="0")) == {
        "duplicate_super_device_id"
    }
    assert rules(lambda v: v["server_list"][0]["device"][1].pop("super_device_id")) == {"field_missing"}


def test_a_real_table_with_devices_4_and_5_is_valid():
    value = generate_rank_table({"127.0.0.1": ["10.0.0.4", "10.0.0.5"]})
    for device, number in zip(value["server_list"][0]["device"], ("4", "5"), strict=True):
        device["device_id"] = number
    assert check_rank_table_value(value).findings == ()


@pytest.mark.parametrize(
    ("change", "rule", "severity"),
    [
        (lambda v: v.update(version="3.0"), "version_unknown", "error"),
        (lambda v: v["server_list"][0]["device"][0].update(rank_id=0), "scalar_style", "warning"),
        (lambda v: v["server_list"][0]["device"][0].update(rank_id=True), "field_type", "error"),
        (lambda v: v["server_list"][0]["device"][0].update(rank_id="-1"), "number_malformed", "error"),
        (lambda v: v["server_list"][0]["device"][0].update(rank_id="٣"), "number_malformed", "error"),
        (lambda v: v["server_list"][0]["device"].append("x"), "field_type", "error"),
        (lambda v: v["server_list"][0]["device"][0].update(device_ip="10.0.0.300"), "ip_malformed", "error"),
        (lambda v: v["server_list"][0]["device"][0].update(device_port="0"), "port_out_of_range", "error"),
        (lambda v: v["server_list"][0]["device"].pop(), "device_counts_differ", "info"),
        (lambda v: v.pop("status"), "field_missing", "error"),
    ],
)  # fmt: skip
def test_further_faults(change, rule, severity):
    value = table()
    change(value)
    assert (rule, severity) in {(f.rule, f.severity) for f in check_rank_table_value(value).findings}


def test_a_key_that_stands_twice_is_told(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(table())[:-1] + ', "status": "initializing"}')
    assert "duplicate_key" in {finding.rule for finding in check_rank_table(path).findings}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a": ' + "[" * 5000])
def test_what_isnt_a_table_is_an_input_error(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        check_rank_table(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_interleaving_equals_its_definition(shared_data):
    """A server's ranks enclose a rank of another server: by the definition, over small tables of every kind."""
    rng = random.Random(3)
    for _ in range(300):
        lists = [[rng.randint(0, 9) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 4))]
        value = generate_rank_table(
            {f"10.0.0.{n}": [f"10.1.{n}.{d}" for d in range(len(own))] for n, own in enumerate(lists)}
        )
        for server, own in zip(value["server_list"], lists, strict=True):
            for device, rank in zip(server["device"], own, strict=True):
                device["rank_id"] = str(rank)
        found = [
            f.evidence[0].where
            for f in check_rank_table_value(value).findings
            if f.rule == "rank_interleaved"
        ]
        first = next(
            (
                f"server_list[{at}]"
                for at, own in enumerate(lists)
                for rank in {rank for other, of in enumerate(lists) if other != at for rank in of} - set(own)
                if min(own) < rank < max(own)
            ),
            None,
        )
        assert found == ([first] if first else [])


def test_a_table_of_32768_ranks():
    """Checked by sorting: comparing each server with all others took 40 s."""
    servers = {
        f"10.0.{n >> 8}.{n & 255}": [f"10.{1 + (n >> 8)}.{n & 255}.{d}" for d in range(8)]
        for n in range(4096)
    }
    report = check_rank_table_value(generate_rank_table(servers))
    assert (report.ranks, report.findings) == (32768, ())
