#!/usr/bin/env bash
# Other C libraries, for the tests of the preload library: musl from the distribution, old glibc unpacked into build/.
set -uo pipefail
cd "$(dirname "$0")/.."
sudo=""; [ "$(id -u)" = 0 ] || sudo="sudo -n"
if ! command -v musl-gcc >/dev/null && command -v apt-get >/dev/null; then
  { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends musl-tools; } >/dev/null 2>&1
fi
command -v musl-gcc >/dev/null || echo "musl-gcc is missing and could not be installed: apt-get install musl-tools (its tests will say so)" >&2
"${1:-python3}" tests/old_glibc.py || true
