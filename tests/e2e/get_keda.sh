#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fills the cache that keda_harness.py looks into: KEDA's programs built by Go from KEDA's own module, with the versions
# that it pins itself, and the manifests with which it is installed.
set -euo pipefail
version=v2.20.2
sum="h1:SR60v8uIcelbveS8n/1jcl8tLdBBIbHMxmdOHw8tKqA="
module=github.com/kedacore/keda/v2
cache="${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/keda/$version"
PATH="$PATH:/usr/local/go/bin"

[ ! -d "$cache/config" ] || exit 0 # it comes last
command -v go >/dev/null || { echo "Go 1.26 is missing: KEDA is built from source" >&2; exit 1; }
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
[ ! -d "$cache/config" ] || exit 0

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod download -json "$module@$version" >had.json
had() { sed -n "s|.*\"$1\": \"\(.*\)\".*|\1|p" had.json; }
[ "$(had Sum)" = "$sum" ] || { echo "$module $version is not what it was: $(had Sum)" >&2; exit 1; }
from="$(had Dir)"
echo "building KEDA $version (once; 15 minutes) ..."
( cd "$from" && CGO_ENABLED=0 nice -n 19 go build -p "${GO_JOBS:-2}" -trimpath -mod=readonly \
    -ldflags "-s -w -X=$module/version.Version=${version#v}" -o "$cache/" ./cmd/operator ./cmd/adapter ./cmd/webhooks )
cp -r "$from/config" "$work/config"
chmod -R u+w "$work/config"
mv "$work/config" "$cache/config"
