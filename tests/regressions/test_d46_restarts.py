"""Public reports about recovery: slower than promised, and counted differently by everyone."""

from datetime import datetime, timedelta

from trainer.diagnosis.distributed import diagnose_distributed

START = datetime(2026, 3, 1, 10, 0, 0)


def at(seconds, level="I"):
    """The elastic agent's own prefix: level, month and day, time, thread; no year."""
    return (START + timedelta(seconds=seconds)).strftime(
        f"{level}%m%d %H:%M:%S.%f"
    ) + " 870572 torch/distributed/elastic/agent/server/api.py:889]"


def dated(seconds):
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")


def agent(restarts, started=0.0, limit=3):
    """A launcher's log; `restarts`: (failed at, workers together again at or None)."""
    lines = [
        f"{dated(started)} INFO launcher starts",
        f"{at(started + 1)} [default] Rendezvous complete for workers. Result:",
    ]
    for number, (failed, together) in enumerate(restarts):
        lines.append(
            f"{at(failed)} [default] Worker group FAILED. {limit - number}/{limit} attempts left; will restart worker group"
        )
        if together is not None:
            lines.append(f"{at(together)} [default] Rendezvous complete for workers. Result:")
    return "\n".join(lines) + "\n"


def write(folder, **logs):
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)
    return diagnose_distributed(folder)


OOM = "[ERROR] 2026-03-01 10:10:00 rank=3 EL0004: out of memory, rtMalloc fail"
PORT = "[ERROR] 2026-03-01 11:00:00 rank=1 EJ0003: Failed to bind the IP port"


def test_d46_an_error_before_the_last_restart_is_not_why_the_job_is_down(tmp_path):
    """torchft 329: 948 s until the workers were together again. pytorch 147064: lines of the elastic agent."""
    report = write(
        tmp_path,
        agent=agent([(605, 605 + 948), (3605, None)]),
        rank_3=f"{dated(10)} INFO step\n{OOM}\n",
        rank_1=f"{dated(10)} INFO step\n{PORT}\n[ERROR] 2026-03-01 11:30:00 rank=1 EI0006: Getting socket times out\n",
    )
    first, restarts = report.findings[0], next(f for f in report.findings if f.rule == "restarts")
    assert first.rule == "socket_timeout"
    assert (restarts.value("count"), restarts.value("longest_until_rendezvous")) == (2, 948.0)
    assert restarts.value("attempts_left") == 2
    ended = [item.value.partition(":")[0] for item in restarts.evidence if item.name == "ended_by"]
    assert ended == ["out_of_device_memory", "port_in_use"]


def test_d46_a_job_that_recovered_says_so(tmp_path):
    report = write(
        tmp_path, agent=agent([(605, 640)]), rank_3=f"{dated(10)} INFO step\n{OOM}\n{dated(9000)} INFO step\n"
    )
    assert report.findings[0].rule == "out_of_device_memory"
    restarts = report.findings[-1]
    assert (restarts.rule, restarts.value("outcome")) == ("restarts", "no error since")


def test_d46_a_restart_that_every_node_logs_counts_once(tmp_path):
    """kubeflow/trainer 1478, pytorch 108158: each agent counts for itself."""
    nodes = {f"node_{n}": agent([(605 + n, 700 + n), (2000 + n, None)]) for n in range(4)}
    restarts = write(tmp_path, **nodes).findings[-1]
    assert (restarts.value("count"), restarts.value("longest_until_rendezvous")) == (2, 95.0)


def test_d46_what_dying_workers_log_belongs_to_the_attempt_before(tmp_path):
    """pytorch 111646: workers of the old attempt go on logging until the barrier."""
    dying = "[ERROR] 2026-03-01 10:10:20 rank=2 EI0006: Getting socket times out"
    report = write(
        tmp_path,
        agent=agent([(605, 700)]),
        rank_2=f"{dated(10)} INFO step\n{dying}\n[ERROR] 2026-03-01 11:00:00 rank=2 EL0004: out of memory\n",
    )
    assert report.findings[0].rule == "out_of_device_memory"
