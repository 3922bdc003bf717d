#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fills the cache that binaries.py looks into: etcd from Debian's package, Kubernetes and its kubectl built by
# Go from the module beside this file, or, where there is no Go, the official release binaries.
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

build() { # <name> <package of the module>
  local stamp=k8s.io/component-base/version
  local ld="-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=36"
  echo "building $1 of Kubernetes $version (once; minutes) ..."
  local experiment=""; case "$(cd "$here/controlplane" && go env GOVERSION)" in go1.2[0-6]*) ;; *) experiment=nojsonv2 ;; esac
  ( cd "$here/controlplane" && CGO_ENABLED=0 GOEXPERIMENT="$experiment" go build -p "${GO_JOBS:-2}" -trimpath -mod=readonly -ldflags "$ld" -o "$cache/$1.new" "$2" ) \
    && mv "$cache/$1.new" "$cache/$1"
}

download() { # <names>, each against the checksum that the release publishes
  local arch; case "$(uname -m)" in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) echo "no release for $(uname -m): install Go" >&2; return 1 ;; esac
  for name in "$@"; do
    local from="https://dl.k8s.io/release/$version/bin/linux/$arch/$name" sum
    curl -fsSL --retry 3 --max-time 600 -o "$cache/$name.new" "$from" \
      && sum="$(curl -fsSL --retry 3 --max-time 60 "$from.sha256")" \
      && echo "$sum  $cache/$name.new" | sha256sum -c --quiet - \
      && chmod 755 "$cache/$name.new" && mv "$cache/$name.new" "$cache/$name" || return 1
  done
}

get_components() {
  # shellcheck disable=SC2086 # several names
  if ! go_is_new_enough; then download $components; return; fi
  build controlplane . || return 1
  for name in $components; do ln -sf controlplane "$cache/$name"; done
}

get_kubectl() { # of the API server's version; the one on PATH may be years older, and will do only where there is no other
  if go_is_new_enough; then build kubectl k8s.io/kubernetes/cmd/kubectl; else download kubectl; fi \
    || { command -v kubectl >/dev/null && echo "kubectl $version could not be had: the tests use $(command -v kubectl)" >&2; }
}

mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
failed=0 # one that cannot be had does not keep the others away
if lacks etcd; then get_etcd || failed=1; fi
# shellcheck disable=SC2086 # several names
if lacks $components; then get_components || failed=1; fi
if ! [ -x "${KUBEBUILDER_ASSETS:-/nonexistent}/kubectl" ] && ! [ -x "$cache/kubectl" ]; then get_kubectl || failed=1; fi
exit $failed
