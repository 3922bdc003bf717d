#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fills the cache that binaries.py looks into: helm built by Go from its own module, with the versions that it pins itself.
set -euo pipefail
version=v3.22.0
sum="h1:n1if5iQgHYsujPAcO5oonH/KiSNUmqmUF0iGVjSF3AU="
module=helm.sh/helm/v3
cache="${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/helm/$version"
PATH="$PATH:/usr/local/go/bin"

[ ! -x "$cache/helm" ] || exit 0
command -v go >/dev/null || { echo "Go 1.26 is missing: helm is built from source" >&2; exit 1; }
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
[ ! -x "$cache/helm" ] || exit 0

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work"
timeout 300 go mod download -json "$module@$version" >had.json
had() { sed -n "s|.*\"$1\": \"\(.*\)\".*|\1|p" had.json; }
[ "$(had Sum)" = "$sum" ] || { echo "$module $version is not what it was: $(had Sum)" >&2; exit 1; }
cd "$(had Dir)"
minor="$(sed -n 's|^\tk8s.io/client-go v0\.\([0-9]*\)\..*|\1|p' go.mod)" # what helm renders for where it is told no cluster
ld="-s -w -X $module/internal/version.version=$version"
for package in lint/rules chartutil; do ld="$ld -X $module/pkg/$package.k8sVersionMajor=1 -X $module/pkg/$package.k8sVersionMinor=$minor"; done
echo "building helm $version (once; 2 minutes) ..."
CGO_ENABLED=0 timeout 1800 nice -n 5 go build -p "${GO_JOBS:-2}" -trimpath -mod=readonly -ldflags "$ld" -o "$cache/helm.new" ./cmd/helm
mv "$cache/helm.new" "$cache/helm"
