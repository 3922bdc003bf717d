#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The manifests for another namespace than gpushare-system, as a copy of this tree:
#   sh manifests/namespace.sh NAMESPACE FOLDER
#   kubectl apply -k FOLDER/manifests/overlays/self-signed && NAMESPACE=NAMESPACE sh manifests/certificate.sh
# kustomize's own `namespace:` changes neither policies nor configuration, which name the accounts of the namespace.
set -eu
[ $# = 2 ] || { echo "usage: sh manifests/namespace.sh NAMESPACE FOLDER" >&2; exit 2; }
echo "$1" | grep -Eqx '[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?' || { echo "$1 is not a name of a namespace" >&2; exit 2; }
[ ! -e "$2/manifests" ] || { echo "$2/manifests exists: name another folder, or remove it" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$2/dashboards/rules"
cp -R "$root/manifests" "$2/"
cp -R "$root/dashboards/json" "$2/dashboards/"
cp -R "$root/dashboards/rules/out" "$2/dashboards/rules/"
find "$2/manifests" "$2/dashboards" -name '*.yaml' -exec sed -i "s/gpushare-system/$1/g" {} +
