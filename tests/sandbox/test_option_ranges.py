"""Numbers and addresses that can't be used are one line and exit code 2, before anything is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from evalkit.console import run
from evalkit.errors import InputError
from sandbox.cli import cli
from sandbox.metrics import PrometheusMetrics
from sandbox.port import check_address
from sandbox.tokens import read_tokens
from sandbox.tracing import tracing

SERVE, CHAT = ["serve", "no-bundle"], ["chat", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        *((SERVE, "--idle-ttl-s", value) for value in ("nan", "inf", "1e300", "0", "-1")),
        *((SERVE, "--grace-s", value) for value in ("nan", "inf", "1e300", "-1")),
        *((SERVE, "--engine-timeout-s", value) for value in ("nan", "inf", "0", "1e300")),
        *((SERVE, "--endpoint-timeout-s", value) for value in ("nan", "inf", "0")),
        *((SERVE, "--stream-interval-ms", value) for value in ("nan", "-1", "1001")),
        *((SERVE, "--max-sessions", value) for value in ("1000000000", "0")),
        *((SERVE, "--max-waiting", value) for value in ("100000000000000000000", "0")),
        *((CHAT, "--timeout-s", value) for value in ("nan", "inf", "1e300")),
        *((CHAT, "--temperature", value) for value in ("nan", "inf", "1e300")),
        *((CHAT, "--top-p", value) for value in ("nan", "0", "1.5")),
        *((CHAT, "--top-k", value) for value in ("99999999999", "-1")),
        *((CHAT, "--max-new-tokens", value) for value in ("99999999999", "0")),
        *((CHAT, "--seed", value) for value in ("-1", str(2**64))),
    ],
)
def test_a_number_out_of_range_names_its_option(
    command: list[str], option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(cli, [*command, option, value])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.count("\n") == 1 and f"'{option}'" in told


def test_more_cache_than_the_machine_has_memory_names_the_option(tiny_bundle: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandbox", "serve", str(tiny_bundle), "--kv-mib", "99999999"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "--kv-mib: 99999999 MiB is more than this machine's" in done.stderr


@pytest.mark.parametrize("option", ["--kv-mib=64", "--engine-timeout-s=60", "--stream-interval-ms=0"])
def test_what_belongs_to_our_engine_is_refused_for_somebody_elses_server(option: str) -> None:
    remote = ["--engine=openai", "--endpoint=http://127.0.0.1:1/v1", "--model=m", "--declare=d"]
    done = subprocess.run(
        [sys.executable, "-m", "sandbox", "serve", *remote, option],
        capture_output=True,
        text=True,
        timeout=60,
    )
    name = option.partition("=")[0]
    assert done.returncode == 2 and done.stderr.startswith(f"error: {name}: belongs to a bundle")


def test_a_nobody_there_message_speaks_of_no_turn() -> None:
    remote = ["--engine=openai", "--endpoint=http://127.0.0.1:1/v1", "--model=m", "--declare=d"]
    done = subprocess.run(
        [sys.executable, "-m", "sandbox", "serve", *remote], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "nobody answers at the endpoint; start the server" in done.stderr


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:99999", "the port is above 65535"),
        ("127.0.0.1", "isn't HOST:PORT"),
        (":80", "isn't HOST:PORT"),
        ("127.0.0.1:²", "isn't HOST:PORT"),
    ],
)
def test_an_address_is_checked_under_the_name_of_its_option(address: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"^--listen: .*{message}"):
        check_address(address)
    with pytest.raises(InputError, match=rf"^--metrics: .*{message}"):
        PrometheusMetrics.serve(object.__new__(PrometheusMetrics), address)


@pytest.mark.parametrize("url", ["foo", "127.0.0.1:4317", "http://", "http://[::1", "http://x:99999"])
def test_a_collector_is_a_url(url: str) -> None:
    with pytest.raises(InputError, match=r"^--otlp: "):
        tracing(url, {})


def test_a_byte_order_mark_is_no_part_of_a_tenant(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("\ufeffbank-a:secret\n", encoding="utf-8")
    assert list(read_tokens(file).values()) == ["bank-a"]
