#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fills the cache that found.py looks into: kubelet and containerd built by Go from the modules beside this
# file, runc and busybox from the distribution's packages (unpacked, not installed), two small C programs.
set -euo pipefail
version=v1.36.2
here="$(cd "$(dirname "$0")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/realkubelet"
PATH="$PATH:/usr/local/go/bin"

build() { # <module folder> <linker flags> <output> <packages>
  local folder="$1" flags="$2" out="$3"; shift 3
  ( cd "$here/$folder"
    CGO_ENABLED=0 nice -n 19 go build -p "${GO_JOBS:-2}" -trimpath -mod=readonly -ldflags "-s -w $flags" -o "$out" "$@" )
}

debian() { # <package> <path in it> <name in the cache>
  local work; work="$(mktemp -d)"; chmod 755 "$work"
  ( cd "$work"
    apt-get download -qq "$1" >/dev/null 2>&1 || { apt-get update -qq && apt-get download -qq "$1"; } >/dev/null 2>&1
    dpkg -x "$1"_*.deb unpacked
    install -m 755 "unpacked/$2" "$cache/$3" ) || { echo "$1 could not be fetched from the distribution" >&2; return 1; }
  rm -rf "$work"
}

command -v go >/dev/null || { echo "Go 1.26 is missing: a kubelet is built from source" >&2; exit 1; }
command -v gcc >/dev/null || { echo "gcc is missing: apt-get install gcc" >&2; exit 1; }
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
if [ ! -x "$cache/kubelet" ]; then
  echo "building the kubelet $version (once; minutes) ..."
  stamp="k8s.io/component-base/version"
  build kubelet "-X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=36" "$cache/kubelet.new" .
  mv "$cache/kubelet.new" "$cache/kubelet"
fi
if [ ! -x "$cache/containerd" ] || [ ! -x "$cache/ctr" ] || [ ! -x "$cache/containerd-shim-runc-v2" ]; then
  echo "building containerd (once; minutes) ..."
  root=github.com/containerd/containerd/v2
  build containerd "-X $root/version.Version=$(cd "$here/containerd" && go list -m -f '{{.Version}}' $root)" "$cache/" \
    $root/cmd/containerd $root/cmd/containerd-shim-runc-v2 $root/cmd/ctr
fi
[ -x "$cache/runc" ] || debian runc usr/sbin/runc runc
[ -x "$cache/busybox" ] || debian busybox-static bin/busybox busybox
gcc -Os -Wall -Wextra -Werror -static -o "$cache/pause" "$here/pause.c"
gcc -Os -Wall -Wextra -Werror -o "$cache/client" "$here/client.c" -ldl
