#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One step of the set-up: says what it does and how long it has taken, keeps its output in a log, and shows the end of the
# log where the step fails. A step that has nothing to do says nothing. Usage: step.sh "what it does" LOG command...
set -uo pipefail
what="$1" log="$2"
shift 2
mkdir -p "$(dirname "$log")"
took() { printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60)); }
set -m # a group of its own: what the command has started ends with it
"$@" >"$log" 2>&1 </dev/null &
pid=$!
set +m
trap 'kill -- -"$pid" 2>/dev/null; wait "$pid" 2>/dev/null; echo; echo "$what: stopped; the same command goes on from here" >&2; exit 130' INT TERM
said=""
while kill -0 "$pid" 2>/dev/null; do
  if [ -t 1 ]; then
    [ $SECONDS -lt 3 ] || { said=yes; printf '\r\033[K%s ... %s  %s' "$what" "$(took)" "$(tail -n 1 "$log" | tr -d '\r' | cut -c 1-60)"; }
  elif [ -z "$said" ] && [ $SECONDS -ge 3 ]; then
    said=yes
    echo "$what ..."
  fi
  sleep 0.2
done
wait "$pid"
status=$?
[ ! -t 1 ] || [ -z "$said" ] || printf '\r\033[K'
if [ $status != 0 ]; then
  tail -n 40 "$log" >&2
  echo "$what: failed after $(took); its log is above and in $log" >&2
elif [ -n "$said" ]; then
  echo "$what: done in $(took)"
fi
exit $status
