#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the images (images/build.sh) and starts in each what its pods start, in the last one the demo: by the manifests'
# accounts, with nothing to write to but /tmp, no capability and no network. Says how much each adds to the base. Needs
# docker or podman, no cluster and no card. The images stay.
#   bash images/check.sh          # on the Containerfile's base
#   bash images/check.sh BASE     # on another, or by the name that a mirror gives it
# RUN has more options of `run`, as BUILD of `build`; images/build.sh says what else can be set.
set -euo pipefail
cd "$(dirname "$0")/.."
builder="$(bash images/build.sh --which)"
export BUILDER="$builder" BASE="${1:-$(sed -n 's/^ARG PYTHON=//p' images/Containerfile)}"
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
STACK='
import json, sys
stack = json.load(sys.stdin)["stack"] or sys.exit("only the simulated cluster ran")
down = [one for one in stack["processes"] if one["state"] != "up"]
used = {one["name"]: one["used_bytes"] for one in stack["tenants"] if one["enforced"]}
if down or not all(used.values()):
    sys.exit(f"not up: {down}; used {used}")
alerts = sorted({one["name"] for one in stack["alerts"]})
print(len(used), "tenants measured; alerts:", *alerts)
'
ABSENT='! command -v pip && ! command -v gcc && ! touch /opt/gpushare/x 2>/dev/null'

begin() { # <image>: what follows is of it
  image="$(bash images/build.sh "$1")"
  echo "== $image"
  local all base
  all="$("$builder" image inspect --format '{{.Size}}' "$image")"
  base="$("$builder" image inspect --format '{{.Size}}' "$BASE" 2>/dev/null || echo 0)" # BuildKit may not keep it
  awk -v all="$all" -v base="$base" 'BEGIN {printf "%.0f MB%s\n", all / 1e6, base ? sprintf(", of them %.0f MB not the base", (all - base) / 1e6) : ""}'
}

inside() { # <user> <program> <arguments>
  local user="$1" program="$2"; shift 2
  "$builder" run --rm "${run[@]}" --network=none --read-only --tmpfs=/tmp --user="$user" --cap-drop=ALL \
    --security-opt=no-new-privileges --entrypoint="$program" "$image" "$@"
}

begin exporter
inside 0:0 python -c "$EVERY" exporter
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

begin demo
inside 65532:65532 sh -ec 'gpushare up --for 40 -o json 2>/dev/null | python -c "$1"' - "$STACK"
inside 65532:65532 sh -ec "$SBOM; $ABSENT"

echo "all of them build, and start as their pods start them"
