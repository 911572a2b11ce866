# Everything runs in .venv, which is made from nothing: Python 3.11, make and a C compiler are enough.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# The interpreter that makes .venv; the first of these that is new enough and has venv.
PYTHON ?=
WORKERS ?= 3

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export PIP_NO_INPUT := 1
export PIP_NO_CACHE_DIR := 1

RUN := .venv/bin/python -m
READY := .venv/ready

# Scripts and the editable install hold this directory's path: a copied or moved .venv is remade.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
$(shell rm -f $(READY))
endif

.PHONY: help env test soak demo check lock clean

help:
	@echo 'make env    make .venv with everything pinned in requirements.lock'
	@echo 'make test   run the suite: every question, and of each campaign a sample'
	@echo 'make soak   run the campaigns as a whole, for hours; PART=sim,chaos runs some of them,'
	@echo '            BUDGET=10 ends each after so many minutes, SEED=4711 repeats a soak'
	@echo 'make demo   run the main job: write rows, kill -9 everybody, prove that log and table agree;'
	@echo '            with CHAOS=1 you are the one who kills'
	@echo 'make check  formatting, lint, types, rooms'
	@echo 'make lock   pin the newest versions that pyproject.toml allows'
	@echo 'make clean  remove what these commands made'

env: $(READY)
	@:

$(READY): requirements.lock pyproject.toml lab/pyproject.toml src/headrace/__init__.py
	@if [ -e $@ ]; then exit 0; fi; $(find-python); "$$python" -m venv --clear .venv
	@rm -f $@
	@echo 'env: installing requirements.lock into .venv'
	@$(RUN) pip install -qq --no-deps -r requirements.lock
	@$(RUN) pip install -qq --no-deps --no-build-isolation -e . -e lab
	@$(RUN) pip check
	@printf '%s\n' '$(CURDIR)' > $@

test: env
	$(RUN) pytest -n $(WORKERS) --dist worksteal

soak: env
	$(RUN) headrace_lab.harness.soak $(if $(PART),--part $(PART)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(SEED),--seed $(SEED))

demo: env
	.venv/bin/headrace demo --spark

check: env
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) pytest -q tests/test_tidy.py

lock:
	@$(find-python); "$$python" -m venv --clear .venv-lock
	@.venv-lock/bin/pip install -qq '.[dev]'
	@{ echo '# Everything .venv holds, at the version the tests ran with. Made by `make lock`.'; \
	   .venv-lock/bin/pip freeze --exclude headrace --exclude headrace-lab; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock
	@rm -rf .venv-lock

clean:
	rm -rf .venv .venv-lock .bench-* .demo-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests lab -name __pycache__ -type d -prune -exec rm -rf {} +

# Sets $python in the shell of a recipe, or ends it with the reason.
define find-python
python=; \
for candidate in $(if $(PYTHON),'$(PYTHON)',python3.11 python3); do \
  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
  then python="$$candidate"; break; fi; \
done; \
if [ -z "$$python" ]; then \
  echo 'env: no Python 3.11 or newer with the venv module: looked for $(or $(PYTHON),python3.11 and python3).' >&2; \
  echo 'env: install python3.11 and python3.11-venv, or name one: make env PYTHON=/path/to/python3.11' >&2; \
  exit 1; \
fi
endef
