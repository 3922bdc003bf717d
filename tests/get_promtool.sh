#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# promtool, a Prometheus and an Alertmanager judge our metrics, rules and queries; openssl makes certificates and ip gives
# the tests' cluster an address. They come with packages of Debian and Ubuntu. What is there already is left as it is; what
# is installed here is neither started now nor at the next boot.
set -euo pipefail
sudo=""; [ "$(id -u)" = 0 ] || sudo="sudo -n"
packages=()
command -v prometheus >/dev/null && command -v promtool >/dev/null || packages+=(prometheus)
command -v prometheus-alertmanager >/dev/null || packages+=(prometheus-alertmanager)
services=("${packages[@]}")
command -v openssl >/dev/null || packages+=(openssl)
command -v ip >/dev/null || packages+=(iproute2)
[ ${#packages[@]} -gt 0 ] || exit 0

policy=/usr/sbin/policy-rc.d
mark="# gpushare's tests, while they install packages"
ours() { grep -qsF "$mark" "$policy"; } # also one that an interrupted run has left behind
clean() { ! ours || $sudo rm -f "$policy"; }
trap clean EXIT

install() {
  command -v apt-get >/dev/null || { echo "no apt-get here"; return 1; }
  [ -z "$(dpkg --audit)" ] || $sudo env DEBIAN_FRONTEND=noninteractive dpkg --configure -a || return 1 # was interrupted
  $sudo apt-get update || return 1
  # invoke-rc.d asks this file; 101 means: start nothing
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" | $sudo tee "$policy" >/dev/null && $sudo chmod 755 "$policy" || return 1
  fi
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}" || return 1
  if [ ${#services[@]} -gt 0 ] && command -v systemctl >/dev/null; then
    $sudo systemctl disable --quiet "${services[@]}" || true
  fi
}

install || {
  echo "not there and could not be installed: ${packages[*]}; apt-get install ${packages[*]} (their tests will say so)" >&2
  exit 1
}
