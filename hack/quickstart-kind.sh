#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The quick start (docs/quickstart.md): gpushare with simulated cards, from nothing to a purchase of the autoscaler.
#   bash hack/quickstart-kind.sh              # makes a cluster with kind and builds the images; needs docker and kind
#   bash hack/quickstart-kind.sh --existing   # in the cluster of your kubectl context, whose nodes have the images
#   bash hack/quickstart-kind.sh --delete     # removes what it made, and nothing else
#
#   --node NAME    with --existing: the node to share (the first one that takes pods)
#   --spare NAME   with --existing: an idle node that the autoscaler may buy (none: no purchase)
#   --context NAME with --existing and --delete: another kubectl context
#
# CLUSTER (gpushare-quickstart) names the kind cluster, NODE_IMAGE its nodes' image, WAIT (300) the seconds for each wait.

# shellcheck disable=SC2317 # functions that are only called by their names, which until_true is given
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=${CLUSTER:-gpushare-quickstart}
# Of kind v0.33.0. Another needs containerd 2.1 or newer, and Kubernetes 1.34 or newer.
node_image=${NODE_IMAGE:-kindest/node:v1.36.4@sha256:099e049362a1526b2db71494e1947aae99bd16290d7c895f2b7ea312e3cbfaed}
wait=${WAIT:-300}
mark=quickstart.gpushare.dev/made # annotation of what --delete may remove: cluster, installation, node, spare
jsonpath=".metadata.annotations.${mark//./\\.}"
system=gpushare-system ours=gpushare-quickstart
action=create context="" node="" spare="" again="" server=""

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }
usage() { sed -n '3,12s/^# \{0,1\}//p' "$0"; exit "$1"; }
# The command as somebody would type it, and what it prints.
show() {
  local word line='$'
  for word in "$@"; do
    case $word in
      *[!A-Za-z0-9_./:=,@+-]*) line+=" '$word'" ;;
      *) line+=" $word" ;;
    esac
  done
  printf '%s\n' "$line"
  "$@"
}

value() { if [ $# -lt 2 ] || [ -z "$2" ]; then fail "$1 needs a name"; fi; }
while [ $# -gt 0 ]; do
  case $1 in
    --existing) action=existing ;;
    --delete) action=delete ;;
    --node) value "$@"; node=$2; shift ;;
    --spare) value "$@"; spare=$2; shift ;;
    --context) value "$@"; context=$2; shift ;;
    -h | --help) usage 0 ;;
    *) echo "quickstart: unknown option $1" >&2; usage 2 >&2 ;;
  esac
  shift
done

need() { [ -n "$(type -P "$1")" ] || fail "$1 is missing: $2"; }
# Every call has an end, also where the API server takes it and never answers; those that wait get the time of a wait.
kubectl() {
  local limit=30
  case " $* " in
    *" wait "* | *" rollout "* | *" delete "*) limit=$((wait + 30)) ;;
  esac
  command kubectl --request-timeout="${limit}s" "$@"
}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
images=()
for name in node exporter controller; do images+=("docker.io/library/gpushare-$name:$version"); done

# at_least HAVE WANTED: numbers with dots, also v2.1.9 and 2.2.5-k3s1
at_least() {
  local have=${1#v}
  have=${have%%[-+~]*}
  [ "$(printf '%s\n%s\n' "$2" "$have" | sort -V | head -n 1)" = "$2" ]
}

# The kubeconfig's only context then is the one that was chosen, for gpushare as for kubectl.
choose_context() {
  [ -n "$context" ] || return 0
  kubectl config get-contexts -o name | grep -qxF "$context" || fail "kubectl has no context $context: see kubectl config get-contexts"
  kubeconfig=$(mktemp)
  kubectl config view --raw --minify --context "$context" >"$kubeconfig"
  export KUBECONFIG=$kubeconfig
}
kubeconfig=""
trap '[ -z "$kubeconfig" ] || rm -f "$kubeconfig"' EXIT

need_programs() {
  need kubectl "https://kubernetes.io/docs/tasks/tools"
  need openssl "apt-get install openssl"
  # `make up` makes .venv; a gpushare that is on the path comes first.
  PATH="$PATH:$PWD/.venv/bin"
  export PATH
  local install="run make up, then .venv/bin/pip install -c constraints.txt -e '.[doctor,views]'"
  need gpushare "$install"
  local one
  for one in doctor top; do
    gpushare "$one" --help >/dev/null 2>&1 || fail "gpushare $one does not start: $install"
  done
}

# until_true SECONDS COMMAND...: once a second until it succeeds
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    sleep 1
  done
}

# ---- A cluster

create_cluster() {
  need docker "https://docs.docker.com/engine/install, or use --existing with a cluster of yours"
  need kind "https://kind.sigs.k8s.io, v0.33.0 or newer for $node_image; or use --existing with a cluster of yours"
  docker info >/dev/null 2>&1 || fail "docker does not answer: start it, and make sure that you may use it (docker info)"
  if kind get clusters 2>/dev/null | grep -qxF "$cluster"; then
    fail "kind cluster $cluster exists: use --existing --context kind-$cluster, remove it with --delete, or set CLUSTER=another"
  fi
  say "A kind cluster, $cluster: a control plane, a node to share, a node kept aside"
  show kind create cluster --name "$cluster" --image "$node_image" --config hack/quickstart/kind.yaml --wait "${wait}s"
  context=kind-$cluster
  kubectl --context "$context" annotate namespace kube-system "$mark=cluster" --overwrite >/dev/null
  node=$cluster-worker spare=$cluster-worker2
}

load_images() {
  say "The three images, built and loaded (minutes the first time)"
  unset REGISTRY PLATFORMS # kind takes what docker has, by the names that the manifests have
  show env BUILDER=docker bash images/build.sh node exporter controller
  show kind load docker-image --name "$cluster" "${images[@]}"
}

# ---- Before anything is installed

choose_nodes() {
  kubectl version >/dev/null 2>&1 || fail "the API server does not answer: check kubectl cluster-info"
  server=$(kubectl get --raw /version | sed -n 's/.*"gitVersion": *"v\([0-9.]*\).*/\1/p')
  at_least "$server" 1.34 || fail "the cluster has Kubernetes $server: 1.34 or newer is needed"
  if [ -z "$node" ]; then
    node=$(kubectl get nodes --field-selector spec.unschedulable=false \
      -o jsonpath='{range .items[*]}{.metadata.name} {.spec.taints[*].effect}{"\n"}{end}' |
      grep -v NoSchedule | tr -d ' ' | grep -vxF "${spare:-/}" | head -n 1 || true)
    [ -n "$node" ] || fail "no node takes pods: see kubectl get nodes, or name one with --node"
  fi
  [ "$node" != "$spare" ] || fail "--node and --spare name the same node"
  if [ -n "$spare" ] && [ "$(kubectl get node "$spare" -o jsonpath='{.metadata.labels.gpushare\.dev/pool}' 2>/dev/null)" = demo ]; then
    say "Done before: the autoscaler has bought node $spare. To begin again: bash hack/quickstart-kind.sh --delete${context:+ --context $context}"
    exit 0
  fi
  local one
  for one in "$node" ${spare:+"$spare"}; do
    kubectl get node "$one" >/dev/null 2>&1 || fail "there is no node $one: see kubectl get nodes"
    local runtime
    runtime=$(kubectl get node "$one" -o jsonpath='{.status.nodeInfo.containerRuntimeVersion}')
    case $runtime in
      containerd://*) at_least "${runtime#*://}" 2.1 || fail "node $one has containerd ${runtime#*://}: 2.1 or newer is needed" ;;
      cri-o://*) at_least "${runtime#*://}" 1.34 || fail "node $one has CRI-O ${runtime#*://}: 1.34 or newer is needed" ;;
      *) fail "node $one has the runtime $runtime: containerd 2.1 or CRI-O 1.34 is needed" ;;
    esac
    [ -z "$(kubectl get node "$one" -o jsonpath='{.metadata.labels.nvidia\.com/gpu\.present}')" ] || fail "node $one has cards: the demo is for nodes without"
  done
}

refuse_another_installation() {
  local made
  made=$(kubectl get namespace "$system" --ignore-not-found -o jsonpath="{.metadata.name} {$jsonpath}")
  case $made in
    "" | "$system installation") ;;
    *) fail "gpushare is installed here already, not by this script: it changes nothing. Use another cluster, or remove gpushare first (docs/upgrade.md)" ;;
  esac
}

# mark_node NAME AS: what is there before we write it is not ours to remove
mark_node() {
  local found
  found=$(kubectl get node "$1" -o jsonpath="{.metadata.labels.ack\\.node\\.gpu\\.schedule}/{$jsonpath}")
  case $found in
    / | */node | */spare) ;;
    *) fail "node $1 has the label ack.node.gpu.schedule already, not by this script" ;;
  esac
  kubectl annotate node "$1" "$mark=$2" --overwrite >/dev/null
}

check_node() {
  say "What gpushare doctor says of node $node"
  mark_node "$node" node
  if [ -n "$spare" ]; then
    mark_node "$spare" spare
    show kubectl cordon "$spare" # kept aside until the autoscaler buys it
  fi
  show kubectl label node "$node" ack.node.gpu.schedule=core_mem --overwrite
  kubectl delete pod gpushare-check --ignore-not-found >/dev/null
  show kubectl apply -k hack/quickstart/check
  local said
  finished() { case $(kubectl get pod gpushare-check -o jsonpath='{.status.phase}') in Succeeded | Failed) ;; *) return 1 ;; esac }
  if ! until_true "$wait" finished; then
    kubectl describe pod gpushare-check | tail -n 20 >&2
    fail "gpushare-check does not run. If its image is missing: docs/images.md says how to build images and load them onto nodes"
  fi
  said=$(kubectl logs gpushare-check)
  kubectl delete pod gpushare-check --wait=false >/dev/null
  printf '$ kubectl logs gpushare-check\n%s\n' "$said"
  grep -q '^ok  *machine\.nri ' <<<"$said" || fail "NRI, the container runtime's interface for plugins, is off on node $node: docs/quickstart.md says how to switch it on"
}

# ---- Installation

# A kube-scheduler must not be newer than the API server.
fit_kube_scheduler() {
  local ours_is
  ours_is=$(sed -n 's|.*image: registry.k8s.io/kube-scheduler:v\([0-9.]*\)@.*|\1|p' manifests/base/scheduler/deployment.yaml)
  if ! at_least "$server" "${ours_is%.*}"; then
    show kubectl -n "$system" set image deployment/gpushare-scheduler "kube-scheduler=registry.k8s.io/kube-scheduler:v$server"
  fi
}

install() {
  say "The demo overlay with a pool that the autoscaler may grow"
  show kubectl apply -f hack/quickstart/nodepool.yaml
  show kubectl wait --for=condition=Established crd/nodepools.quickstart.gpushare.dev --timeout="${wait}s"
  applied=$SECONDS
  printf '$ kubectl apply -k hack/quickstart\n'
  kubectl apply -k hack/quickstart | grep -E '^(daemonset|deployment)'
  fit_kube_scheduler
  show sh manifests/certificate.sh
  show kubectl -n "$system" rollout status deployment/gpushare-scheduler --timeout="${wait}s"
  show kubectl -n "$system" rollout status daemonset/gpushare-node --timeout="${wait}s"
  # Before that the autoscaler would buy a node for pods that are there: theirs is not serving yet.
  offers() { [ "$(kubectl get node "$node" -o jsonpath='{.status.allocatable.aliyun\.com/gpu-mem}')" -gt 0 ] 2>/dev/null; }
  until_true "$wait" offers || fail "node $node offers no memory of cards: see kubectl -n $system logs daemonset/gpushare-node"
}

tenants() {
  say "Three pods, each with 4 GiB and a quarter of the compute of a card"
  show kubectl apply -k manifests/overlays/demo/tenants
  show kubectl rollout status deployment/gpushare-demo --timeout="${wait}s"
  echo "three pods with a share run $((SECONDS - applied)) s after the manifests were applied"
}

show_top() {
  whole() { ! gpushare top --once | grep -q '?'; } # a figure is unknown for a moment where its node is busy
  until_true 60 whole || true
  show gpushare top --once
}

views() {
  say "What gpushare says of the cluster"
  show kubectl -n "$system" rollout status deployment/gpushare-autoscaler --timeout="${wait}s"
  show kubectl -n "$system" rollout status daemonset/gpushare-exporter --timeout="${wait}s"
  printf '$ gpushare doctor cluster\n'
  local status=0
  gpushare doctor cluster || status=$?
  [ "$status" -ne 1 ] || fail "doctor has found a problem: it says how to fix it"
  local pod
  pod=$(kubectl get pods -l app=gpushare-demo -o jsonpath='{.items[0].metadata.name}')
  show_top
  show gpushare explain "$pod"
}

refused() {
  say "A pod that wants more than its promise is refused: each tenant tries, again and again"
  local pod
  pod=$(kubectl get pods -l app=gpushare-demo -o jsonpath='{.items[0].metadata.name}')
  said() { kubectl logs "$pod" --tail=3 | grep -q canary.limited; }
  until_true "$wait" said || fail "pod $pod does not say that it was refused: see kubectl logs $pod"
  show kubectl logs "$pod" --tail=3
  denied() { gpushare breaches 2>/dev/null | grep -q ' denied '; }
  until_true "$wait" denied || fail "no exporter reports the refusals: see kubectl -n $system logs daemonset/gpushare-exporter"
  show gpushare breaches
}

alert() {
  say "An alert: so many refusals are no accident"
  kubectl -n "$ours" delete configmap gpushare-rules --ignore-not-found >/dev/null
  show kubectl -n "$ours" create configmap gpushare-rules --from-file=dashboards/rules/out/gpushare.rules.yaml
  show kubectl apply -f hack/quickstart/prometheus.yaml
  if ! kubectl -n "$ours" rollout status deployment/prometheus --timeout="${wait}s" >/dev/null; then
    echo "skipped: Prometheus does not start, see kubectl -n $ours get pods"
    return 0
  fi
  local query='ALERTS{alertname="GpushareAllocationsDenied", alertstate="firing"}'
  ask() { kubectl -n "$ours" exec deploy/prometheus -- promtool query instant http://127.0.0.1:9090 "$query"; }
  fires() { ask 2>/dev/null | grep -q ALERTS; }
  echo "waiting until a container has been refused more than ten times within ten minutes (two or three minutes)"
  until_true "$wait" fires || fail "the alert does not fire: see kubectl -n $ours logs deploy/prometheus"
  show kubectl -n "$ours" exec deploy/prometheus -- promtool query instant http://127.0.0.1:9090 "$query"
}

purchase() {
  say "A purchase: two more pods, of which one fits on no card"
  if [ -z "$spare" ]; then
    echo "skipped: no node is kept aside; name an idle one with --spare"
    return 0
  fi
  show kubectl apply -k hack/quickstart/more
  local pending=""
  find_pending() { # one runs, and the other has no node: both are `Pending` for a while
    [ "$(kubectl get pods -l app=gpushare-more --field-selector=status.phase=Running -o name | wc -l)" -eq 1 ] &&
      pending=$(kubectl get pods -l app=gpushare-more --field-selector=spec.nodeName= -o jsonpath='{.items[0].metadata.name}' 2>/dev/null)
  }
  until_true "$wait" find_pending || fail "not one of the pods runs and one is pending: see kubectl get pods"
  ordered() { [ "$(kubectl -n "$ours" get nodepool demo -o jsonpath='{.spec.replicas}')" = 1 ]; }
  until_true "$wait" ordered || fail "the autoscaler buys nothing: see kubectl -n $system logs deployment/gpushare-autoscaler"
  event_written() { kubectl get events --field-selector "involvedObject.name=$pending,reason=TriggeredScaleUp" -o name | grep -q .; }
  until_true 20 event_written || true # it follows the purchase
  show gpushare explain "$pending"
  show kubectl -n "$ours" get nodepool demo
  echo "this script is the pool's controller: it hands over node $spare"
  show kubectl label node "$spare" gpushare.dev/pool=demo ack.node.gpu.schedule=core_mem --overwrite
  show kubectl uncordon "$spare"
  show kubectl -n "$ours" patch nodepool demo --subresource=status --type=merge -p '{"status":{"replicas":1}}'
  show kubectl rollout status deployment/gpushare-more --timeout="${wait}s" || {
    gpushare explain "$pending" || true
    kubectl get events --field-selector "involvedObject.kind=Node,involvedObject.name=$spare" --sort-by=.lastTimestamp | tail -n 5
    fail "the pods do not run on the new node $spare: see above, and kubectl describe node $spare"
  }
  show_top
}

# ---- Removal

delete() {
  local made left one
  if [ -z "$context" ] && command -v kind >/dev/null && kind get clusters 2>/dev/null | grep -qxF "$cluster"; then
    made=$(kubectl --context "kind-$cluster" get namespace kube-system -o jsonpath="{$jsonpath}" 2>/dev/null || true)
    [ "$made" = cluster ] || fail "kind cluster $cluster does not bear the mark of this script; if it is yours: kind delete cluster --name $cluster"
    show kind delete cluster --name "$cluster"
    return 0
  fi
  choose_context
  kubectl version >/dev/null 2>&1 || fail "there is no kind cluster $cluster, and the API server of your kubectl context does not answer"
  made=$(kubectl get namespace "$system" --ignore-not-found -o jsonpath="{$jsonpath}")
  if [ "$made" = installation ]; then
    left=$(kubectl get pods -A -l 'gpushare.dev/shared=true,app notin (gpushare-demo, gpushare-more)' \
      -o jsonpath='{range .items[*]}{.metadata.namespace}/{.metadata.name} {end}')
    [ -z "$left" ] || fail "pods of yours have shares: ${left% }; delete them first, without an agent they cannot restart"
    # Pods with shares first, while there is an agent that takes their shares back.
    kubectl delete -k hack/quickstart/more --ignore-not-found
    kubectl delete -k manifests/overlays/demo/tenants --ignore-not-found
    kubectl wait pods -l 'app in (gpushare-demo, gpushare-more)' --for=delete --timeout="${wait}s"
    kubectl delete -f hack/quickstart/prometheus.yaml --ignore-not-found
    kubectl delete -k hack/quickstart --ignore-not-found
  else
    echo "gpushare is not installed here by this script; if it is installed: docs/upgrade.md says how to remove it"
  fi
  kubectl delete -f hack/quickstart/nodepool.yaml --ignore-not-found
  kubectl delete pod gpushare-check --ignore-not-found
  local cleaned=
  for one in $(kubectl get nodes -o jsonpath="{range .items[*]}{.metadata.name}={$jsonpath} {end}"); do
    case ${one#*=} in
      spare) kubectl uncordon "${one%%=*}" ;;
      node) ;;
      *) continue ;;
    esac
    one=${one%%=*} cleaned=yes
    kubectl label node "$one" ack.node.gpu.schedule- gpushare.dev/pool- gpushare.dev/card-units- gpushare.dev/card-count- \
      aliyun.accelerator/nvidia_name- aliyun.accelerator/nvidia_mem- >/dev/null
    kubectl annotate node "$one" "$mark-" gpushare.dev/agent- gpushare.dev/cards- gpushare.dev/isolation- \
      gpushare.dev/resized- gpushare.dev/unhealthy-cards-
    # Written by the agent; aliyun.com/gpu-mem is the kubelet's
    local names='{"aliyun.com/gpu-core.percentage":null,"aliyun.com/gpu-count":null}'
    kubectl patch node "$one" --subresource=status --type=merge -p "{\"status\":{\"capacity\":$names,\"allocatable\":$names}}" >/dev/null
  done
  [ -n "$cleaned" ] || return 0
  echo "in the nodes' status aliyun.com/gpu-mem stays, allocatable 0, until the Node object is deleted: the kubelet keeps the name"
  echo "on the nodes /var/lib/gpushare stays, with the simulated cards, and /var/run/cdi/gpushare-*.json if an agent was killed (docs/upgrade.md)"
}

# A function, so that the file may change while it runs.
main() {
  case $action in
    delete) need kubectl "https://kubernetes.io/docs/tasks/tools"; delete; return 0 ;;
    create) need_programs; create_cluster; choose_context; load_images ;;
    existing)
      need_programs
      kubectl config current-context >/dev/null 2>&1 || [ -n "$context" ] ||
        fail "kubectl knows no cluster: set KUBECONFIG, or name a context with --context; without a cluster leave out --existing"
      choose_context
      again=${context:+ --context $context}
      say "Skipped: making a cluster, building and loading images; this is kubectl context $(kubectl config current-context)"
      ;;
  esac
  choose_nodes
  refuse_another_installation
  check_node
  install
  tenants
  views
  refused
  alert
  purchase
  say "Done: gpushare runs on node $node${spare:+ and $spare}. To remove it: bash hack/quickstart-kind.sh --delete$again"
}

main; exit
