# Two commands do all the set-up: `make up` and `make test`. The rest is listed by `make help`.
export HPKV_HOME ?= $(CURDIR)/.hpkv
PYTHON ?= python3
REQUIREMENTS := deploy/requirements
DEV := $(HPKV_HOME)/envs/dev
GATEWAY := $(HPKV_HOME)/envs/gateway

.DEFAULT_GOAL := help
.PHONY: help lint format test test-fast soak debian lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# An environment is whole when its stamp names the lock it was made from: a changed lock remakes it.
$(DEV)/.made: $(REQUIREMENTS)/dev.txt
	@deploy/make-env $(DEV) $(PYTHON) $(REQUIREMENTS)/dev.txt

$(GATEWAY)/.made: $(REQUIREMENTS)/gateway.txt
	@deploy/make-env $(GATEWAY) $(PYTHON) $(REQUIREMENTS)/gateway.txt

lint: $(DEV)/.made  ## ruff, mypy --strict, import contracts
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/ruff check .
	$(DEV)/bin/mypy
	$(DEV)/bin/lint-imports --no-cache

format: $(DEV)/.made  ## rewrite the code in ruff's format
	$(DEV)/bin/ruff format .
	$(DEV)/bin/ruff check --fix .

# Two processes; the tests of a file stay together, for the servers and folders that they share.
IN_TWO := --numprocesses=2 --dist=loadfile

test: $(DEV)/.made debian engine-vllm engine-sglang  ## all tests, those on real engines included
	$(DEV)/bin/pytest $(IN_TWO) -m "not engine and not soak"
	$(DEV)/bin/pytest --durations=30 -m "engine and not soak"

test-fast: $(DEV)/.made debian  ## the tests that need no engine, but for the long ones
	$(DEV)/bin/pytest $(IN_TWO) -m "not engine and not slow and not soak"

soak: $(DEV)/.made engine-vllm debian  ## the long runs
	$(DEV)/bin/pytest -m soak --timeout=3600

# A test checks compose.yaml with Debian's docker-compose; others mount with FUSE;
# Mooncake's client is linked with the libraries.
debian:
	@deploy/apt-install docker-compose
	@deploy/apt-install fusermount3 fuse3
	@deploy/apt-install libcurl.so.4 libcurl4
	@deploy/apt-install libibverbs.so.1 libibverbs1
	@deploy/apt-install libnuma.so.1 libnuma1

bench-%: $(DEV)/.made  ## run a benchmark: a table, and benchmarks/results/NAME.json (bench-main: ENGINE=sglang)
	@$(DEV)/bin/python -m benchmarks.$* $(if $(ENGINE),--engine $(ENGINE))

PIP_COMPILE := pip-compile --quiet --generate-hashes --strip-extras --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host
lock:  ## resolve the locks anew (needs pip-tools on the path)
	cd $(REQUIREMENTS) && $(PIP_COMPILE) ../../pyproject.toml -o gateway.txt
	cd $(REQUIREMENTS) && $(PIP_COMPILE) dev.in ../../pyproject.toml -o dev.txt

clean:  ## remove the environments, models and logs made here
	rm -rf $(HPKV_HOME)

# ---- a fleet on this machine ----
.PHONY: up down engine-vllm engine-sglang sglang-tools lock-vllm lock-sglang
up: export HPKV_UP_MODEL := $(or $(MODEL),$(HPKV_UP_MODEL))
up: export HPKV_UP_ENGINE := $(or $(ENGINE),$(HPKV_UP_ENGINE))
up: export HPKV_UP_ENGINES := $(or $(ENGINES),$(HPKV_UP_ENGINES))
up: export HPKV_UP_PORT := $(or $(PORT),$(HPKV_UP_PORT))
up: export HPKV_UP_ENGINE_PORT := $(or $(ENGINE_PORT),$(HPKV_UP_ENGINE_PORT))
up: export HPKV_UP_REPLICAS := $(or $(REPLICAS),$(HPKV_UP_REPLICAS))
up: export HPKV_UP_TIERS := $(or $(TIERS),$(HPKV_UP_TIERS))
up: export HPKV_UP_ENGINE_ARGS := $(or $(ENGINE_ARGS),$(HPKV_UP_ENGINE_ARGS))
up: $(GATEWAY)/.made $(if $(filter sglang mixed,$(ENGINE)),sglang-tools)
up:  ## two replicas and a gateway (ENGINE=vllm|sglang|mixed MODEL= ENGINES= PORT= ENGINE_PORT= REPLICAS= TIERS= ENGINE_ARGS=)
	@$(GATEWAY)/bin/hpkv up

# Not made anew for this: the running gateway lives in that environment.
down:  ## end what `make up` has started, and nothing else
	@if [ -x $(GATEWAY)/bin/hpkv ]; then $(GATEWAY)/bin/hpkv down; else echo "nothing is running"; fi

engine-vllm: $(GATEWAY)/.made  ## vLLM's CPU environment and the small model
	@$(GATEWAY)/bin/hpkv up --prepare-only

engine-sglang: $(GATEWAY)/.made sglang-tools  ## SGLang's CPU environment and the small model
	@$(GATEWAY)/bin/hpkv up --prepare-only --engine sglang

# SGLang compiles its page hashes when it first needs them.
sglang-tools:
	@deploy/apt-install g++
	@deploy/apt-install openssl/sha.h libssl-dev

lock-vllm:  ## resolve vLLM's CPU environment anew (needs pip-tools on the path)
	@deploy/lock-vllm

lock-sglang:  ## resolve SGLang's CPU environment anew (needs pip-tools on the path)
	@deploy/lock-sglang
