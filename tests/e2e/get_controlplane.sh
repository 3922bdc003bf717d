#!/usr/bin/env bash
# Fills the cache that binaries.py looks into: etcd from Debian's package, Kubernetes built by Go from
# the module beside this file, or, where there is no Go, the official release binaries.
set -euo pipefail
version=v1.36.2
here="$(cd "$(dirname "$0")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/controlplane/$version"
components="kube-apiserver kube-controller-manager kube-scheduler"
PATH="$PATH:/usr/local/go/bin"
sudo=""; [ "$(id -u)" = 0 ] || sudo="sudo -n"

have() { [ -x "${KUBEBUILDER_ASSETS:-/nonexistent}/$1" ] || command -v "$1" >/dev/null || [ -x "$cache/$1" ]; }
lacks() { for name in "$@"; do have "$name" || return 0; done; return 1; }

get_etcd() { # unpacked, not installed: the package would start a service on this machine
  command -v apt-get >/dev/null || { echo "etcd is missing: install it, or set KUBEBUILDER_ASSETS" >&2; return 1; }
  local work; work="$(mktemp -d)"
  chmod 755 "$work"
  ( cd "$work"
    apt-get download -qq etcd-server >/dev/null 2>&1 || { $sudo apt-get update -qq && apt-get download -qq etcd-server; } >/dev/null 2>&1
    dpkg -x etcd-server_*.deb unpacked
    install -m 755 unpacked/usr/bin/etcd "$cache/etcd" ) || { echo "etcd-server could not be fetched from the distribution" >&2; return 1; }
  rm -rf "$work"
}

go_is_new_enough() { # 1.27 and later serve a broken OpenAPI for this Kubernetes unless json/v2 is off
  command -v go >/dev/null && [ "$(printf '%s\n' "go1.21" "$(go env GOVERSION)" | sort -V | head -1)" = go1.21 ]
}

build() {
  local ld="-s -w -X k8s.io/component-base/version.gitVersion=$version"
  ld="$ld -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"
  echo "building the control plane of Kubernetes $version (once; some minutes) ..."
  local experiment=""; case "$(cd "$here/controlplane" && go env GOVERSION)" in go1.2[0-6]*) ;; *) experiment=nojsonv2 ;; esac
  ( cd "$here/controlplane" && CGO_ENABLED=0 GOEXPERIMENT="$experiment" go build -p "${GO_JOBS:-2}" -trimpath -mod=readonly -ldflags "$ld" -o "$cache/controlplane.new" . )
  mv "$cache/controlplane.new" "$cache/controlplane"
  for name in $components; do ln -sf controlplane "$cache/$name"; done
}

download() { # each against the checksum that the release publishes
  local arch; case "$(uname -m)" in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) echo "no release for $(uname -m): install Go" >&2; return 1 ;; esac
  for name in $components; do
    local from="https://dl.k8s.io/release/$version/bin/linux/$arch/$name"
    curl -fsSL --retry 3 --max-time 600 -o "$cache/$name.new" "$from"
    echo "$(curl -fsSL --retry 3 --max-time 60 "$from.sha256")  $cache/$name.new" | sha256sum -c --quiet -
    chmod 755 "$cache/$name.new"
    mv "$cache/$name.new" "$cache/$name"
  done
}

mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
if lacks etcd; then get_etcd; fi
# shellcheck disable=SC2086
if lacks $components; then
  if go_is_new_enough; then build; else download; fi
fi
