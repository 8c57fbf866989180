# `make demo` and `make test` each set up what they need, into .venv, and run.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# The tests start about a hundred server processes; without bytecode files, each of them compiles 1,200 modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo cluster-demo test test-fast test-slow compile-tests lint-all test-pulsar-admin test-java test-registry setup-cluster test-cluster setup-s3 test-s3 setup-hdfs test-hdfs test-prometheus test-idp setup-peers lint format docs bench soak proto lock clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up, then run the main job: flights through a store, Spark and retention (2 to 10 minutes, with 3 GiB of disk; the first setup 5 more)"
	@echo "make test    set up, then lint, type-check and run the tests (about 17 minutes on two cores; make soak runs the long ones)"
	@echo "make test-slow    the tests that take half a minute or more each"
	@echo "make test-fast    the tests that need neither Spark nor a server process"
	@echo "make test-pulsar-admin  run Pulsar's own admin tools against the HTTP port (JDK, Maven, 82 MB of jars)"
	@echo "make test-s3 run the tests of tier 2 against two real S3 servers (Swift; Versity's, built with Go in minutes)"
	@echo "make test-java  run Pravega's own Java client against a server (JDK, Maven, 100 MB of jars)"
	@echo "make test-prometheus  let a real Prometheus scrape a server and evaluate the alerts (Debian's package, 100 MB)"
	@echo "make test-registry  run the tests of schema registries against Apicurio Registry (Maven, 160 MB)"
	@echo "make test-cluster  run the tests of clusters against real ZooKeeper servers and bookies (37 MB of jars)"
	@echo "make setup-cluster  only fetch those"
	@echo "make cluster-demo  the demo on a cluster of them, with chunks in HDFS: a store, a bookie and a controller are killed (3 to 10 minutes)"
	@echo "make test-idp  test tokens, new keys and an outage of a real Keycloak (JDK, Maven, 147 MB; its first start takes minutes)"
	@echo "make setup-s3  only fetch and build those two servers"
	@echo "make test-hdfs  run the tests of tier 2 against a real HDFS (JDK, Maven, 65 MB of jars)"
	@echo "make setup-hdfs  only fetch those"
	@echo "make setup-peers  fetch Kafka, Pravega, NATS, Redis and their clients, for make bench to measure beside ours (1 GB, ten minutes)"
	@echo "make setup   only set up: .venv from the hash-locked requirements"
	@echo "make soak    the long forms of all that shows reliability, one line for each promise (about four hours)"
	@echo "make docs    generate docs/formats/metadata.md, and build the documentation site into build/site"
	@echo "make lint | format | bench | proto | lock | clean"

setup:
	@if [ -z "$(PYTHON)" ]; then echo "setup: no Python found; Python 3.11 or later is needed" >&2; exit 1; fi
	@$(PYTHON) scripts/setup.py

demo: setup
	@$(BIN)/penstock demo --data ./data

cluster-demo: setup-cluster setup-hdfs
	@$(BIN)/python scripts/cluster_demo.py --data ./data --hdfs

# Four processes also on two cores: of three, one waited for servers that it had started.
test: setup
	@$(MAKE) --no-print-directory -j 2 lint-all compile-tests try-cluster
	$(BIN)/python -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder

# Once, beside the lint: else each of the four processes compiles all tests, 35 s of CPU.
compile-tests:
	@found=$$($(BIN)/python -m pytest --collect-only -qq -m "" 2>&1) || { echo "$$found" | tail -60; exit 1; }

# Without a network, the tests that need them are skipped, with the reason.
try-cluster:
	@$(BIN)/python scripts/cluster_engines.py try

test-slow: setup
	$(BIN)/python -m tests.soak --only "slow tests"

test-fast: setup
	$(BIN)/python -m pytest -q -m "not spark and not server"

test-pulsar-admin: setup
	PENSTOCK_PULSAR_ADMIN=1 $(BIN)/python -m pytest -q -m slow tests/compat/test_pulsar_admin_clients.py

test-java: setup
	$(BIN)/python -m pytest -q -m java tests/compat

test-registry: setup
	$(BIN)/python scripts/schema_registry.py

setup-cluster: setup
	@$(BIN)/python scripts/cluster_engines.py

test-cluster: setup-cluster
	$(BIN)/python -m pytest -q -m cluster tests/cluster

setup-s3: setup
	@$(BIN)/python scripts/s3_servers.py

test-s3: setup
	@$(BIN)/python scripts/s3_servers.py --all
	$(BIN)/python -m pytest -q tests/storage/test_object_chunks.py tests/storage/test_object_chunks_faults.py tests/storage/test_object_tier.py tests/storage/test_object_tier_erasure.py tests/spark/test_spark_s3.py tests/lake/test_lake_s3.py
	$(BIN)/python -m pytest -q -m slow tests/spark/test_spark_lake_s3.py

setup-hdfs: setup
	@$(BIN)/python scripts/hdfs_engine.py

test-hdfs: setup-hdfs setup-cluster
	$(BIN)/python -m pytest -q -m hdfs tests/storage
	$(BIN)/python -m pytest -q -m cluster tests/cluster/test_cluster_hdfs.py

test-prometheus: setup
	@$(BIN)/python scripts/prometheus.py
	$(BIN)/python -m pytest -q -m slow tests/app/test_prometheus.py

test-idp: setup
	@$(BIN)/python scripts/identity_provider.py
	$(BIN)/python -m pytest -q -m slow tests/app/test_identity_provider.py

setup-peers:
	@$(PYTHON) scripts/peers.py

lint: setup lint-all

lint-all:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: setup
	@$(BIN)/python -m pip install --no-cache-dir -q --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@$(BIN)/python scripts/docs.py

bench: setup
	$(BIN)/python -m bench --out bench/results.json

soak: setup
	@$(BIN)/python -m tests.soak

proto: setup
	$(BIN)/python -m penstock.net.proto.generate

lock: setup
	$(BIN)/python -m pip install --no-cache-dir -q "pip-tools>=7.4"
	$(BIN)/pip-compile -q --generate-hashes --no-emit-find-links --allow-unsafe --strip-extras -o requirements/build.txt requirements/build.in
	$(BIN)/pip-compile -q --generate-hashes --no-emit-find-links --allow-unsafe --strip-extras --extra demo --extra dev --constraint requirements/build.txt -o requirements/lock.txt pyproject.toml
	$(BIN)/pip-compile -q --generate-hashes --no-emit-find-links --allow-unsafe --strip-extras --extra docs --constraint requirements/lock.txt --constraint requirements/build.txt -o requirements/docs.txt pyproject.toml

clean:
	rm -rf .venv data build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
