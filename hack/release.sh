#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what a release consists of, from the commit alone: sdist, wheel, chart, SBOM, checksums. Uploads nothing.
#   bash hack/release.sh [DIST]            # of a tagged commit; DIST must not exist, default dist/VERSION
#   bash hack/release.sh --local [DIST]    # the wheel keeps its linux_* tag, which package indexes refuse
# PYTHON has the packages of the dependency group `release`, default .venv/bin/python; HELM is helm 3.
# The same commit, tools and compiler give the same bytes: every time in an archive is the commit's.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "release: $1" >&2; exit 1; }
step() { echo "== $1"; }

local=""
[ "${1:-}" != --local ] || { local=1; shift; }
[[ $# -le 1 && "${1:-}" != -* ]] || fail "usage: bash hack/release.sh [--local] [DIST]"
name="$(sed -n 's/^name = "\(.*\)"$/\1/p' pyproject.toml | head -1)"
version="$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)"
out="${1:-dist/$version}"
python="${PYTHON:-.venv/bin/python}"
limit=1800 # seconds for one step

step "checks"
git rev-parse --git-dir >/dev/null 2>&1 || fail "this is no git checkout: clone the repository"
changed="$(git status --porcelain)"
[ -z "$changed" ] || fail "the tree is not clean: commit or remove these, then try again
$changed"
tags="$(git tag --points-at HEAD)"
if ! grep -Fqx "v$version" <<<"$tags"; then
  other="$(grep '^v[0-9]' <<<"$tags" | paste -sd ' ' || true)"
  [ -z "$other" ] || fail "tag $other is not the version $version of pyproject.toml: run make set-version V=${other#v}, commit and tag again, or delete the tag with git tag -d $other"
  fail "no tag v$version at this commit: run git tag -a v$version -m v$version"
fi
grep -q "^## \[$version\] - [0-9]" CHANGELOG.md || fail "CHANGELOG.md has no dated section [$version]: run make set-version V=$version, commit and tag again"
[ ! -e "$out" ] || fail "$out exists: remove it, or name another folder"
[ -x "$(command -v "$python")" ] || fail "$python is missing: run make unit, or set PYTHON"
python="$(cd "$(dirname "$(command -v "$python")")" && pwd)/$(basename "$python")"
"$python" -c 'import auditwheel, build, twine, wheel' 2>/dev/null ||
  fail "packages are missing: run $python -m pip install -c constraints.txt --group release"
cached="${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/helm/$(sed -n 's/^version=//p' tests/e2e/get_helm.sh)/helm"
helm="${HELM:-$(command -v helm || echo "$cached")}"
[ -x "$helm" ] || fail "helm is missing: run bash tests/e2e/get_helm.sh, or set HELM"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)"
export SOURCE_DATE_EPOCH PIP_CONSTRAINT="$PWD/constraints.txt" PIP_DISABLE_PIP_VERSION_CHECK=1
umask 022

again() { # <archive> <into>: the same files with no time, owner or order of this machine
  local from="$work/again"
  rm -rf "$from" && mkdir "$from"
  tar -xzmf "$1" -C "$from"
  (cd "$from" && tar --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - -- *) |
    gzip -9n >"$2/$(basename "$1")"
}

step "sdist and wheel of $name $version"
mkdir "$work/source" "$work/made" "$work/dist"
git archive HEAD | tar -x -C "$work/source"
timeout $limit "$python" -m build --sdist --outdir "$work/made" "$work/source" >"$work/log" 2>&1 || fail "the sdist does not build:
$(tail -20 "$work/log")"
again "$work"/made/*.tar.gz "$work/dist"
# From the sdist, so that whoever has only that can build it
mkdir "$work/sdist"
tar -xzf "$work"/dist/*.tar.gz -C "$work/sdist" --strip-components=1
timeout $limit "$python" -m build --wheel --outdir "$work/made" "$work/sdist" >"$work/log" 2>&1 || fail "the wheel does not build from the sdist:
$(tail -20 "$work/log")"
made="$(ls "$work"/made/*.whl)"

step "platform of the wheel"
wanted="manylinux_2_28_$(uname -m)"
report="$(timeout $limit "$python" -m auditwheel show "$made" 2>"$work/log" | tr '\n' ' ')" || fail "auditwheel cannot read the wheel:
$(tail -20 "$work/log")"
found="$(sed -n 's/.*platform tag: "\([^"]*\)".*/\1/p' <<<"$report")"
minor="$(sed -n 's/^manylinux_2_\([0-9]*\)_.*/\1/p' <<<"$found")"
if [ -n "$minor" ] && [ "$minor" -le 28 ]; then
  "$python" -m wheel tags --remove --platform-tag "$wanted" "$made" >/dev/null
elif [ -z "$local" ]; then
  fail "the wheel is ${found:-of an unknown platform}, not $wanted: build where glibc is 2.28 or older (AlmaLinux 8, image manylinux_2_28), or keep its linux tag with --local"
else
  echo "$found, not $wanted: the wheel keeps its linux tag and is for this machine's kind only"
fi
cp "$work"/made/*.whl "$work/dist/"
timeout $limit "$python" -m twine check --strict "$work"/dist/*.tar.gz "$work"/dist/*.whl || fail "the metadata is not what package indexes take: see above"

step "installed into a fresh environment"
"$python" -m venv --without-pip "$work/venv"
timeout $limit "$python" -m pip --python "$work/venv/bin/python" install -q --no-compile -c constraints.txt \
  "$name[all] @ file://$(ls "$work"/dist/*.whl)" || fail "the wheel does not install: see above"
said="$(cd "$work" && timeout 60 venv/bin/gpushare --version)"
[[ "$said" == *"$version"* ]] || fail "the installed gpushare says it is '$said', not $version"
"$work/venv/bin/python" images/sbom.py "$name" library >"$work/dist/$name-$version.cdx.json"

step "chart"
timeout 300 "$helm" package charts/gpushare --destination "$work/made" >/dev/null
mkdir "$work/dist/chart"
again "$work"/made/gpushare-*.tgz "$work/dist/chart" # its version is written as SemVer has it: 1.2.3-rc.1
timeout 300 "$helm" lint --quiet "$work"/dist/chart/gpushare-*.tgz

step "checksums"
(cd "$work/dist" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
mkdir -p "$(dirname "$out")"
cp -r "$work/dist" "$out"
cat "$out/SHA256SUMS"
echo "made in $out: check with (cd $out && sha256sum -c SHA256SUMS)"
