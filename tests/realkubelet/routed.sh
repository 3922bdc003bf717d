#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A network plugin with one route for each pod: an address of the configuration's "prefix" that leads to the node's
# network and from there to every other pod. A port of the node that a pod asks for is noted for hostport.py. No
# masquerading, no addresses of Services.
set -eu
asked=$(cat)
prefix=$(echo "$asked" | sed -n 's/.*"prefix": *"\([0-9.]*\)".*/\1/p')
space=${CNI_NETNS##*/}
leases=/run/routed
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
ADD)
    number=2
    mkdir -p "$leases"
    until mkdir "$leases/$number" 2>/dev/null; do number=$((number + 1)); done
    echo "$CNI_CONTAINERID" >"$leases/$number/of"
    port=$(echo "$asked" | sed -n 's/.*"[hH]ostPort": *\([0-9]*\).*/\1/p')
    [ -z "$port" ] || echo "$prefix.$number" >"$leases/port-$port"
    here=v$(echo "$prefix$number" | cksum | cut -d' ' -f1) address=$prefix.$number
    ip link add "$here" type veth peer name "$CNI_IFNAME" netns "$space"
    ip -n "$space" address add "$address/32" dev "$CNI_IFNAME"
    ip -n "$space" link set "$CNI_IFNAME" up
    ip -n "$space" route add 169.254.1.1 dev "$CNI_IFNAME" scope link
    ip -n "$space" route add default via 169.254.1.1
    ip address add 169.254.1.1/32 dev "$here"
    ip link set "$here" up
    ip route add "$address" dev "$here" scope link
    echo "{\"cniVersion\":\"1.0.0\",\"interfaces\":[{\"name\":\"$CNI_IFNAME\",\"sandbox\":\"$CNI_NETNS\"}],\"ips\":[{\"address\":\"$address/32\",\"interface\":0}]}"
    ;;
DEL)
    [ -z "$space" ] || ip -n "$space" link delete "$CNI_IFNAME" 2>/dev/null || true
    for lease in "$leases"/*; do
        if [ "$(cat "$lease/of" 2>/dev/null)" = "$CNI_CONTAINERID" ]; then rm -r "$lease"; fi
    done
    ;;
esac
