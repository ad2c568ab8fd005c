# First use creates .venv from the hashed lock; nothing is installed outside it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
WORKERS ?= 2
SEEDS ?= 100
FRAMES ?= 100000
PULSAR ?= 4.2.4
FIRST ?= 1
REPORTS := build/reports
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header pyproject.toml
CODE   := tracker bridge spark_jobs tests benchmarks tools deploy

.PHONY: test-failed test-on differential simulate fuzz mutants faults help demo test fast fast-tests coverage unit lint style types format bench bench-index bench-rebuild bench-operators bench-clients crash rebuild-long race-long clients interleavings soak lowest installed-size proto lock clean
help:            ## show the targets
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v=sys.version_info; sys.exit(0 if v >= (3, 11) else "Python >= 3.11 is needed, %s is %d.%d" % (sys.executable, v[0], v[1]))'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked requirements into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)   ## a real Pulsar, the bridge in front, delayed messages on time
	@$(BIN)/delay-bridge demo $(ARGS)

test: $(STAMP)   ## everything a change must pass, in processes side by side: much of it is waiting
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --junitxml=$(REPORTS)/test.xml $(ARGS)

test-failed: $(STAMP) ## what failed in the last run, once more and alone
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --junitxml=$(REPORTS)/test-failed.xml $(ARGS)

fast: $(STAMP)   ## what can be known within a minute and without Java: style, types, unit and model tests
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=target style types fast-tests fast-seeds

fast-tests: $(STAMP)
	# More workers than processors: many of these tests wait for a disk.
	DELAY_BRIDGE_FAST=1 $(BIN)/python -m pytest -n 4 --dist worksteal -m "not slow and not broker" --junitxml=$(REPORTS)/fast.xml tests/model tests/unit $(ARGS)

fast-seeds: $(STAMP)
	$(BIN)/python -m tests.simulation --seeds 100 --seconds 30 --faults 8 --messages 60

coverage: $(STAMP) ## the lines of bridge and tracker that no unit, model or simulated test reaches; into build/reports
	@rm -rf build/coverage && mkdir -p build/coverage $(REPORTS)
	$(BIN)/coverage run -m pytest -q -m "not broker" tests/unit tests/model $(ARGS); passed=$$?; \
	$(BIN)/coverage run -m tests.simulation --seeds 100 --seconds 60 --faults 14 --messages 150 || passed=1; \
	$(BIN)/coverage combine --quiet; \
	$(BIN)/coverage html --quiet --directory=$(REPORTS)/coverage; \
	$(BIN)/coverage report --show-missing --skip-covered --sort=-miss >$(REPORTS)/coverage.txt; \
	tail -n 3 $(REPORTS)/coverage.txt; \
	echo "line by line: $(REPORTS)/coverage.txt, $(REPORTS)/coverage/index.html"; exit $$passed

unit: $(STAMP)   ## the tests that need no broker
	$(BIN)/python -m pytest -m "not broker" $(ARGS)

crash: $(STAMP)  ## the long form of the tests that kill the index at its write boundaries
	DELAY_BRIDGE_LONG=1 $(BIN)/python -m pytest tests/crash $(ARGS)

rebuild-long: $(STAMP) ## lost indexes with many messages, on one and on several processes; jobs, bridges and brokers killed
	DELAY_BRIDGE_LONG=1 $(BIN)/python -m pytest tests/broker/test_rebuild.py $(ARGS)

race-long: $(STAMP) ## ten thousand cancels around the due time
	DELAY_BRIDGE_LONG=1 $(BIN)/python -m pytest tests/broker/test_steering.py -k races $(ARGS)

clients: $(STAMP) ## the official Python, Java and Go clients in several versions, at the broker and through the bridge; plain, TLS, tokens
	DELAY_BRIDGE_LONG=1 $(BIN)/python -m pytest -rs --durations=0 tests/broker/test_client_matrix.py $(ARGS)

interleavings: $(STAMP) ## a hundred random orders of seeks, resets, unloads, deletions and ends of two bridges and their broker
	DELAY_BRIDGE_LONG=1 $(BIN)/python -m pytest -s tests/broker/test_interleavings.py $(ARGS)

differential: $(STAMP) ## random histories, each on a broker and through the bridge: SEEDS=100 FIRST=1
	$(BIN)/python -m tests.differential_run --seeds $(SEEDS) --first $(FIRST) $(ARGS)

simulate: $(STAMP) ## whole bridges in virtual time, ten minutes and two dozen faults a seed: SEEDS=100 FIRST=1
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) $(ARGS)

faults: $(STAMP) ## a hundred random faults in a row under load, on a real Pulsar with two bridges: SEEDS=5 FIRST=1
	$(BIN)/python -m tests.fault_run --faults 100 --seed $$(seq $(FIRST) $$(($(FIRST) + $(if $(filter file,$(origin SEEDS)),5,$(SEEDS)) - 1))) $(ARGS)

test-on: $(STAMP) ## the broker's tests on another Pulsar, assembled from its published jars (needs Maven): PULSAR=4.2.4
	$(BIN)/python -m tools.assemble_pulsar $(PULSAR) build/pulsar-$(PULSAR)
	DELAY_BRIDGE_PULSAR_HOME=$(CURDIR)/build/pulsar-$(PULSAR) $(BIN)/python -m pytest -m broker --junitxml=$(REPORTS)/broker-$(PULSAR).xml tests/broker $(ARGS)

fuzz: $(STAMP)   ## clients that lie, in virtual time, beside neighbours whose account has to be right: FRAMES=100000
	$(BIN)/python -m tests.simulation.fuzz --frames $(FRAMES) $(ARGS)

mutants: $(STAMP) ## defences taken away one by one: each has to be noticed within 200 seeds
	$(BIN)/python -m tests.simulation.mutants $(ARGS)

lint: style types ## style and types

style: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP) ## rewrite into the house style
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: bench-index $(STAMP)  ## all benchmarks: the index, then side by side with the broker's own tracker
	$(BIN)/python -m benchmarks $(ARGS)

bench-index: $(STAMP) ## the index alone at 100 million entries; 16 GB of disk, results into benchmarks/results
	$(BIN)/python -m benchmarks.index $(INDEX_ARGS)

bench-rebuild: $(STAMP) ## the rebuild by Spark beside the broker's own, and live traffic beside it; into benchmarks/results
	$(BIN)/python -m benchmarks.rebuild $(REBUILD_ARGS)
	$(BIN)/python -m benchmarks.live_rebuild $(LIVE_ARGS)

bench-clients: $(STAMP) ## Key_Shared beside Shared, and TLS beside none, through the bridge; into benchmarks/results
	$(BIN)/python -m benchmarks.key_shared $(CLIENTS_ARGS)
	$(BIN)/python -m benchmarks.tls $(CLIENTS_ARGS)

bench-operators: $(STAMP) ## pages, REST and scrapes with 100 million pending and 500 topics, and beside live traffic; into benchmarks/results
	$(BIN)/python -m benchmarks.operators $(OPERATORS_ARGS)

lowest: $(STAMP) ## the wheel and its tests with every dependency at the lowest version that pyproject.toml declares
	$(BIN)/python -m tools.check_lowest

installed-size: $(STAMP) ## what the plain package takes on disk, and that it serves and names the extras that others need
	$(BIN)/python -m tools.installed_size

proto: $(STAMP)  ## regenerate the protocol modules from pulsar.proto
	$(BIN)/python -m tools.generate_protocol

lock: $(STAMP)   ## resolve pyproject.toml anew into the hashed locks: what `serve` needs, with all extras, for development
	$(COMPILE) -o requirements.lock
	$(COMPILE) --all-extras -o requirements-all.lock
	$(COMPILE) --all-extras --group dev -o requirements-dev.lock

clean:           ## remove what the targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
