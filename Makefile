# Everything runs in .venv, which is made on first use; only Python >= 3.11 and make must be there.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo chromium coverage mutation test test-slow test-latency test-all gpu check style types imports format constraints catalogue docs dist clean

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY)  ## the main job on real data: train, convert, verify, reload, fine-tune
	$(BIN)/tcnn demo

# The headless shell first: without a browser's windows and bars a page takes a third of the time.
chromium:  ## Debian's Chromium for the dashboard's tests, where it is or can be installed; otherwise they skip, and say so
	@command -v chromium-headless-shell >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		timeout 300 sh -c 'apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=10 update && \
		for package in chromium-headless-shell chromium; do \
		DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install $$package fonts-dejavu-core && break; \
		done' >/dev/null 2>&1; } || command -v chromium >/dev/null || \
		echo "NOT TESTED: the dashboard, for lack of chromium; install it and run this again"

# Without compiled files in __pycache__ every process would compile the tests and the packages anew.
test test-slow test-latency coverage: export PYTHONDONTWRITEBYTECODE :=

# One thread per process: several test processes are faster than one that computes with all cores. How many there are, see
# `pytest_xdist_auto_num_workers` in tests/conftest.py.
# What fails is tried a second time, for one race that a busy machine loses says nothing of the other thousands; the summary
# names it as RERUN, and it is to be hunted, as with `make test-latency`.
# In the files' order: sorted by their number of tests, those with many processes would all come last, together.
test: $(READY) chromium  ## the tests
	OMP_NUM_THREADS=1 $(BIN)/pytest --reruns 1 -n auto --dist loadscope --no-loadscope-reorder

test-slow: $(READY) chromium  ## what takes too long for CI: whole zoos, chaos, clean installations, other projects' suites
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow -n auto --dist loadscope --no-loadscope-reorder

test-latency: $(READY) chromium  ## the dashboard's tests on a slow network: every answer late, by up to LATENCY milliseconds
	TCNN_TEST_LATENCY=$(LATENCY) OMP_NUM_THREADS=1 $(BIN)/pytest tests/dashboard -n auto --dist loadscope --no-loadscope-reorder
LATENCY := 1500

test-all: test test-slow  ## both

coverage: $(READY) chromium  ## lines and branches that the tests run; fills docs/mutation.md
	rm -f .coverage .coverage.*
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -n auto --dist loadscope --no-loadscope-reorder
	$(BIN)/coverage combine --quiet
	mkdir -p build && $(BIN)/coverage json --quiet -o build/coverage.json
	$(BIN)/python benchmarks/mutation_page.py --coverage build/coverage.json

mutation: $(READY)  ## do the tests notice a fault? a sample of mutants (an hour); fills docs/mutation.md
	$(BIN)/python benchmarks/mutation.py --json benchmarks/results/mutation.json
	$(BIN)/python benchmarks/mutation_page.py

# With .venv where there is one; else with a Python that has what it takes, as machines with a GPU and no network do; only
# then is .venv made.
DEVICE := cuda
gpu:  ## on a GPU: its tests, and what the layer and networks cost there; DEVICE=cpu for a dry run, OUT=dir for the results
	@if test -e $(READY); then python=$(BIN)/python; \
	elif $(PYTHON) -m benchmarks.gpu --can-run; then python=$(PYTHON); \
	else $(MAKE) $(READY) && python=$(BIN)/python || exit 2; fi; \
	$$python -m benchmarks.gpu --device $(DEVICE) $(if $(OUT),--out $(OUT))

# Side by side, and every fault at once. mypy keeps what it knows in .mypy_cache and looks at what has changed since; only
# where there is none yet two processes share the minute that everything takes.
check: $(READY)  ## style, types, import rules, in seconds
	@$(MAKE) --no-print-directory --keep-going --jobs=3 --output-sync=target style types imports

style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Workers that a busy machine does not start in time end mypy with 2, which it is not for faults in types: then without.
types:
	$(BIN)/mypy $(if $(wildcard .mypy_cache),,--num-workers 2) || { test $$? = 2 && $(BIN)/mypy; }

imports:
	$(BIN)/lint-imports

format: $(READY)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: $(READY)  ## pin today's versions of everything
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --upgrade --no-header --no-annotate \
		--no-emit-index-url --output-file constraints.txt

catalogue: $(READY)  ## describe every timm model again
	$(BIN)/python -m tcnn.conversion.describe

# With packages that the tests do not need. Every warning is an error: a link that leads nowhere, a docstring that is not read.
docs: .venv/.docs  ## the documentation as a site in build/site, its links checked
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --builder dirhtml --conf-dir docs/site . build/site
	@echo "built: $(PYTHON) -m http.server --bind 127.0.0.1 --directory build/site"

.venv/.docs: $(READY)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[docs]'
	touch $@

# The wheel must hold all packages, the catalogue, pages and migrations, and no test; `deploy/install_test.py` runs what is in it.
dist: $(READY)  ## wheel and sdist in dist/, looked through
	rm -rf dist build
	$(BIN)/uv build --quiet
	$(BIN)/python deploy/wheel_contents.py dist

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || echo "installing into .venv, once: torch with its CUDA libraries is some 5 GB, which takes minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]' --compile-bytecode
	$(BIN)/python -m compileall -q -j 0 tcnn tcnn_jobs tcnn_api benchmarks  # or every process of the first tests would
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --collect-only -qq >/dev/null || true  # for the same reason: compiles the tests
	touch $@
	@echo "installed"

clean:  ## remove what was made, .venv too
	rm -rf .venv build dist *.egg-info
