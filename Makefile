# Two commands: `make run` shows what the project does, `make test` checks all of it.
# Both make their own .venv. TORCH may name another build: make test TORCH="torch==2.9.0"
PYTHON ?= python3
TORCH ?= torch==2.13.0
OLDEST := torch==2.8.0
BIN := .venv/bin

.PHONY: run test test-fast test-oldest browser lint clean lock audit trust

run: .venv/installed
	$(BIN)/python -m beamtree.cli.demo

test: .venv/installed browser lint
	$(BIN)/python -m pytest -n 2 --cov=beamtree --cov-report=term --cov-fail-under=95

# While you work: the engine, trees, layers, models and training in short, in less than two minutes.
test-fast: .venv/installed
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu" $(addprefix tests/,engine trees parts nn saving \
	    zoo/test_zoo.py classifier/test_model_folder.py training/test_fit.py package/test_rooms.py package/test_old_files.py)

# What depends most on PyTorch's version, on the oldest that pyproject.toml admits, in a .venv of its own.
test-oldest: .venv-oldest/installed
	.venv-oldest/bin/python -m pytest -n 2 $(foreach name,pytorch/test_compile pytorch/test_export pytorch/test_export_models \
	    engine/test_recursion zoo/test_golden nn/test_encoder nn/test_contextualizer training/test_resume,tests/$(name).py)

# The explorer is tested in a real browser, which is installed where it is missing and we may.
BROWSER := chromium chromium-driver fonts-dejavu-core
browser:
	@{ command -v chromium || command -v google-chrome; } >/dev/null && command -v chromedriver >/dev/null \
	|| { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(BROWSER); } \
	|| { echo "make test needs a browser: install chromium and chromedriver ($(BROWSER) on Debian)" >&2; exit 1; }
	@test -e build/axe/node_modules/axe-core || npm install --silent --prefix build/axe axe-core@4.14.0 \
	|| echo "axe-core could not be installed by npm: its tests are skipped" >&2

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Everything but torch comes in the version and with the hash that requirements.lock names.
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
.venv/installed .venv-oldest/installed: %/installed: pyproject.toml requirements.lock
	@echo "Installing into $*, which takes some minutes the first time."
	$(PYTHON) -m venv $*
	$*/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$*/bin/pip install --quiet --disable-pip-version-check $(if $(findstring oldest,$*),$(OLDEST),$(TORCH))
	$*/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# After a change to the dependencies in pyproject.toml; LOCK=--upgrade takes the newest versions.
lock:
	$(PIP_INSTALL) uv
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/lock.py $(LOCK)

audit:
	$(PIP_INSTALL) pip-audit
	$(BIN)/pip-audit --disable-pip --require-hashes -r requirements.lock

# Every check of docs/reliability.md in full; `make test` runs them in short.
trust: .venv/installed
	$(BIN)/python -m tools.trust all

clean:
	rm -rf .venv .venv-oldest dist build
