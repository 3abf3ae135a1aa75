# Every target makes the environment (.venv) first, so each works as the first command in a clone.
# `make check` is exactly what CI runs.

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
READY := .venv/.ready
CODE := launchhelm syncer tests examples benchmarks docs tools
BENCHMARKS := logging idle memory reading control_point command_latency server_latency sync rescan \
  ingest live_runs checkpoint shards dashboard

.NOTPARALLEL:
.PHONY: demo test check fix format lint types examples docs wheel stress rig bench clean

# The main job: train on two processes, halve the learning rate from a server, read it back.
demo: $(READY)
	$(BIN)/python examples/demo.py

# Most tests wait for processes most of the time, so two go side by side.
test: $(READY)
	$(PYTEST) -q -n 2 --dist worksteal --durations 25

# `test` runs the examples and the tests of the docs too; `examples` and `docs` are those alone.
check: format lint types test wheel

format: $(READY)
	$(BIN)/ruff format --check $(CODE)

lint: $(READY)
	$(BIN)/ruff check $(CODE)
	$(BIN)/codespell

types: $(READY)
	$(BIN)/mypy

examples: $(READY)
	$(PYTEST) -q tests/tidy/test_examples.py

docs: $(READY)
	$(BIN)/python docs/generate.py --check
	$(PYTEST) -q tests/tidy/test_docs.py

# What was built, and nothing else, must do in an empty environment.
wheel: $(READY)
	rm -rf dist build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet --no-index --no-deps dist/*.whl
	cp examples/first_run.py build/wheel/
	cd build/wheel && LAUNCHHELM_DIR=runs bin/python first_run.py && bin/launchhelm ls --root runs

fix: $(READY)
	$(BIN)/python docs/generate.py
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

# Full counts: many processes, many kills, tens of minutes.
stress: $(READY)
	$(PYTEST) -s -m stress --timeout 3600

# Three kernels with a real NFS mount between them; needs root on Debian.
rig: $(READY)
	tests/rig/two-host-nfs.sh install
	$(PYTEST) -s -m rig --timeout 3600 tests/rig

bench: $(READY)
	@for each in $(BENCHMARKS); do echo "== $$each"; $(BIN)/python -m benchmarks.$$each || exit 1; done

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt .ci/environment
	@.ci/environment
	@touch $@
