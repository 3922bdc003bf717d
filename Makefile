# SPDX-License-Identifier: Apache-2.0
# `make up` runs the full stack, `make test` runs the tests, `make help` lists all targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
BUDGET ?= 1
# boto3's packages pin an older python-dateutil than the kubernetes client needs; they work beside it
AWS    := boto3 botocore jmespath s3transfer
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
LOGS   := build/setup
STEP   := bash tests/step.sh
# They are written last: a set-up that was interrupted before is not taken for a whole one
MADE   := $(VENV)/.gpushare-k8s-made
LIGHT  := $(VENV)/.gpushare-light
READY  := $(VENV)/.gpushare-ready

.PHONY: help up test test-all unit lint check one stage kubelet keda operators cuda-programs gpu tools controlplane bench version set-version dist images clean

help:            ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

C_PARTS := $(wildcard isolation/placement/native/* isolation/lib/src/* isolation/lib/include/* isolation/simgpu/driver/*/* isolation/simgpu/runtime/* isolation/node/guard/*.[ch])

$(MADE):
	@command -v gcc >/dev/null || { echo "gcc is missing: run apt-get install gcc"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is required: set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "the Python module venv is missing: run apt-get install python3-venv"; exit 1; }
	@rm -rf $(VENV) gpushare.egg-info # the second: of an environment from before the distribution had its name
	@$(STEP) "virtual environment in $(VENV)" $(LOGS)/venv.log $(PYTHON) -m venv $(VENV)
	@touch $@

# All that `make up` and the commands of one machine need; a whole set-up has it too
$(LIGHT): $(MADE) pyproject.toml setup.py constraints.txt $(C_PARTS)
	@$(STEP) "Python packages and C parts, 150 MB" $(LOGS)/light.log $(PIP) -e ".[up,exporter,run]"
	@touch $@

$(READY): $(MADE) pyproject.toml setup.py constraints.txt $(C_PARTS)
	@$(STEP) "Python packages and C parts, 850 MB" $(LOGS)/packages.log sh -c \
	  '$(PIP) "pip>=25.1" && $(PIP) -e ".[all]" --group dev && $(PIP) --no-deps $(AWS)'
	@touch $@

up: $(if $(wildcard $(READY)),$(READY),$(LIGHT)) ## run the full stack on this machine, with simulated cards (ARGS="--for 60 --port 9500": for 60 seconds, with other ports)
	@$(BIN)/gpushare up $(ARGS)

test: tools      ## run all tests that a change must pass; 10 minutes on 2 cores, 15 the first time
	@$(BIN)/python tests/stages.py test

test-all: tools  ## run all tests, including long random tests, a real kubelet and a real KEDA, without programs of others; 35 minutes, plus 25 for the first build (BUDGET=5 runs random tests 5 times as long, DONE=test skips what `make test` runs)
	@$(BIN)/python tests/stages.py all --budget $(BUDGET) $(if $(DONE),--without $(DONE))

unit: $(READY)   ## run only the unit tests: no other programs needed, random tests a quarter as long; 50 seconds
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder -m 'not slow and not e2e and not processes' --budget 0.25 tests/unit $(ARGS)

lint: $(READY)   ## run ruff, mypy --strict and the import contracts; one minute, seconds when repeated
	@$(BIN)/python tests/stages.py lint

check: lint      ## run lint, and build and test the C parts with warnings as errors and sanitizers; 2 minutes
	@$(BIN)/pytest -q -n 2 -m sanitizer tests/abi tests/native tests/simgpu $(ARGS)

one: $(READY)    ## run one test or file: make one T=tests/unit/placement/test_engine.py::test_name (ARGS are options of pytest)
	@test -n "$(T)" || { echo "T is not set: write make one T=path[::name]"; exit 2; }
	@$(BIN)/pytest '$(T)' $(ARGS)

stage: tools     ## run one test stage: make stage S=lint|tests|cluster|slow-tests|slow-cluster|kubelet|keda|operators|cuda-programs
	@$(BIN)/python tests/stages.py $(S) --budget $(BUDGET)

kubelet: tools   ## test the node agent and the quick start under a real kubelet and containerd, as root; 17 minutes, plus 11 for the first build
	@$(BIN)/python tests/stages.py kubelet

keda: tools      ## follow docs/keda.md with the real KEDA, as root; 5 minutes, plus 15 for the first build
	@$(BIN)/python tests/stages.py keda

operators: tools ## install for the real cert-manager and the real Prometheus operator; 4 minutes, plus 5 for the first build
	@$(BIN)/python tests/stages.py operators

cuda-programs: $(READY) ## run programs of others (PyTorch, numba, nvidia-smi, ...) on simulated cards, with and without the library; 15 minutes, plus 15 to fetch 10 GiB once
	@$(BIN)/python tests/stages.py cuda-programs

gpu:             ## ask a real card what simulated ones cannot tell; no network, 20 minutes at most (PYTHON=python that has PyTorch)
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) tests/gpu/first_hour.py --python $(PYTHON) $(ARGS)

tools: $(READY)  ## find or fetch what the tests need besides Python: Prometheus, other C libraries, a control plane, helm, jsonnet
	@$(STEP) "Prometheus, Alertmanager, openssl, iproute2" $(LOGS)/prometheus.log bash tests/get_promtool.sh || true
	@$(STEP) "other C libraries" $(LOGS)/libcs.log bash tests/get_libcs.sh $(BIN)/python || true
	@$(STEP) "control plane: etcd, Kubernetes, kubectl (5 minutes, once)" $(LOGS)/controlplane.log bash tests/e2e/get_controlplane.sh || true
	@$(STEP) "jsonnet (half a minute, once)" $(LOGS)/jsonnet.log bash tests/get_jsonnet.sh || true
	@$(STEP) "helm (2 minutes, once)" $(LOGS)/helm.log bash tests/e2e/get_helm.sh || true

controlplane:    ## find, build or fetch etcd, Kubernetes and kubectl for the tests; 5 minutes the first time
	@$(STEP) "control plane: etcd, Kubernetes, kubectl" $(LOGS)/controlplane.log bash tests/e2e/get_controlplane.sh

bench: $(READY)  ## measure packing and speed, and compare them with published results
	@$(BIN)/python -m benchmarks.placement $(ARGS)

version:         ## print the version, which pyproject.toml has
	@sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml

set-version:     ## write a new version everywhere it stands: make set-version V=1.2.3 (CONTRIBUTING.md says what comes next)
	@echo "$(V)" | grep -Eqx '[0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?' || { echo "V is no version: write make set-version V=1.2.3 or V=1.2.3rc1"; exit 2; }
	@sed -i 's/^version = ".*"$$/version = "$(V)"/' pyproject.toml
	@sed -i 's/newTag: ".*"/newTag: "$(V)"/' manifests/images/kustomization.yaml
	@sed -i 's/^appVersion: .*/appVersion: $(V)/' charts/gpushare/Chart.yaml
	@sed -i "s/^version: .*/version: $$(echo $(V) | sed -E 's/(a|b|rc)([0-9]+)$$/-\1.\2/')/" charts/gpushare/Chart.yaml # as SemVer has it
	@grep -q '^## \[$(V)\]' CHANGELOG.md || sed -i 's/^## \[Unreleased\]$$/&\n\n## [$(V)] - unreleased/' CHANGELOG.md
	@sed -i "s/^## \[$(V)\] - unreleased\$$/## [$(V)] - $$(date -u +%F)/" CHANGELOG.md

dist: $(READY)   ## build what a tagged release consists of: sdist, wheel, chart, SBOM, checksums (ARGS=--local keeps the wheel's linux tag)
	@PYTHON=$(BIN)/python bash hack/release.sh $(ARGS)

images:          ## build the images with docker or podman: make images REGISTRY=registry.example.com/team PLATFORMS=linux/amd64,linux/arm64 ARGS=--push (BASE=IMAGE: a mirror's base; all settings: bash images/build.sh --help)
	@bash images/build.sh $(ARGS)

clean:           ## remove the virtual environment and all build output
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find isolation -name '*.so' -delete -o -name '*.so.1*' -delete -o -name gpushare-guard -delete
