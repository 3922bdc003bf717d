#!/usr/bin/env bash
# promtool checks our exposition; it comes with Debian's and Ubuntu's package `prometheus`.
set -euo pipefail
sudo=""; [ "$(id -u)" = 0 ] || sudo="sudo -n"
if command -v apt-get >/dev/null && { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus; } >/dev/null 2>&1; then
  exit 0
fi
echo "promtool is missing and could not be installed: apt-get install prometheus (its test will say so)" >&2
