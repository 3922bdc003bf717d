{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* The namespace of all objects. */}}
{{- define "gpushare.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{/* An image of ours: (list $ NAME), by its name among the values. */}}
{{- define "gpushare.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.images (index . 1) -}}
{{- with $root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/*
The image of kube-scheduler: (list $ PINNED), PINNED the tag and digest that the manifests name. In a cluster of that
minor version it is that one, elsewhere the cluster's own version.
*/}}
{{- define "gpushare.kubeSchedulerImage" -}}
{{- $root := index . 0 -}}
{{- $image := $root.Values.scheduler.kubeScheduler.image -}}
{{- $pinned := index . 1 -}}
{{- $cluster := regexFind "^v?[0-9]+\\.[0-9]+\\.[0-9]+" $root.Capabilities.KubeVersion.Version | trimPrefix "v" | printf "v%s" -}}
{{- $ours := regexFind "^v[0-9]+\\.[0-9]+\\." $pinned -}}
{{- $chosen := hasPrefix $ours $cluster | ternary $pinned $cluster -}}
{{- with $image.tag }}{{ $chosen = . }}{{ end -}}
{{- with $image.digest }}{{ $chosen = printf "%s@%s" (regexReplaceAll "@.*" $chosen "") . }}{{ end -}}
{{- $image.repository }}:{{ $chosen -}}
{{- end -}}

{{/* A sentence beside that image where no cluster was asked. */}}
{{- define "gpushare.unseen" -}}
{{- if not (or .Values.scheduler.kubeScheduler.image.tag (lookup "v1" "Namespace" "" "kube-system")) }} # Rendered without a cluster, for Kubernetes {{ .Capabilities.KubeVersion.Version }}: give the cluster's version with --kube-version.
{{- end -}}
{{- end -}}

{{/* Entries of imagePullSecrets from a list of names. */}}
{{- define "gpushare.pullSecrets" -}}
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end -}}

{{/*
Objects that the autoscaler may scale, with the fewest and the most replicas, as JSON: what `gpushare autoscaler bounds`
prints for these pools.
*/}}
{{- define "gpushare.scaleBounds" -}}
{{- $found := dict -}}
{{- range .Values.autoscaler.pools -}}
{{- $source := eq .provider "externalgrpc" | ternary .settings . | default dict -}}
{{- if eq ($source.provider | default "") "scale" -}}
{{- $settings := $source.settings | default dict -}}
{{- $group := regexReplaceAll "/?[^/]*$" ($settings.apiVersion | default "cluster.x-k8s.io/v1beta1") "" -}}
{{- $resource := $settings.resource | default "machinedeployments" -}}
{{- $key := printf "%s.%s/%s/%s" $resource $group ($settings.namespace | default "default") $settings.name -}}
{{- $_ := set $found $key (list (dig "min_nodes" 0 .) (dig "max_nodes" 10 .)) -}}
{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}
