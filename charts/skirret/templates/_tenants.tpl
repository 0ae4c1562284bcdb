{{/*
Every tenant as {name, store, token}, with the default store filled in. Refuses two tenants with one
store: each would list and sweep the other's batches.
*/}}
{{- define "skirret.tenants" -}}
{{- $tenants := list -}}
{{- $owners := dict -}}
{{- range .Values.namespaces | default (list (dict "name" .Release.Namespace)) -}}
{{- $name := .name -}}
{{- $store := deepCopy $.Values.store -}}
{{- /* Not `merge`: that takes false and "" for nothing said. */ -}}
{{- range $key, $value := .store }}{{ $_ := set $store $key $value }}{{ end -}}
{{- if not $store.existingSecret -}}
{{- range list "endpoint" "bucket" -}}
{{- if not (get $store .) -}}
{{- fail (printf "store.%s is missing for namespace %s: files and batches need an S3 bucket (or give store.existingSecret)" . $name) -}}
{{- end -}}
{{- end -}}
{{- $place := printf "%s/%s/%s" (trimSuffix "/" $store.endpoint) $store.bucket (trimAll "/" $store.prefix) -}}
{{- with get $owners $place -}}
{{- fail (printf "namespaces %s and %s share the store %s: give each its own store.prefix or store.bucket" . $name $place) -}}
{{- end -}}
{{- $_ := set $owners $place $name -}}
{{- end -}}
{{- $tenants = append $tenants (dict "name" $name "store" $store "token" (.token | default "")) -}}
{{- end -}}
{{ toJson $tenants }}
{{- end }}

{{/* The names of the tenants' namespaces, joined by commas. */}}
{{- define "skirret.namespaces" -}}
{{- $names := list -}}
{{- range include "skirret.tenants" . | fromJsonArray }}{{ $names = append $names .name }}{{ end -}}
{{ join "," $names }}
{{- end }}

{{/* A tenant's store.json, as skirret_api.tenants.S3Store reads it. Call with its store. */}}
{{- define "skirret.storeJson" -}}
{{- $settings := omit . "existingSecret" "caBundle" -}}
{{- with .caBundle }}{{ $_ := set $settings "caBundle" . }}{{ end -}}
{{ set $settings "kind" "s3" | toJson }}
{{- end }}

{{/* A short digest of what the values say of the tenants: operator and gateway restart when it changes. */}}
{{- define "skirret.tenantsChecksum" -}}
{{ include "skirret.tenants" . | sha256sum | trunc 16 }}
{{- end }}

{{/* One volume with every tenant's store and token: the chart's own Secret and the referenced ones. */}}
{{- define "skirret.tenantsVolume" -}}
- name: tenants
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: skirret-tenants
      {{- range include "skirret.tenants" . | fromJsonArray }}
      {{- if .store.existingSecret }}
      - secret:
          name: {{ .store.existingSecret }}
          items:
            - key: store.json
              path: {{ .name }}.store.json
            - key: token
              path: {{ .name }}.token
      {{- end }}
      {{- end }}
{{- end }}
