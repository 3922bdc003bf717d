# Two commands: `make up` shows the main job, `make test` proves it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
STAMP  := $(VENV)/.gpushare-ready
# boto3's packages pin an older python-dateutil than the kubernetes client needs; they work beside it
AWS    := boto3 botocore jmespath s3transfer

.PHONY: up test check bench clean help promtool libcs controlplane kubelet

help:            ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

C_PARTS := $(wildcard isolation/placement/kernel/* isolation/lib/src/* isolation/lib/include/* isolation/simgpu/driver/*/*)

$(STAMP): pyproject.toml setup.py constraints.txt $(C_PARTS)
	@command -v gcc >/dev/null || { echo "gcc is missing: apt-get install gcc"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: set PYTHON="; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv"; exit 1; }
	@echo "setting up $(VENV) ..."
	@{ $(PIP) "pip>=25.1" && $(PIP) -e '.[all]' --group dev && $(PIP) --no-deps $(AWS); } >$(VENV)/setup.log 2>&1 \
	  || { cat $(VENV)/setup.log; echo "set-up failed; its log is above and in $(VENV)/setup.log"; exit 1; }
	@touch $@

up: $(STAMP)     ## the whole on one machine, on simulated cards, live (ARGS="--for 60")
	@$(BIN)/gpushare up $(ARGS)

check: $(STAMP)  ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

promtool:
	@bash tests/get_promtool.sh

libcs: $(STAMP)
	@bash tests/get_libcs.sh $(BIN)/python

controlplane:    ## etcd, Kubernetes and kubectl for the tests: found, else built or fetched once
	@bash tests/e2e/get_controlplane.sh || echo "not all of the control plane or kubectl: their tests will say so" >&2

test: check promtool libcs controlplane ## everything that proves the house
	timeout -k 30 2100 $(BIN)/pytest -n 2 -m 'not clock and not e2e' $(ARGS)
	timeout -k 30 3000 $(BIN)/pytest -m e2e --ignore-glob='*/test_real_kubelet_*' $(ARGS)
	timeout -k 30 600 $(BIN)/pytest -m clock $(ARGS)

kubelet: $(STAMP) controlplane ## the node agent under a real kubelet and containerd (root; not part of test)
	bash tests/realkubelet/get.sh
	timeout -k 30 1800 $(BIN)/pytest -m e2e tests/e2e -k real_kubelet $(ARGS)

bench: $(STAMP)  ## packing and speed against the published figures
	$(BIN)/python benchmarks/placement.py $(ARGS)

clean:           ## forget everything built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find isolation -name '*.so' -delete -o -name '*.so.1' -delete
