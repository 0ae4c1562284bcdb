{{/*
What every pod of the chart has: Pod Security "restricted" and nothing by default that could be used
against it. Call with the root context.
*/}}
{{- define "skirret.podDefaults" -}}
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- with .Values.runAsUser }}
  runAsUser: {{ int64 . }}
  runAsGroup: {{ int64 . }}
  fsGroup: {{ int64 . }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "skirret.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where a pod may run. Call with the values of the component. */}}
{{- define "skirret.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* One egress rule. Call with {to: peers (empty: any), ports: numbers (empty: any)}. */}}
{{- define "skirret.egress" -}}
{{- $rule := dict -}}
{{- with .to }}{{ $_ := set $rule "to" . }}{{ end -}}
{{- $ports := list -}}
{{- range .ports }}{{ $ports = append $ports (dict "port" (int .)) }}{{ end -}}
{{- with $ports }}{{ $_ := set $rule "ports" . }}{{ end -}}
{{ toYaml $rule }}
{{- end }}
