{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/*
That a pod has words of the dialects that are on, outside the namespaces that are left to their systems, or of those that
are off: (list $ POD WHICH), POD an expression of CEL, WHICH "on" or "off".
*/}}
{{- define "gpushare.speaks" -}}
{{- $root := index . 0 -}}
{{- $pod := index . 1 -}}
{{- $on := eq (index . 2) "on" -}}
{{- $left := ternary $root.Values.admission.leaveTo dict $on -}}
{{- $everywhere := list -}}
{{- $elsewhere := list -}}
{{- range include "gpushare.dialects" $root | fromJsonArray -}}
{{- if ne (has .name $root.Values.admission.dialects) $on -}}
{{- else if hasKey $left .name -}}
{{- $namespaces := get $left .name | sortAlpha | default (list "") -}}
{{- $elsewhere = append $elsewhere (printf "!(request.namespace in ['%s']) && (%s)" (join "', '" $namespaces) (include "gpushare.words" (list $pod (list .)))) -}}
{{- else -}}
{{- $everywhere = append $everywhere . -}}
{{- end -}}
{{- end -}}
{{- $found := $elsewhere -}}
{{- if $everywhere -}}
{{- $found = prepend $elsewhere (include "gpushare.words" (list $pod $everywhere)) -}}
{{- end -}}
({{ join " || " $found }})
{{- end -}}

{{/* That a pod has words of these dialects: (list POD DIALECTS). */}}
{{- define "gpushare.words" -}}
{{- $pod := index . 0 -}}
{{- $containers := printf "dyn(%s.spec.containers) + dyn(%s.spec.?initContainers.orValue([]))" $pod $pod -}}
{{- $resources := list -}}
{{- $annotations := list -}}
{{- $selected := list -}}
{{- $byContainer := list -}}
{{- range index . 1 -}}
{{- $resources = concat $resources .resources -}}
{{- range .annotations -}}
{{- $annotations = append $annotations (printf "%s.metadata.?annotations[?'%s'].hasValue()" $pod .) -}}
{{- end -}}
{{- if .selector -}}
{{- $tied := printf "%s.spec.?nodeSelector[?'%s'].hasValue()" $pod .selector -}}
{{- $selected = append $selected (printf "(%s && (%s).exists(c, %s))" $tied $containers (include "gpushare.names" .selected)) -}}
{{- end -}}
{{- range .byContainer -}}
{{- $byContainer = append $byContainer (printf "'%s' + c.name + '%s' in %s.metadata.annotations" (index . 0) (index . 1) $pod) -}}
{{- end -}}
{{- end -}}
{{- $found := list -}}
{{- if $resources -}}
{{- $found = append $found (printf "((%s).exists(c, %s))" $containers (include "gpushare.names" $resources)) -}}
{{- end -}}
{{- if $annotations -}}
{{- $found = append $found (printf "((%s))" (join " || " $annotations)) -}}
{{- end -}}
{{- $found = concat $found $selected -}}
{{- if $byContainer -}}
{{- $found = append $found (printf "(has(%s.metadata.annotations) && (%s).exists(c, %s))" $pod $containers (join " || " $byContainer)) -}}
{{- end -}}
{{- join " || " $found -}}
{{- end -}}

{{/* That container c names one of these resources. */}}
{{- define "gpushare.names" -}}
{{- $names := . -}}
{{- $parts := list -}}
{{- range $part := list "limits" "requests" -}}
{{- $in := list -}}
{{- range $names -}}
{{- $in = append $in (printf "'%s' in c.resources.%s" . $part) -}}
{{- end -}}
{{- $parts = append $parts (printf "has(c.resources.%s) && (%s)" $part (join " || " $in)) -}}
{{- end -}}
has(c.resources) && ({{ join " || " $parts }})
{{- end -}}

{{/* What the dialects that are on are called. */}}
{{- define "gpushare.titles" -}}
{{- $titles := list -}}
{{- range include "gpushare.dialects" . | fromJsonArray -}}
{{- if has .name $.Values.admission.dialects }}{{ $titles = append $titles .title }}{{ end -}}
{{- end -}}
{{- join " or " $titles -}}
{{- end -}}
