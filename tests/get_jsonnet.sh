#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jsonnet, which reads dashboards/mixin.libsonnet in the tests: built by Go into the cache, in half a minute.
set -euo pipefail
version=v0.22.0
cache="${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/jsonnet/$version"
PATH="$PATH:/usr/local/go/bin"

[ ! -x "$cache/jsonnet" ] || exit 0
command -v go >/dev/null || { echo "Go is missing: jsonnet is built from source" >&2; exit 1; }
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
GOBIN="$cache" CGO_ENABLED=0 timeout 900 nice -n 5 go install -p "${GO_JOBS:-2}" -trimpath -ldflags "-s -w" "github.com/google/go-jsonnet/cmd/jsonnet@$version"
