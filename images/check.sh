#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the three images and starts in each what its pods start: by the manifests' accounts, with nothing to write to
# but /tmp, no capability and no network. Says how much each adds to the base. Needs podman or docker, no cluster and
# no card. The images stay.
#   bash images/check.sh          # on the Containerfile's base
#   bash images/check.sh BASE     # on another, or by the name that a mirror gives it
# BUILDER=docker chooses; BUILD and RUN are further options of `build` and `run`, as in BUILD="--network=host".
set -euo pipefail
cd "$(dirname "$0")/.."
builder="${BUILDER:-$(command -v podman || command -v docker)}" || { echo "podman or docker is needed" >&2; exit 1; }
base="${1:-$(sed -n 's/^ARG PYTHON=//p' images/Containerfile)}"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)"
read -ra build <<<"${BUILD:-}"
read -ra run <<<"${RUN:-}"

EVERY='
import importlib.util, pkgutil, sys
for room in sys.argv[1:]:
    found = pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}.")
    names = [one.name for one in found if importlib.util.find_spec(one.name).origin.endswith(".py")]
    names = [name for name in names if not name.endswith(".__main__") and name != "exporter.fleet"] # not in a pod
    for name in names:
        importlib.import_module(name)
    print(f"{room}: {len(names)} modules")
'
CARDS='gpushare simgpu create /tmp/cards --model t4 --cards 2
gpushare exporter --once --simgpu=/tmp/cards | grep card_info'
SBOM='grep -q CycloneDX /opt/gpushare/sbom.cdx.json'
ABSENT='! command -v pip && ! command -v gcc && ! touch /opt/gpushare/x 2>/dev/null'

begin() { # <image>: what follows is of it
  image="docker.io/library/gpushare-$1:$version" # as the kubelet calls it
  echo "== $image"
  "$builder" build "${build[@]}" --build-arg "PYTHON=$base" -f images/Containerfile --target "$1" -t "$image" . >&2
  "$builder" image inspect --format '{{.Size}}' "$image" "$base" | awk 'NR == 1 {all = $1}
    NR == 2 {printf "%.0f MB, of them %.0f MB not the base\n", all / 1e6, (all - $1) / 1e6}'
}

inside() { # <user> <program> <arguments>
  local user="$1" program="$2"; shift 2
  "$builder" run --rm "${run[@]}" --network=none --read-only --tmpfs=/tmp --user="$user" --cap-drop=ALL \
    --security-opt=no-new-privileges --entrypoint="$program" "$image" "$@"
}

begin exporter
inside 0:0 python -c "$EVERY" exporter isolation.contract
inside 0:0 gpushare exporter --help >/dev/null
inside 0:0 sh -ec "$CARDS"
inside 0:0 sh -ec "$SBOM; $ABSENT"

begin node
inside 0:0 python -c "$EVERY" isolation.node isolation.doctor isolation.simgpu isolation.host
inside 0:0 gpushare node --help >/dev/null
inside 0:0 gpushare device-plugin --help >/dev/null
inside 65532:65532 gpushare lib
inside 65532:65532 gpushare lib --strict
inside 65532:65532 sh -ec "$SBOM; $ABSENT"

begin controller
inside 65532:65532 python -c "$EVERY" isolation.scheduler isolation.kube
inside 65532:65532 python -c "$EVERY" autoscaler.kube autoscaler.apis.rpc autoscaler.apis.metrics
inside 65532:65532 gpushare scheduler --help >/dev/null
inside 65532:65532 gpushare autoscaler --help >/dev/null
inside 65532:65532 gpushare autoscaler plan --help >/dev/null
inside 65532:65532 gpushare sim --synthetic --fleet-scale 0.01 --seeds 1 --workers 1 --policy best-fit
inside 65532:65532 sh -ec "$SBOM; $ABSENT"

echo "all three build, and start as their pods start them"
