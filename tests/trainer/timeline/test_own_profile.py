"""A profile made by MindSpore's profiler on this machine goes through the tool."""

import os
import subprocess
import sys
from pathlib import Path

from trainer.timeline import intervals
from trainer.timeline.run import analyse, write_analysis

PROJECT = Path(__file__).resolve().parents[3]
SCRIPT = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn
from mindspore.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
net = nn.SequentialCell(nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 4))
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.01))
step.set_train()
x, y = Tensor(np.ones((8, 16), np.float32)), Tensor(np.zeros((8, 4), np.float32))
plan = schedule(wait=0, warmup=0, active=3, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=tensorboard_trace_handler(sys.argv[1]),
             profile_memory=True) as profiler:
    for _ in range(3):
        step(x, y)
        profiler.step()
"""


def test_a_profile_of_mindspore_on_a_cpu(tmp_path):
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "profile")],
        check=True,
        capture_output=True,
        timeout=600,
        env={**os.environ, "GLOG_v": "3"},
        cwd=tmp_path,
    )
    analysis = analyse(tmp_path / "profile")
    [rank] = analysis.ranks
    names = analysis.recording.names.texts
    assert rank.why_unknown == "" and intervals.total(rank.computing) > 0
    assert any("MatMul-op" in name for name in names) and any("ReLU" in name for name in names)
    assert rank.start_ns > 1_700_000_000 * 10**9  # absolute times, from texts
    assert len(analysis.recording.memory) > 10
    assert analysis.fact("compute_share") is not None
    cube = write_analysis(analysis, tmp_path / "out", "own")
    assert cube.ranks == (0,) and cube.values["compute_utilisation"][0].max() > 0.5
