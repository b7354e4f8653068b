{{/* What must not stand in the values: Helm keeps them with each revision, and the
agent's file is a ConfigMap. None of it is repeated in what is said of it. */}}
{{- define "tendril.problems.secrets" -}}
{{- $v := .Values -}}
{{- $problems := list -}}
{{- $apiKey := default "" $v.queue.apiKey -}}
{{- if or (hasPrefix "sb_secret_" $apiKey) (include "tendril.isServiceRole" $apiKey) -}}
  {{- $problems = append $problems "queue.apiKey: is a secret key, which may do everything in the project; an agent needs its publishable (anon) key only (and that key has been seen now: replace it)" -}}
{{- else if hasPrefix "tnd_" $apiKey -}}
  {{- $problems = append $problems "queue.apiKey: is a cluster's token, which belongs into the Secret that queue.tokenSecret names (and it has been seen now: rotate it)" -}}
{{- end -}}
{{- if include "tendril.hasPassword" (dig "queue" "listen_url" "" $v.config) -}}
  {{- $problems = append $problems "config.queue.listen_url: has a password, and would be in a ConfigMap; put the URL into a Secret and name that by queue.listenUrlSecret.name" -}}
{{- end -}}
{{- $secret := list "access_key" "client_certificate_password" "client_secret" "encryption_key" "oidc_token" "password" "sas_token" "secret_key" "sse_customer_key" "token" -}}
{{- range $backend, $settings := $v.state.config -}}
  {{- range $key, $value := $settings -}}
    {{- if or (and (has $key $secret) $value) (include "tendril.hasPassword" $value) (and (eq $key "credentials") (contains "{" $value)) -}}
      {{- $problems = append $problems (printf "state.config.%s.%s: is a secret, and would be in a ConfigMap; give it to the backend by the environment, with extraEnvFrom or credentials" $backend $key) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $v.extraEnv -}}
  {{- $named := regexMatch "(^|_)(SECRET|PASSWORD|TOKEN|ACCESS_KEY|API_KEY|PRIVATE_KEY)$" .name -}}
  {{- if and .value (or $named (include "tendril.hasPassword" .value)) -}}
    {{- $problems = append $problems (printf "extraEnv: %s has its value here; take it from a Secret, with valueFrom.secretKeyRef or extraEnvFrom" .name) -}}
  {{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/* Whether a URL has one: before an @, encoded or not, or as a parameter. */}}
{{- define "tendril.hasPassword" -}}
{{- if or (regexMatch "^[A-Za-z+]+://[^/]*:.*@" .) (regexMatch "^https?://[^/]*@" .) (regexMatch "^[A-Za-z+]+://.*[?&](ssl)?password=" .) }}true{{ end -}}
{{- end -}}

{{/* Whether an API key is a JWT that Supabase made for its servers. */}}
{{- define "tendril.isServiceRole" -}}
{{- $parts := splitList "." . -}}
{{- if eq (len $parts) 3 -}}
  {{- $payload := index $parts 1 | replace "-" "+" | replace "_" "/" -}}
  {{- $padded := printf "%s%s" $payload (repeat (int (mod (sub 4 (mod (len $payload) 4)) 4)) "=") -}}
  {{- if regexMatch "\"role\"\\s*:\\s*\"service_role\"" (b64dec $padded) }}true{{ end -}}
{{- end -}}
{{- end -}}
