"""No load path ever unpickles: an audit hook watches a process that walks all of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason='pip install "evalkit[convert]"')
pytest.importorskip("onnx", reason='pip install "evalkit[onnx]"')

# The hook is there before anything is imported. `pickle.find_class` is raised by every unpickler, C and Python alike,
# at the first global that a pickle names; pickles that could run code name at least one.
_WALK = """
import sys
found = []
where = "import"
def watch(event, arguments):
    if event == "pickle.find_class":
        found.append([where, *map(str, arguments)])
sys.addaudithook(watch)

import json, shutil
from pathlib import Path
folder, stories, run = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])

from tests.trainer.convert import sources
from tests.trainer.convert.test_gguf import write_stories
from tests.trainer.convert.test_mindformers import write
from trainer.convert import convert, convert_to_huggingface
from trainer.checkpoint import read_checkpoint
from evalkit.bundle import load_bundle

spec = sources.small_spec("llama", kv_heads=2)
weights = sources.small_weights(spec)
gpt2 = sources.small_spec("gpt2")
models = {
    "hf": stories / "models/stories260K/hf",
    "bin": stories / "models/stories260K/stories260K.bin",
    "gguf": write_stories(stories, folder / "s.gguf"),
    "gpt2": sources.write_gpt2(folder / "gpt2", gpt2, sources.small_weights(gpt2)),
    "ckpt": write(folder / "a", spec, sources.mindformers_names(weights, "legacy"), form="ckpt"),
    "mcore": write(folder / "b", spec, sources.mindformers_names(weights, "mcore"), form="safetensors"),
}
for where, source in models.items():
    convert(source, folder / f"checkpoint-{where}")
where = "to hf"
convert_to_huggingface(folder / "checkpoint-hf", folder / "hf")

where = "export"
from trainer.export.bundle import export_bundle
bundle = export_bundle(read_checkpoint(run), folder / "bundle", formats=["mindir", "onnx"])
where = "load bundle"
bundle = load_bundle(folder / "bundle")
assert bundle.token_counts.sum() > 0 and bundle.word_counts
bundle.tokenizer.encode("Maria")

where = "generate"
from trainer.generate import generate, load_generator
from trainer.sampling import Sampling
for path, backend in ((run, None), (bundle.path, "mindir"), (bundle.path, "onnx")):
    generate(load_generator(path, backend), [1, 4], max_new_tokens=2, sampling=Sampling(), seed=0)

where = "score"
from evalkit.backends.choice import open_backend
for backend in ("mindir", "onnx"):
    open_backend(backend, bundle)

walked = list(found)
# The hook does see a pickle: without this the test could not fail.
where = "control"
import pickle
from collections import OrderedDict
pickle.loads(pickle.dumps(OrderedDict(a=1)))
print(json.dumps({"walked": walked, "control": found[len(walked):]}))
"""


def test_no_load_path_unpickles(shared_data, tiny_run, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _WALK, str(tmp_path), str(shared_data), str(tiny_run)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["walked"] == []
    assert answer["control"] == [["control", "collections", "OrderedDict"]]
