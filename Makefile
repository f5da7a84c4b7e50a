# The two commands: `make demo` and `make test`. Both create .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA := build/banking
CORE := $(VENV)/.core-installed
DEV := $(VENV)/.dev-installed
SCENARIO := scenarios/banking_support.yaml
# MindSpore warns about settings that don't exist on a CPU; errors still show.
export GLOG_v ?= 3
export PYTHONUNBUFFERED := 1

.PHONY: demo demo-regression demo-zh test test-slow lint format protos clean

demo: bundles/candidate/manifest.json bundles/released/manifest.json scenarios/banking/flow/intent.skops
	rm -rf runs/demo
	$(BIN)/evalkit run $(SCENARIO) --out runs/demo

demo-regression: bundles/regressed/manifest.json bundles/released/manifest.json scenarios/banking/flow/intent.skops
	rm -rf runs/demo-regression
	$(BIN)/evalkit run $(SCENARIO) --model bundles/regressed --out runs/demo-regression

demo-zh: bundles/candidate-zh/manifest.json scenarios/banking/flow/intent.skops
	rm -rf runs/demo-zh
	$(BIN)/evalkit run scenarios/banking_support_zh.yaml --out runs/demo-zh

# Two workers that take whole files; each computes on one thread, so that they don't fight over the cores.
# A test that waits for ever fails after five minutes; one that hangs outside Python takes its worker with it.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" -n 2 --dist loadfile --timeout 300 \
	  -o faulthandler_timeout=400 -o faulthandler_exit_on_timeout=true --max-worker-restart 0

test-slow: $(DEV)
	$(BIN)/pytest -m slow

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(DEV)
	$(BIN)/python -m grpc_tools.protoc -Ievalkit/wire=protos --python_out=. --pyi_out=. --grpc_python_out=. evalkit/wire/sandbox.proto

clean:
	rm -rf build bundles runs scenarios/banking/flow/*.skops scenarios/banking/flow/*.card.json

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info[:2] == (3, 11) else "Python 3.11 is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@ $(CORE)

$(DATA)/en/train.jsonl: $(wildcard scenarios/generate.py scenarios/generator/*.py) | $(CORE)
	$(BIN)/python -m scenarios.generate --out $(DATA)

runs/train/%/log.jsonl: scenarios/train/%.yaml $(DATA)/en/train.jsonl
	rm -rf runs/train/$*
	$(BIN)/trainer train $< --out runs/train/$*

bundles/released/manifest.json: runs/train/released/log.jsonl
	rm -rf bundles/released
	$(BIN)/trainer export runs/train/released --out bundles/released

bundles/candidate/manifest.json: runs/train/candidate/log.jsonl
	rm -rf bundles/candidate
	$(BIN)/trainer export runs/train/candidate --out bundles/candidate

bundles/candidate-zh/manifest.json: runs/train/candidate_zh/log.jsonl
	rm -rf bundles/candidate-zh
	$(BIN)/trainer export runs/train/candidate_zh --out bundles/candidate-zh

# The planted fault: the same weights with a short attention window lose what was said turns ago.
bundles/regressed/manifest.json: runs/train/candidate/log.jsonl
	rm -rf bundles/regressed
	$(BIN)/trainer export runs/train/candidate --out bundles/regressed --attention-window 48

scenarios/banking/flow/intent.skops: scenarios/banking/intents.csv scenarios/banking/satisfaction.csv | $(CORE)
	$(BIN)/sandbox fit intent scenarios/banking/intents.csv --out scenarios/banking/flow
	$(BIN)/sandbox fit satisfaction scenarios/banking/satisfaction.csv --out scenarios/banking/flow
