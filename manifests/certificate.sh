#!/bin/sh
# A certificate for the webhook, by an authority of its own, for clusters without cert-manager.
#   kubectl apply -k manifests/base && sh manifests/certificate.sh
# Again before it ends (DAYS, 365), or at any time: it is read without a restart, and until every replica has read it
# the API server believes the authority before as well. Needs openssl and kubectl; the authority's key is thrown away.
set -eu
umask 077
name=gpushare-scheduler namespace=gpushare-system days=${DAYS:-365}
host=$name.$namespace.svc
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

curve="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
# shellcheck disable=SC2086 # several words
openssl req -x509 $curve -days "$days" -subj "/CN=gpushare webhook authority" -keyout ca.key -out ca.crt 2>log || { cat log >&2; exit 1; }
# shellcheck disable=SC2086 # several words
openssl req $curve -subj "/CN=$host" -keyout tls.key -out tls.csr 2>log || { cat log >&2; exit 1; }
printf 'subjectAltName=DNS:%s,DNS:%s-leader.%s.svc\nextendedKeyUsage=serverAuth\n' "$host" "$name" "$namespace" >names
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -extfile names -out tls.crt 2>log ||
  { cat log >&2; exit 1; }

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
kubectl -n "$namespace" create secret tls "$name-tls" --cert=tls.crt --key=tls.key --dry-run=client -o yaml |
  kubectl apply -f -
echo "valid for $host until $(openssl x509 -noout -enddate -in tls.crt | cut -d= -f2)"
