#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Other C libraries, for the tests of the preload library: musl from the distribution, old glibc unpacked into build/.
set -uo pipefail
cd "$(dirname "$0")/.."
sudo=""; [ "$(id -u)" = 0 ] || sudo="sudo -n"
failed=0
if ! command -v musl-gcc >/dev/null && command -v apt-get >/dev/null; then
  [ -z "$(dpkg --audit)" ] || $sudo env DEBIAN_FRONTEND=noninteractive dpkg --configure -a # was interrupted
  $sudo apt-get update && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends musl-tools
fi
command -v musl-gcc >/dev/null || { echo "musl-gcc is missing and could not be installed: apt-get install musl-tools (its tests will say so)" >&2; failed=1; }
# What cannot be had today is not asked for again before tomorrow.
tried=build/glibc/.tried
if [ -z "$(find "$tried" -mmin -1440 2>/dev/null)" ]; then
  "${1:-python3}" tests/old_glibc.py || true
  mkdir -p build/glibc && touch "$tried"
fi
exit $failed
