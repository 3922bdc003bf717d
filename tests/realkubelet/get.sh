#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fills the cache that found.py looks into: kubelet, containerd, runc and CRI-O built by Go, busybox, conmon and the
# headers of libseccomp from the distribution's packages (unpacked, not installed), two small C programs.
set -euo pipefail
version=v1.36.2
crio=v1.34.0
here="$(cd "$(dirname "$0")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/realkubelet"
PATH="$PATH:/usr/local/go/bin"

build() { # <module folder> <linker flags> <output> <packages>
  local folder="$1" flags="$2" out="$3"; shift 3
  ( cd "$here/$folder"
    CGO_ENABLED=0 nice -n 19 go build -p "${GO_JOBS:-2}" -trimpath -mod=readonly -ldflags "-s -w $flags" -o "$out" "$@" )
}

unpack() { # <package> <new folder>
  mkdir "$2"; chmod 755 "$2"
  ( cd "$2"
    apt-get download -qq "$1" >/dev/null 2>&1 || { apt-get update -qq && apt-get download -qq "$1"; } >/dev/null 2>&1
    dpkg -x "$1"_*.deb . ) || { echo "$1 could not be fetched from the distribution" >&2; return 1; }
}

debian() { # <package> <path in it> <name in the cache>
  unpack "$1" "$work/$1"
  install -m 755 "$work/$1/$2" "$cache/$3"
}

command -v go >/dev/null || { echo "Go 1.26 is missing: a kubelet is built from source" >&2; exit 1; }
command -v gcc >/dev/null || { echo "gcc is missing: apt-get install gcc" >&2; exit 1; }
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
work="$(mktemp -d)"; chmod 755 "$work"
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
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
wanted="$(cd "$here/runc" && go list -m -f '{{.Version}}' github.com/opencontainers/runc)"
if ! "$cache/runc" --version 2>/dev/null | grep -qx "runc version ${wanted#v}"; then
  # The distribution's may be older than 1.2, with which containerd refuses pods with users of their own.
  echo "building runc $wanted (once; a minute) ..."
  unpack libseccomp-dev "$work/seccomp"
  dev="$work/seccomp/usr"
  ( cd "$here/runc"
    CGO_ENABLED=1 PKG_CONFIG=true CGO_CFLAGS="-I$dev/include" \
      CGO_LDFLAGS="-L$(dirname "$(find "$dev" -name libseccomp.a)") -Wl,-Bstatic -lseccomp -Wl,-Bdynamic" \
      nice -n 19 go build -p "${GO_JOBS:-2}" -trimpath -mod=readonly -tags seccomp \
      -ldflags "-s -w -X main.version=${wanted#v}" -o "$cache/runc.new" github.com/opencontainers/runc )
  mv "$cache/runc.new" "$cache/runc"
fi
if [ ! -x "$cache/crio" ]; then
  echo "building CRI-O $crio (once; minutes) ..."
  # Its own go.sum is taken along: one of its requirements is not in the checksum database.
  cp -r "$(go mod download -json "github.com/cri-o/cri-o@$crio" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')" "$work/crio"
  chmod -R u+w "$work/crio"
  gcc -O2 -o "$cache/pinns" "$work/crio"/pinns/src/*.c
  ( cd "$work/crio"
    nice -n 19 go build -p "${GO_JOBS:-2}" -trimpath -mod=readonly -ldflags "-s -w" -o "$cache/crio.new" \
      -tags "containers_image_openpgp exclude_graphdriver_btrfs" ./cmd/crio )
  mv "$cache/crio.new" "$cache/crio"
fi
[ -x "$cache/conmon" ] || debian conmon usr/bin/conmon conmon
[ -x "$cache/busybox" ] || debian busybox-static bin/busybox busybox
gcc -Os -Wall -Wextra -Werror -static -o "$cache/pause" "$here/pause.c"
gcc -Os -Wall -Wextra -Werror -o "$cache/client" "$here/client.c" -ldl
