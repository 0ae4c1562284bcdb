{{/* Labels of every object. Call with the root context. */}}
{{- define "skirret.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: skirret
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* Labels that a selector may use: they never change. Call with (dict "root" $ "component" "gateway"). */}}
{{- define "skirret.selector" -}}
app.kubernetes.io/name: skirret
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "skirret.componentLabels" -}}
{{ include "skirret.selector" . }}
{{ include "skirret.labels" .root }}
{{- end }}

{{/* An image reference. Call with (list $ .Values.image). */}}
{{- define "skirret.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $name := $image.repository -}}
{{- with $root.Values.imageRegistry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end }}
