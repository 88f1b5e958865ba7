{{/* Where each setting comes from. One that has two sources is an error: which is meant? */}}

{{- define "memagent.check" -}}
{{- $existing := .Values.existingSecret }}
{{- if and $existing.settings (not $existing.name) }}
{{- fail "existingSecret.settings lists keys, but existingSecret.name is empty: name the Secret that has them." }}
{{- end }}
{{- if and $existing.name (not $existing.settings) }}
{{- fail (printf "existingSecret.settings is empty: list the settings that are keys of the Secret %s." $existing.name) }}
{{- end }}
{{- range $name := concat (keys .Values.secrets) $existing.settings }}
{{- if hasKey $.Values.settings $name }}
{{- fail (printf "%s is in settings and is a secret, too: keep one." $name) }}
{{- end }}
{{- end }}
{{- range $name := $existing.settings }}
{{- if hasKey $.Values.secrets $name }}
{{- fail (printf "%s is in secrets and in existingSecret.settings: keep one." $name) }}
{{- end }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}
{{- fail "ingress.host is empty: set the host name that people use, as in memagent.example.org." }}
{{- end }}
{{- end }}

{{/* Text of a value as it was written: Go would make 1e+08 of 100000000. */}}
{{- define "memagent.text" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{- define "memagent.postgres" -}}
{{- if or (hasKey .Values.secrets "MEMAGENT_DATABASE_URL") (has "MEMAGENT_DATABASE_URL" .Values.existingSecret.settings) }}true{{ end }}
{{- end }}

{{/* Settings of the ConfigMap, as JSON: those given, those that follow from other values, and the files of secrets. */}}
{{- define "memagent.environment" -}}
{{- include "memagent.check" . }}
{{- $settings := dict }}
{{- if .Values.ingress.enabled }}
{{- $_ := set $settings "MEMAGENT_PUBLIC_URL" (printf "%s://%s" (ternary "https" "http" (ne .Values.ingress.tlsSecret "")) .Values.ingress.host) }}
{{- $_ := set $settings "MEMAGENT_TRUSTED_PROXIES" "1" }}
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- $_ := set $settings $name (include "memagent.text" $value) }}
{{- end }}
{{- range $name := concat (keys (include "memagent.secrets" . | fromJson)) .Values.existingSecret.settings | uniq | sortAlpha }}
{{- $_ := set $settings (printf "%s_FILE" $name) (printf "/run/secrets/memagent/%s" $name) }}
{{- end }}
{{- if not (include "memagent.postgres" .) }}
{{- $_ := set $settings "MEMAGENT_DATABASE_URL" "sqlite:////data/memagent.db" }}
{{- end }}
{{- toJson $settings }}
{{- end }}

{{/* Settings of the chart's own Secret, as JSON. Those that an earlier install created stay. */}}
{{- define "memagent.secrets" -}}
{{- $secrets := dict }}
{{- range $name, $value := .Values.secrets }}
{{- $_ := set $secrets $name (include "memagent.text" $value) }}
{{- end }}
{{- $live := default dict (lookup "v1" "Secret" .Release.Namespace (include "memagent.fullname" .)) }}
{{- $stored := default dict $live.data }}
{{- range $name := list "MEMAGENT_SECRET_KEY" "MEMAGENT_ADMIN_TOKEN" }}
{{- if not (or (hasKey $secrets $name) (has $name $.Values.existingSecret.settings)) }}
{{- $_ := set $secrets $name (hasKey $stored $name | ternary (get $stored $name | b64dec) (randAlphaNum 48)) }}
{{- end }}
{{- end }}
{{- toJson $secrets }}
{{- end }}

{{/* A file of dashboards/ with the address that its links lead to. */}}
{{- define "memagent.linked" -}}
{{- $url := get (include "memagent.environment" .root | fromJson) "MEMAGENT_PUBLIC_URL" }}
{{- .text | replace "http://localhost:8420" (default "http://localhost:8420" $url) }}
{{- end }}
