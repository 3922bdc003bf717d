#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Certificates by authorities of their own, for clusters without cert-manager. Once after `kubectl apply -k`:
#   sh manifests/certificate.sh [scheduler] [admission] [extender] [metrics-api] [grpc]
#
#   scheduler    the webhook's (what is made where nothing is named); the API server is told whom to believe
#   admission    one with which the API server calls the webhook, for components/admission-client-certificate: its files
#                for --admission-control-config-file are put into $OUT, to be found there as $AT (/etc/kubernetes/gpushare)
#   extender     the webhook's, and one with which an existing kube-scheduler asks us: its files are put into $OUT
#   metrics-api  of components/metrics-api
#   grpc         of components/grpc, and those of its callers: Secrets gpushare-cluster-autoscaler and gpushare-keda,
#                for you to copy to where these run
#
# Again before they end (DAYS, 365), or at any time: we read them without a restart, and until every replica has read
# the webhook's the API server believes the authority before as well. Callers' certificates of admission and extender are
# of a new authority each time: hand them out again (admission believes the one before meanwhile). That of grpc stays for
# ten times as long, in Secret gpushare-grpc-authority: callers go on with what they have until it ends. Where a key of it
# was lost, delete that Secret and gpushare-autoscaler-grpc-tls first: then nothing from before is believed any more.
# NAMESPACE is where gpushare is, if not in gpushare-system. Needs openssl and kubectl; the other authorities' keys are thrown away.
set -eu
umask 077
namespace=${NAMESPACE:-gpushare-system} days=${DAYS:-365}
[ $# -gt 0 ] || set -- scheduler
for wanted in "$@"; do
  case $wanted in
    scheduler | metrics-api | grpc) ;;
    admission | extender) [ -n "${OUT:-}" ] || { echo "$wanted: say where its files go, OUT=folder" >&2; exit 2; } ;;
    *) echo "$wanted: name scheduler, admission, extender, metrics-api or grpc" >&2; exit 2 ;;
  esac
done
for program in openssl kubectl; do
  command -v "$program" >/dev/null || { echo "$program is missing: install it" >&2; exit 1; }
done
kubectl version --request-timeout=30s >/dev/null 2>&1 ||
  { echo "kubectl reaches no cluster: set KUBECONFIG, or see kubectl cluster-info" >&2; exit 1; }
[ -z "${OUT:-}" ] || { mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd); }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

curve="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
quietly() { "$@" 2>log || { cat log >&2; exit 1; }; }

# authority FILES NAME
authority() {
  # shellcheck disable=SC2086 # several words
  quietly openssl req -x509 $curve -days "$days" -subj "/CN=$2" -keyout "$1.key" -out "$1.crt"
}

# signed FILES AUTHORITY COMMON-NAME EXTENSIONS
signed() {
  # shellcheck disable=SC2086 # several words
  quietly openssl req $curve -subj "/CN=$3" -keyout "$1.key" -out "$1.csr"
  printf "$4" >names
  quietly openssl x509 -req -in "$1.csr" -CA "$2.crt" -CAkey "$2.key" -CAcreateserial -days "$days" -extfile names -out "$1.crt"
}

# secret NAME FILES [AUTHORITY]
secret() {
  set -- "$1" "$2.crt" "$2.key" "${3:+$3.crt}"
  kubectl -n "$namespace" create secret generic "$1" --type=kubernetes.io/tls --from-file=tls.crt="$2" \
    --from-file=tls.key="$3" ${4:+--from-file=ca.crt="$4"} --dry-run=client -o yaml | kubectl apply -f -
}

# stored SECRET KEY; nothing where there is none
stored() {
  kubectl -n "$namespace" get secret "$1" --ignore-not-found -o jsonpath="{.data['${2%.*}\.${2#*.}']}" | base64 -d
}

webhook() {
  name=gpushare-scheduler
  host=$name.$namespace.svc
  authority ca "gpushare webhook authority"
  signed tls ca "$host" "subjectAltName=DNS:$host,DNS:$name-leader.$namespace.svc\nextendedKeyUsage=serverAuth\n"
  # First whom to believe, then what to show: in the other order calls would fail in between.
  for configuration in $(kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations -o name | grep "/$name"); do
    count=$(kubectl get "$configuration" -o jsonpath='{range .webhooks[*]}{.name}{"\n"}{end}' | grep -c .)
    before=$(kubectl get "$configuration" -o jsonpath='{.webhooks[0].clientConfig.caBundle}')
    printf %s "$before" | base64 -d 2>/dev/null | sed '/END CERTIFICATE/q' >before.crt
    bundle=$(cat ca.crt before.crt | base64 | tr -d '\n')
    patch= at=0
    while [ "$at" -lt "$count" ]; do
      patch="$patch${patch:+,}{\"op\":\"add\",\"path\":\"/webhooks/$at/clientConfig/caBundle\",\"value\":\"$bundle\"}"
      at=$((at + 1))
    done
    kubectl patch "$configuration" --type=json -p "[$patch]"
  done
  secret "$name-tls" tls
}

admission() {
  at=${AT:-/etc/kubernetes/gpushare}
  authority admissions "gpushare admission callers"
  signed apiserver admissions kube-apiserver "extendedKeyUsage=clientAuth\n"
  # The authority before is believed too, until every API server has its new files.
  kubectl -n "$namespace" get secret gpushare-scheduler-admission-clients --ignore-not-found \
    -o jsonpath='{.data.ca\.crt}' | base64 -d | sed '/END CERTIFICATE/q' >>admissions.crt
  kubectl -n "$namespace" create secret generic gpushare-scheduler-admission-clients --from-file=ca.crt=admissions.crt \
    --dry-run=client -o yaml | kubectl apply -f -
  cp apiserver.crt "$OUT/apiserver.crt"
  cp apiserver.key "$OUT/apiserver.key"
  # Kubernetes, "Dynamic Admission Control", section "Authenticate API servers": a user by the webhook's DNS name.
  cat >"$OUT/admission.yaml" <<END
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: MutatingAdmissionWebhook
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: WebhookAdmissionConfiguration
    kubeConfigFile: $at/webhooks.kubeconfig
END
  cat >"$OUT/webhooks.kubeconfig" <<END
apiVersion: v1
kind: Config
users:
- name: ${WEBHOOK:-gpushare-scheduler.$namespace.svc}
  user: {client-certificate: $at/apiserver.crt, client-key: $at/apiserver.key}
END
  echo "for every kube-apiserver, as $at: $OUT/admission.yaml (--admission-control-config-file), webhooks.kubeconfig, apiserver.crt, apiserver.key"
}

extender() {
  webhook
  authority clients "gpushare extender callers"
  signed caller clients kube-scheduler "extendedKeyUsage=clientAuth\n"
  kubectl -n "$namespace" create secret generic gpushare-scheduler-clients --from-file=ca.crt=clients.crt \
    --dry-run=client -o yaml | kubectl apply -f -
  cp ca.crt "$OUT/ca.crt"
  cp caller.crt "$OUT/tls.crt"
  cp caller.key "$OUT/tls.key"
  echo "for your kube-scheduler: $OUT/tls.crt, tls.key and ca.crt"
}

metrics_api() {
  authority apis "gpushare metrics authority"
  host=gpushare-autoscaler-metrics.$namespace.svc
  signed api apis "$host" "subjectAltName=DNS:$host\nextendedKeyUsage=serverAuth\n"
  secret gpushare-autoscaler-metrics-tls api apis
}

grpc() {
  # cluster-autoscaler reads its files once, at its start: what it has must be good until it is restarted. So this
  # authority is kept, with its key, and a caller whose certificate is of the one before is heard too.
  stored gpushare-grpc-authority tls.crt >grpc.crt
  stored gpushare-grpc-authority tls.key >grpc.key
  if ! openssl x509 -in grpc.crt -noout -checkend $((days * 86400)) >/dev/null 2>&1; then
    (days=$((days * 10)) && authority grpc "gpushare gRPC authority")
    secret gpushare-grpc-authority grpc
  fi
  stored gpushare-autoscaler-grpc-tls ca.crt | sed '/END CERTIFICATE/q' >before.crt
  cp grpc.crt heard.crt
  cmp -s grpc.crt before.crt || cat before.crt >>heard.crt
  host=gpushare-autoscaler.$namespace.svc
  signed server grpc "$host" "subjectAltName=DNS:$host\nextendedKeyUsage=serverAuth\n"
  secret gpushare-autoscaler-grpc-tls server heard
  for caller in cluster-autoscaler:cluster-autoscaler keda:keda-operator; do
    signed "${caller%:*}" grpc "${caller#*:}" "subjectAltName=DNS:${caller#*:}\nextendedKeyUsage=clientAuth\n"
    secret "gpushare-${caller%:*}" "${caller%:*}" grpc
  done
  echo "copy gpushare-cluster-autoscaler and gpushare-keda to where these run, and restart cluster-autoscaler before its certificate ends"
}

for wanted in "$@"; do
  case $wanted in
    scheduler) webhook ;;
    admission) admission ;;
    extender) extender ;;
    metrics-api) metrics_api ;;
    grpc) grpc ;;
  esac
  echo "$wanted: valid until $(date -u -d "+$days days" +%Y-%m-%d 2>/dev/null || echo "$days days from now")"
done
