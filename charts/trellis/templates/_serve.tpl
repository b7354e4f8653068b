{{- /* The arguments of trellis serve. */}}
{{- define "trellis.serveArgs" -}}
{{- $l := .Values.limits -}}
- serve
- --listen=:8080
- --metrics-listen=:9090
- --log-format={{ .Values.logFormat }}
- --access-log={{ .Values.accessLog }}
- --database-connections={{ int .Values.database.connections }}
{{- range $name := list "rate" "maxBody" "maxHeader" "maxConnections" "maxCalls" "readTimeout" "writeTimeout" "idleTimeout" "statementTimeout" "lockTimeout" }}
{{- $value := get $l $name }}
{{- if not (kindIs "invalid" $value) }}
{{- /* Numbers come as floats, which would be written 8.388608e+06. */}}
{{- if and (ne $name "rate") (kindIs "float64" $value) }}{{ $value = int64 $value }}{{ end }}
- --{{ kebabcase $name }}={{ $value }}
{{- end }}
{{- end }}
{{- range .Values.trustedProxies }}
- --trusted-proxy={{ . }}
{{- end }}
{{- if .Values.inspectPrivate }}
- --inspect-private
{{- end }}
{{- if .Values.tls.secretName }}
- --tls-cert=/etc/trellis/tls/tls.crt
- --tls-key=/etc/trellis/tls/tls.key
{{- else }}
- --allow-http
{{- end }}
{{- with .Values.apiKeySecret.name }}
- --api-key-file=/etc/trellis/api/key
{{- end }}
{{- with .Values.signIn.oidc }}
{{- with .issuer }}
- --oidc-issuer={{ . }}
{{- end }}
{{- with .clientID }}
- --oidc-client-id={{ . }}
{{- end }}
{{- if .clientSecret.name }}
- --oidc-client-secret-file=/etc/trellis/oidc/client-secret
{{- end }}
{{- with .audience }}
- --oidc-audience={{ . }}
{{- end }}
{{- end }}
{{- with .Values.signIn.supabase }}
{{- with .url }}
- --supabase-url={{ . }}
{{- end }}
{{- if .keySecret.name }}
- --supabase-key-file=/etc/trellis/supabase/key
{{- end }}
{{- with .provider }}
- --supabase-provider={{ . }}
{{- end }}
{{- end }}
{{- with .Values.signIn.firstAdmin }}
- --first-admin={{ . }}
{{- end }}
{{- if .Values.webhooks.keySecret.name }}
- --key-file=/etc/trellis/webhooks/key
{{- end }}
{{- range .Values.webhooks.allow }}
- --webhook-allow={{ . }}
{{- end }}
{{- end }}

{{- /* The Secrets that only the server reads: name, Secret, file. */}}
{{- define "trellis.serveMounts" -}}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /etc/trellis/tls, readOnly: true}
{{- end }}
{{- if .Values.apiKeySecret.name }}
- {name: api, mountPath: /etc/trellis/api, readOnly: true}
{{- end }}
{{- if .Values.signIn.oidc.clientSecret.name }}
- {name: oidc, mountPath: /etc/trellis/oidc, readOnly: true}
{{- end }}
{{- if .Values.signIn.supabase.keySecret.name }}
- {name: supabase, mountPath: /etc/trellis/supabase, readOnly: true}
{{- end }}
{{- if .Values.webhooks.keySecret.name }}
- {name: webhooks, mountPath: /etc/trellis/webhooks, readOnly: true}
{{- end }}
{{- end }}

{{- define "trellis.serveVolumes" -}}
{{- with .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- if .Values.apiKeySecret.name }}
{{- include "trellis.secretVolume" (list "api" .Values.apiKeySecret "key") }}
{{- end }}
{{- if .Values.signIn.oidc.clientSecret.name }}
{{- include "trellis.secretVolume" (list "oidc" .Values.signIn.oidc.clientSecret "client-secret") }}
{{- end }}
{{- if .Values.signIn.supabase.keySecret.name }}
{{- include "trellis.secretVolume" (list "supabase" .Values.signIn.supabase.keySecret "key") }}
{{- end }}
{{- if .Values.webhooks.keySecret.name }}
{{- include "trellis.secretVolume" (list "webhooks" .Values.webhooks.keySecret "key") }}
{{- end }}
{{- end }}
