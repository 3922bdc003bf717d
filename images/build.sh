#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the images of images/Containerfile with docker or podman, whichever is there.
#   bash images/build.sh [IMAGE...]          # all, or some of them: exporter, node, controller, demo
#   bash images/build.sh --push [IMAGE...]   # pushes them too; needs REGISTRY
#   bash images/build.sh --oci FOLDER ...    # writes OCI archives FOLDER/gpushare-IMAGE-VERSION.tar
#   bash images/build.sh --which             # prints which of docker and podman it uses
#
# REGISTRY=registry.example.com/team   where the images belong, default docker.io/library, as manifests have it
# PLATFORMS=linux/amd64,linux/arm64    default: this machine's; docker then needs --push or --oci for several
# BUILDER=podman                       docker or podman, default: docker if it answers, else podman
# BASE=IMAGE                           another base than the Containerfile's, or the name that a mirror gives it
# REQUIREMENTS=controller-ack          the controller's packages, default controller
# BUILD="--network=host"               more options of `build`
# LIMIT=3600                           seconds for one image
# Stdout has the names of the images, by digest once pushed; progress is on stderr.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { printf 'images: %s\n' "$*" >&2; exit 1; }
step() { printf '== %s\n' "$*" >&2; }
usage() { sed -n '3,16s/^# \{0,1\}//p' images/build.sh; exit "$1"; }
answers() { timeout 60 "$@" >/dev/null 2>&1; }

mapfile -t every < <(sed -n 's/^FROM runtime AS //p' images/Containerfile)
push="" archives="" which="" names=()
while [ $# -gt 0 ]; do
  case $1 in
    --push) push=1 ;;
    --oci) [ -n "${2:-}" ] || fail "--oci needs a folder"; archives=$2; shift ;;
    --which) which=1 ;;
    -h | --help) usage 0 ;;
    -*) echo "images: unknown option $1" >&2; usage 2 >&2 ;;
    *) [[ " ${every[*]} " == *" $1 "* ]] || fail "there is no image $1: the images are ${every[*]}"; names+=("$1") ;;
  esac
  shift
done
[ ${#names[@]} -gt 0 ] || names=("${every[@]}")
registry=${REGISTRY:-docker.io/library}
# The first part is a host only with a dot, a port or as localhost: docker would look for others on Docker Hub.
host='([a-z0-9-]+(\.[a-z0-9-]+)+(:[0-9]+)?|[a-z0-9-]+:[0-9]+|localhost)'
[[ $registry =~ ^$host(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$ ]] ||
  fail "REGISTRY=$registry is no registry: write host/path in small letters, as in registry.example.com/team (no https://, no / at the end)"
[ -z "$push" ] || [ -n "${REGISTRY:-}" ] || fail "--push needs a registry of yours: set REGISTRY=registry.example.com/team"
[ -z "$push" ] || [ -z "$archives" ] || fail "--push and --oci exclude each other: run the script twice"
IFS=, read -ra platforms <<<"${PLATFORMS:-}"
for one in "${platforms[@]}"; do
  [[ $one =~ ^linux/(amd64|arm64)$ ]] || fail "PLATFORMS=$PLATFORMS: '$one' is not linux/amd64 or linux/arm64, which the C library is written for"
done
requirements=${REQUIREMENTS:-controller}
[ -f "images/requirements/$requirements.txt" ] || fail "REQUIREMENTS=$requirements: there is no images/requirements/$requirements.txt"

# ---- docker or podman

is_podman() { [[ $(timeout 60 "$1" --version 2>/dev/null) == podman* ]]; } # also where `docker` is podman's stand-in
if [ -n "${BUILDER:-}" ]; then
  builder=$BUILDER
  command -v "$builder" >/dev/null || fail "BUILDER=$builder is missing: install it, or leave BUILDER out"
elif command -v docker >/dev/null && { answers docker info || ! command -v podman >/dev/null; }; then
  builder=docker
elif command -v podman >/dev/null; then
  builder=podman
else
  fail "docker or podman is needed: run apt-get install podman, or see https://docs.docker.com/engine/install"
fi
kind=docker
! is_podman "$builder" || kind=podman
[ $kind = podman ] || answers "$builder" info || fail "docker does not answer: start it (systemctl start docker), make sure that you may use it (docker info), or install podman"
if [ -n "$which" ]; then echo "$builder"; exit; fi

check_buildx() {
  answers "$builder" buildx version ||
    fail "docker's buildx is missing: install package docker-buildx-plugin (of Docker) or docker-buildx (of Debian and Ubuntu), or podman"
  [ ${#platforms[@]} -gt 0 ] || [ -n "$archives" ] || return 0
  [ ${#platforms[@]} -lt 2 ] || [ -n "$push$archives" ] ||
    fail "docker keeps images of one platform only: add --push (with REGISTRY) or --oci FOLDER, or use BUILDER=podman"
  local about one
  about=$(timeout 300 "$builder" buildx inspect --bootstrap 2>&1) || fail "docker buildx inspect --bootstrap fails: $about"
  # Docker's own driver exports neither, unless its images are kept by containerd.
  if grep -q '^Driver: *docker$' <<<"$about" && { [ ${#platforms[@]} -gt 1 ] || [ -n "$archives" ]; } &&
    [[ $(timeout 60 "$builder" info --format '{{.DriverStatus}}') != *io.containerd.snapshotter* ]]; then
    fail "docker's default builder makes neither several platforms nor OCI archives: run docker buildx create --name gpushare --driver docker-container --use"
  fi
  for one in "${platforms[@]}"; do
    grep '^Platforms:' <<<"$about" | tr -d '*' | grep -Eq "[ ,]$one(,|\$)" ||
      fail "this machine cannot run programs for $one: run docker run --privileged --rm tonistiigi/binfmt --install ${one#*/}, which emulates it"
  done
}
[ $kind = podman ] || check_buildx

# ---- Labels, by the OCI image specification (annotations.md); those of every build are in the Containerfile

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
base=${BASE:-$(sed -n 's/^ARG PYTHON=//p' images/Containerfile)}
labels=()
label() { [ -z "$2" ] || labels+=(--label "org.opencontainers.image.$1=$2"); } # what is not known has no label
label version "$version"
label base.name "${base%%@*}"
[[ $base != *@* ]] || label base.digest "${base#*@}"
if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ] && revision=$(git rev-parse HEAD 2>/dev/null); then
  if [ -n "$(git status --porcelain)" ]; then
    step "the tree has changes that are not committed: label revision ends with -dirty"
    revision+=-dirty
  fi
  label revision "$revision"
  SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
  # Never a password or a folder of this machine: an https address without its user, or the same of git@HOST:PATH
  origin=$(git remote get-url origin 2>/dev/null || true)
  label source "$(sed -nE 's#\.git$##; s#^git@([^:/]+):#https://\1/#; s#^https://([^/@]*@)?#https://#p' <<<"$origin")"
else
  step "this is no git checkout: the images get no labels revision and source"
fi
if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
  created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ) || fail "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH is no number of seconds"
  label created "$created"
  export SOURCE_DATE_EPOCH # the image's own date, by BuildKit and by podman 5.6 and newer
fi

# ---- The build

limit=${LIMIT:-3600}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -ra more <<<"${BUILD:-}"
emulation=""
[ ${#platforms[@]} -eq 0 ] || emulation=". If it says 'exec format error', install qemu-user-static: this machine cannot run programs of that platform"

run() { # <what fails> <command>
  local what=$1 status=0
  shift
  timeout --foreground "$limit" "$@" >&2 || status=$?
  [ $status -ne 124 ] || fail "$what: stopped after $limit s; LIMIT=$((2 * limit)) allows more"
  [ $status -eq 0 ] || fail "$what: see above$emulation"
}

build() { # <image> <name>
  local options=("${more[@]}" "${labels[@]}" --build-arg "PYTHON=$base" -f images/Containerfile --target "$1")
  local image=$2 archive="$archives/gpushare-$1-$version.tar"
  [ "$1" != controller ] || options+=(--build-arg "REQUIREMENTS=$requirements")
  [ ${#platforms[@]} -eq 0 ] || options+=(--platform "$PLATFORMS")
  rm -f "$work/digest"
  if [ $kind = docker ]; then
    local out=(--load)
    [ -z "$archives" ] || out=(--output "type=oci,dest=$archive")
    [ -z "$push" ] || out=(--push --metadata-file "$work/metadata")
    local what="$image does not build"
    [ -z "$push" ] || what="$image is not built, or not pushed (log in with $builder login ${registry%%/*})"
    run "$what" "$builder" buildx build "${options[@]}" "${out[@]}" -t "$image" .
    [ -z "$push" ] || sed -n 's/.*"containerimage.digest": *"\([^"]*\)".*/\1/p' "$work/metadata" >"$work/digest"
  elif [ ${#platforms[@]} -gt 1 ]; then
    # A list that is there would get more entries, and an image of that name cannot become a list.
    if answers "$builder" manifest exists "$image"; then
      run "the old $image stays" "$builder" manifest rm "$image"
    elif answers "$builder" image exists "$image"; then
      run "the old $image stays" "$builder" untag "$image" "$image"
    fi
    run "$image does not build" "$builder" build "${options[@]}" --manifest "$image" .
    [ -z "$archives" ] || run "$archive is not written" "$builder" manifest push --all "$image" "oci-archive:$archive:$image"
    [ -z "$push" ] || run "$image is not pushed (log in with $builder login ${registry%%/*})" "$builder" manifest push --all --digestfile "$work/digest" "$image" "docker://$image"
  else
    run "$image does not build" "$builder" build "${options[@]}" -t "$image" .
    [ -z "$archives" ] || run "$archive is not written" "$builder" save --format oci-archive -o "$archive" "$image"
    [ -z "$push" ] || run "$image is not pushed (log in with $builder login ${registry%%/*})" "$builder" push --digestfile "$work/digest" "$image"
  fi
}

if [ -n "$archives" ]; then mkdir -p "$archives"; fi
number=0
for name in "${names[@]}"; do
  number=$((number + 1)) begun=$SECONDS image="$registry/gpushare-$name:$version"
  step "$number of ${#names[@]}: $image${PLATFORMS:+ for $PLATFORMS}, with $builder"
  if [ -n "$archives" ]; then rm -f "$archives/gpushare-$name-$version.tar"; fi
  build "$name" "$image"
  step "$image took $((SECONDS - begun)) s"
  if [ -s "$work/digest" ]; then echo "$image@$(cat "$work/digest")"; else echo "$image"; fi
done
