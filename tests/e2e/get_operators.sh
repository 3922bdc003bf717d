#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fills the cache that binaries.py looks into: cert-manager's controllers, begun by the program beside this file, and the
# Prometheus operator, both built by Go, with the definitions of their kinds.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
# another number with every change of a version, here or in certmanager/go.mod
cache="${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/operators/v1"
PATH="$PATH:/usr/local/go/bin"
operator=github.com/prometheus-operator/prometheus-operator
version=v0.85.0
sum="h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="

[ ! -d "$cache/kinds" ] || exit 0 # it comes last
command -v go >/dev/null || { echo "Go 1.26 is missing: cert-manager and the Prometheus operator are built from source" >&2; exit 1; }
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
[ ! -d "$cache/kinds" ] || exit 0

work="$(mktemp -d)"
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
build() { CGO_ENABLED=0 timeout 1800 nice -n 5 go build -p "${GO_JOBS:-2}" -trimpath -ldflags "-s -w" "$@"; }

echo "building cert-manager (once; minutes) ..."
( cd "$here/certmanager" && build -mod=readonly -o "$cache/certmanager" . )
mkdir "$work/kinds"
cp "$(cd "$here/certmanager" && go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)"/deploy/crds/cert-manager.io_*.yaml "$work/kinds/"

echo "building the Prometheus operator $version (once; minutes) ..."
cd "$work"
timeout 300 go mod download -json "$operator@$version" >had.json
had() { sed -n "s|.*\"$1\": \"\(.*\)\".*|\1|p" had.json; }
[ "$(had Sum)" = "$sum" ] || { echo "$operator $version is not what it was: $(had Sum)" >&2; exit 1; }
cp -r "$(had Dir)" operator
chmod -R u+w operator
( cd operator # two modules of its repository stand beside it there, and come from outside here
  for part in pkg/apis/monitoring pkg/client; do go mod edit -dropreplace="$operator/$part" -require="$operator/$part@$version"; done
  build -mod=mod -o "$cache/prometheus-operator" ./cmd/operator )
cp operator/example/prometheus-operator-crd/*.yaml kinds/
chmod -R u+w kinds
mv kinds "$cache/kinds"
