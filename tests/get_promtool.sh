#!/usr/bin/env bash
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
made=""
clean() { [ -z "$made" ] || $sudo rm -f "$policy"; }
trap clean EXIT

install() {
  command -v apt-get >/dev/null || return 1
  $sudo apt-get update -qq || return 1
  # invoke-rc.d asks this file; 101 means: start nothing
  if [ ! -e "$policy" ]; then
    made=yes
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null && $sudo chmod 755 "$policy" || return 1
  fi
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" || return 1
  if [ ${#services[@]} -gt 0 ] && command -v systemctl >/dev/null; then
    $sudo systemctl disable --quiet "${services[@]}" || true
  fi
}

if install >/dev/null 2>&1; then
  exit 0
fi
echo "not there and could not be installed: ${packages[*]}; apt-get install ${packages[*]} (their tests will say so)" >&2
