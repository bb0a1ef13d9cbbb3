# Each verb first sets up what it needs in .venv. Options pass through: make leaderboard ARGS="--suite Core-60x4"
PYTHON ?= $(shell python3.11 -c "print('python3.11')" 2>/dev/null || echo python3)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet -c constraints.txt
BUILT := pyproject.toml constraints.txt setup.py shard_gym/core/core.c

.PHONY: leaderboard entries test test-ray lint docs release

leaderboard: .venv/core.stamp
	$(BIN)/python -m benchmarks.leaderboard --page $(ARGS)

entries: .venv/core.stamp
	$(BIN)/shard-gym validate benchmarks/results/entries --strict

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not cuda and not slow" $(ARGS)

test-ray: .venv-ray/ray.stamp
	.venv-ray/bin/python -m pytest tests/ray -m "not slow" $(ARGS)

lint: .venv/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: .venv-docs/stamp
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict $(ARGS)

release: .venv/dev.stamp
	$(BIN)/python -m benchmarks.release $(ARGS)

# The stamp is the last line of its recipe, so an install that broke off is done again.
# Trained policies need torch. It comes before the rest, so that nothing else decides its version or build.
# torchrec, which is ranked too, comes without what it asks for: fbgemm-gpu, which would overwrite fbgemm-gpu-cpu.
.venv/core.stamp: $(BUILT)
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	$(INSTALL) -e ".[exact,cpu]"
	$(INSTALL) --no-deps torchrec
	touch $@

.venv/dev.stamp: $(BUILT)
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	$(INSTALL) -e ".[dev]"
	$(INSTALL) --no-deps torchrec
	touch $@

# RLlib pins a gymnasium of its own, so Ray's tests have an environment of their own.
.venv-ray/ray.stamp: $(BUILT) constraints-ray.txt
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet -c constraints-ray.txt torch
	.venv-ray/bin/python -m pip install --quiet -c constraints-ray.txt -e ".[cpu,ray]" "ray[rllib]" hypothesis pytest
	touch $@

# Docstrings are read, not imported, so the documentation needs the packages of the extra alone.
DOCS := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])
.venv-docs/stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -c '$(DOCS)' | xargs .venv-docs/bin/python -m pip install --quiet -c constraints.txt
	touch $@
