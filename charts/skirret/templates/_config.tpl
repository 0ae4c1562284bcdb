{{/* The operator's configuration, as skirret_api.config.OperatorConfig reads it. */}}
{{- define "skirret.operatorConfig" -}}
{{- $profiles := dict -}}
{{- range $name, $profile := .Values.profiles -}}
{{- $image := $profile.image | default (include "skirret.serverImage" (list $ $profile)) -}}
{{- $_ := set $profiles $name (set (deepCopy $profile) "image" $image) -}}
{{- end -}}
namespaces: {{ include "skirret.namespaces" . | splitList "," | toJson }}
releaseNamespace: {{ .Release.Namespace }}
gatewayUrl: http://skirret-gateway.{{ .Release.Namespace }}.svc:8080
images:
  server: {{ include "skirret.image" (list . .Values.serverImages.cpu) }}
  batch: {{ include "skirret.image" (list . .Values.image) }}
  pullPolicy: {{ .Values.imagePullPolicy }}
imagePullSecrets: {{ toJson .Values.imagePullSecrets }}
runAsUser: {{ toJson .Values.runAsUser }}
{{- with .Values.defaultProfile }}
defaultProfile: {{ . }}
{{- end }}
profiles:
  {{- toYaml $profiles | nindent 2 }}
batchWorker:
  {{- toYaml .Values.batchWorker | nindent 2 }}
timings: {{ toJson .Values.operator.timings }}
{{- end }}

{{/* The server image for a profile's device. Call with (list $ profile). */}}
{{- define "skirret.serverImage" -}}
{{- $root := index . 0 -}}
{{- $profile := index . 1 -}}
{{- $asked := merge (dict) (dig "resources" "limits" dict $profile) (dig "resources" "requests" dict $profile) -}}
{{- $images := $root.Values.serverImages -}}
{{- $image := $images.cpu -}}
{{- if hasKey $asked "nvidia.com/gpu" }}{{ $image = $images.cuda }}{{ end -}}
{{- if hasKey $asked "amd.com/gpu" }}{{ $image = $images.rocm }}{{ end -}}
{{ include "skirret.image" (list $root $image) }}
{{- end }}
