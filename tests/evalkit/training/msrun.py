"""A script of this folder in several processes, started by msrun."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def launch(
    tmp_path: Path, count: int, script: str = "ranks_script.py", **settings
) -> subprocess.CompletedProcess:
    """Run the script with `count` processes; it gets the settings, and `ranks-COUNT` as its folder."""
    folder = tmp_path / f"ranks-{count}"
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    msrun = [Path(sys.executable).with_name("msrun"), f"--worker_num={count}", f"--local_worker_num={count}"]
    place = ["--master_addr=127.0.0.1", f"--master_port={port}", f"--log_dir={folder / 'log'}", "--join=True"]
    told = json.dumps({"folder": str(folder), **settings})
    command = [*map(str, msrun), *place, str(Path(__file__).with_name(script)), told]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path),
        "GLOG_v": "3",
    }
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
