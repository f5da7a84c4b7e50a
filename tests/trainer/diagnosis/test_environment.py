"""Environment variables and versions against their tables."""

import csv

import pytest

from evalkit.errors import InputError
from trainer.diagnosis.environment import check_environment, environment_book, read_settings
from trainer.diagnosis.versions import installed_versions, normal_version, version_table

KNOWN = {"mindformers": "1.7.0", "mindspore": "2.7.1", "cann": "8.3.RC1", "driver": "25.3.RC1"}


def rules(variables: dict[str, str], versions: dict[str, str] = KNOWN) -> list[tuple[str, str]]:
    return [(f.rule, f.severity) for f in check_environment(variables, versions, here=False)]


def test_a_sound_environment_has_no_finding():
    assert rules({"HCCL_CONNECT_TIMEOUT": "600", "HCCL_EXEC_TIMEOUT": "1836", "PATH": "/bin"}) == []


@pytest.mark.parametrize(
    ("variables", "rule"),
    [
        ({"HCCL_CONNECT_TIMEOUT": "60"}, "value_refused"),
        ({"HCCL_CONNECT_TIMEOUT": "7201", "HCCL_EXEC_TIMEOUT": "0"}, "value_refused"),
        ({"HCCL_CONNECT_TIMEOUT": "2 min"}, "value_refused"),
        ({"HCCL_RDMA_TC": "133"}, "value_refused"),
        ({"HCCL_RDMA_SL": "8"}, "value_refused"),
        ({"HCCL_BUFFSIZE": "0"}, "value_refused"),
        ({"HCCL_WHITELIST_DISABLE": "yes"}, "value_refused"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,0"}, "value_refused"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0;1"}, "value_refused"),
        ({"HCCL_IF_IP": "node-1"}, "value_refused"),
        ({"ASCEND_GLOBAL_LOG_LEVEL": "1"}, "value_advised_against"),
        ({"ASCEND_LAUNCH_BLOCKING": "1"}, "value_advised_against"),
        ({"MS_ASCEND_CHECK_OVERFLOW_MODE": "SATURATION_MODE"}, "value_advised_against"),
        ({"HCCL_BUFSIZE": "400"}, "unknown_variable"),
        ({"HCCL_CONNECT_TIMEOUT": "1836", "HCCL_EXEC_TIMEOUT": "1836"}, "connect_not_below_exec"),
        ({"HCCL_EXEC_TIMEOUT": "100"}, "connect_not_below_exec"),
        ({"HCCL_CONNECT_TIMEOUT": "2000"}, "connect_not_below_exec"),
        ({"RANK_ID": "8", "RANK_SIZE": "8"}, "rank_outside_world"),
        ({"HCCL_IF_IP": "10.0.0.1", "HCCL_SOCKET_IFNAME": "eth0"}, "interface_named_twice"),
    ],
)
def test_variables(variables, rule):
    assert [name for name, _ in rules(variables)] == [rule]


def test_never_times_out_is_above_every_connect_timeout():
    assert rules({"HCCL_CONNECT_TIMEOUT": "7200", "HCCL_EXEC_TIMEOUT": "0"}) == []


def test_two_ways_to_start_a_job():
    variables = {
        "RANK_TABLE_FILE": "/x/hccl.json",
        "MS_ROLE": "MS_WORKER",
        "MS_WORKER_NUM": "8",
        "MS_SCHED_HOST": "10.0.0.1",
        "MS_SCHED_PORT": "8118",
    }
    assert rules(variables) == [("two_ways_to_start", "error"), ("value_advised_against", "warning")]


def test_a_worker_needs_its_scheduler():
    found = check_environment({"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "8"}, KNOWN)
    assert [finding.value("missing") for finding in found] == ["MS_SCHED_HOST", "MS_SCHED_PORT"]


def test_each_finding_names_variable_value_and_rule():
    (finding,) = check_environment({"HCCL_RDMA_SL": "9"}, KNOWN)
    assert (finding.value("variable"), finding.value("value")) == ("HCCL_RDMA_SL", "9")
    assert finding.value("rule") == "CANN: HCCL_RDMA_SL" and "0 to 7" in finding.summary


def test_other_programs_variables_arent_told():
    found = check_environment({"API_TOKEN": "hidden", "HOME": "/root"}, KNOWN)
    assert found == []


def test_every_variable_of_the_table_accepts_its_default():
    for variable in environment_book().variables:
        if variable.default is not None:
            assert rules({variable.name: variable.default}) == [], variable.name


@pytest.mark.parametrize(
    ("one", "other"),
    [("8.0.RC3.beta1", "8.0.RC3"), ("2.6.0-rc1", "2.6.0rc1"), ("2.6.0.rc1", "2.6.0RC1"), ("v2.7.1", "2.7.1"), ("2.7.1+cpu", "2.7.1")],
)  # fmt: skip
def test_spellings_of_one_version(one, other):
    assert normal_version(one) == normal_version(other)


def test_different_versions_stay_different():
    assert normal_version("8.0.RC2") != normal_version("8.0.RC3") != normal_version("8.0.0")


def test_the_table_is_the_published_one(shared_data):
    path = shared_data / "traces" / "version_tables" / "mindformers_mindspore_cann_driver.csv"
    published = list(csv.DictReader(path.open()))
    ours = [row for row in version_table() if row.mindformers]
    assert [(r.mindformers, r.mindspore, r.cann, r.driver) for r in ours] == [
        (r["mindformers"], r["mindspore"], r["cann"], r["driver_firmware"]) for r in published
    ]


def test_versions_that_dont_go_together():
    found = check_environment({}, KNOWN | {"cann": "8.2.RC1"})
    assert {f.value("first"): f.value("expected") for f in found} == {
        "mindspore": "8.3.RC1",
        "cann": "25.2.0",
    }


def test_unknown_versions_are_said_and_not_judged():
    assert rules({}, {"mindspore": "2.10.0", "cann": "9.9.9"}) == [
        ("version_not_in_table", "info"),
        ("version_not_in_table", "info"),
        ("version_unknown", "info"),
    ]


def test_what_is_installed_here_is_found_without_importing(tmp_path):
    toolkit, driver = tmp_path / "toolkit", tmp_path / "driver"
    toolkit.mkdir()
    driver.mkdir()
    (toolkit / "version.cfg").write_text("# comment\nruntime_running_version=[8.3.RC1:8.3.RC1]\n")
    (driver / "version.info").write_text("Version=25.3.rc1\nfirmware=1\n")
    found = installed_versions({"ASCEND_HOME": str(tmp_path), "ASCEND_TOOLKIT_HOME": str(toolkit)})
    assert (found["cann"], found["driver"]) == ("8.3.RC1", "25.3.rc1")
    assert found["mindspore"] == "2.10.0"


def test_settings_from_a_file(tmp_path):
    path = tmp_path / "env.txt"
    path.write_text("export HCCL_BUFFSIZE='400'\nA=b=c\nmindspore==2.7.1\nnumpy==1.26.4\n# a comment\n\n")
    variables, versions = read_settings(path)
    assert variables == {"HCCL_BUFFSIZE": "400", "A": "b=c"} and versions == {"mindspore": "2.7.1"}
    path.write_text("nothing here")
    with pytest.raises(InputError):
        read_settings(path)
