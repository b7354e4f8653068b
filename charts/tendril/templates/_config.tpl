{{/* A text in TOML: as in JSON, but for a character that YAML takes for the end of a line. */}}
{{- define "tendril.text" -}}
{{ toRawJson . | replace "\u0085" "\\u0085" }}
{{- end -}}

{{/* A value in TOML, on one line. */}}
{{- define "tendril.toml" -}}
{{- if kindIs "string" . -}}
{{ include "tendril.text" . }}
{{- else if kindIs "bool" . -}}
{{ . }}
{{- else if kindIs "slice" . -}}
[{{ range $i, $element := . }}{{ if $i }}, {{ end }}{{ include "tendril.toml" $element }}{{ end }}]
{{- else if kindIs "map" . -}}
{ {{- $first := true }}{{ range $key, $value := . }}{{ if not $first }},{{ end }} {{ include "tendril.text" $key }} = {{ include "tendril.toml" $value }}{{ $first = false }}{{ end }} }
{{- else if and (kindIs "float64" .) (ne . (floor .)) -}}
{{ toRawJson . }}
{{- else -}}
{{ int64 . }}
{{- end -}}
{{- end -}}

{{/* A whole number as it was written: Helm has those of a file as floats, 1e+06 from a million on. */}}
{{- define "tendril.digits" -}}
{{- if kindIs "float64" . }}{{ printf "%.0f" . }}{{ else }}{{ toString . }}{{ end -}}
{{- end -}}

{{/* Where in /etc/tendril the files of a git host are. */}}
{{- define "tendril.hostDir" -}}
git/{{ regexReplaceAll "[^a-z0-9.-]" . "_" }}
{{- end -}}

{{/* The agent's file as an object: what the chart sets, and config for the rest. */}}
{{- define "tendril.settings" -}}
{{- $v := .Values -}}
{{- $hosts := dict -}}
{{- range $host, $set := $v.git.hosts -}}
  {{- $dir := printf "/etc/tendril/%s" (include "tendril.hostDir" $host) -}}
  {{- $table := dict -}}
  {{- with $set.secret.token }}{{ $_ := set $table "token_file" (printf "%s/token" $dir) }}{{ end -}}
  {{- with $set.secret.sshKey }}{{ $_ := set $table "ssh_key_file" (printf "%s/ssh_key" $dir) }}{{ end -}}
  {{- with $set.secret.appKey }}{{ $_ := set $table "app_key_file" (printf "%s/app.pem" $dir) }}{{ end -}}
  {{- with $set.knownHosts }}{{ $_ := set $table "known_hosts_file" (printf "%s/known_hosts" $dir) }}{{ end -}}
  {{- with $set.username }}{{ $_ := set $table "username" . }}{{ end -}}
  {{- with $set.appId }}{{ $_ := set $table "app_id" (include "tendril.digits" .) }}{{ end -}}
  {{- with $set.appInstallationId }}{{ $_ := set $table "app_installation_id" (include "tendril.digits" .) }}{{ end -}}
  {{- with $set.appApiUrl }}{{ $_ := set $table "app_api_url" . }}{{ end -}}
  {{- with $set.repos }}{{ $_ := set $table "repos" . }}{{ end -}}
  {{- $_ := set $hosts $host $table -}}
{{- end -}}
{{- $credentials := list -}}
{{- range $i, $entry := $v.credentials -}}
  {{- $dir := printf "/etc/tendril/credentials/%d" $i -}}
  {{- $table := dict "workspace" $entry.workspace -}}
  {{- if $entry.envFile }}{{ $_ := set $table "env_file" (printf "%s/env" $dir) }}{{ end -}}
  {{- if $entry.files -}}
    {{- $files := dict -}}
    {{- range $variable, $key := $entry.files }}{{ $_ := set $files $variable (printf "%s/files/%s" $dir $variable) }}{{ end -}}
    {{- $_ := set $table "files" $files -}}
  {{- end -}}
  {{- if $entry.awsRoleArn -}}
    {{- $_ := set $table "aws_role_arn" $entry.awsRoleArn -}}
    {{- $_ := set $table "web_identity_token_file" (printf "%s/aws-token" $dir) -}}
  {{- end -}}
  {{- $credentials = append $credentials $table -}}
{{- end -}}
{{- $queue := dict -}}
{{- if $v.queue.join.serviceAccount.enabled }}{{ $_ := set $queue "join_service_account_token_file" "/etc/tendril/service-account-token" }}{{ else if $v.queue.join.tokenSecret }}{{ $_ := set $queue "join_token_file" "/etc/tendril/join-token" }}{{ else }}{{ $_ := set $queue "token_file" "/etc/tendril/token" }}{{ end -}}
{{- if $v.queue.urlSecret.name }}{{ $_ := set $queue "url_file" "/etc/tendril/queue-url" }}{{ else }}{{ $_ := set $queue "url" $v.queue.url }}{{ end -}}
{{- if $v.queue.listenUrlSecret.name }}{{ $_ := set $queue "listen_url_file" "/etc/tendril/queue-listen-url" }}{{ end -}}
{{- with $v.queue.apiKey }}{{ $_ := set $queue "api_key" . }}{{ end -}}
{{- if $v.queue.allowHttp }}{{ $_ := set $queue "allow_http" true }}{{ end -}}
{{- $policy := dict "repos" $v.policy.repos "approval" $v.policy.approval "hook_timeout" $v.policy.hookTimeout "plain_sensitive" $v.policy.plainSensitive -}}
{{- with $v.policy.operations }}{{ $_ := set $policy "operations" . }}{{ end -}}
{{- with $v.policy.requesterKeys }}{{ $_ := set $policy "requester_keys" . }}{{ end -}}
{{- with $v.policy.modules }}{{ $_ := set $policy "modules" . }}{{ end -}}
{{- with $v.policy.checkRanges }}{{ $_ := set $policy "check_ranges" . }}{{ end -}}
{{- with $v.policy.programs }}{{ $_ := set $policy "programs" . }}{{ end -}}
{{- with $v.policy.hook }}{{ $_ := set $policy "hook" . }}{{ end -}}
{{- $git := dict -}}
{{- if or $v.ca.configMap $v.ca.secret }}{{ $_ := set $git "ca_file" "/etc/tendril/ca.crt" }}{{ end -}}
{{- if $hosts }}{{ $_ := set $git "hosts" $hosts }}{{ end -}}
{{- $state := dict "default" $v.state.default -}}
{{- $run := dict "cancel_grace" $v.cancelGrace -}}
{{- $jobs := dict -}}
{{- if eq (default "" $v.launcher) "kubernetes" -}}
  {{- $_ := set $run "launcher" "kubernetes" -}}
  {{- $jobs = dict "image" (include "tendril.image" .) "start_timeout" $v.jobs.startTimeout "pod_file" "/etc/tendril/pod.yaml" -}}
  {{- $classes := list -}}
  {{- range $i, $class := $v.jobs.classes }}{{ $classes = append $classes (printf "%s: /etc/tendril/pod-%d.yaml" $class.workspaces $i) }}{{ end -}}
  {{- with $classes }}{{ $_ := set $jobs "pod_files" . }}{{ end -}}
  {{- if gt (int $v.replicas) 1 }}{{ $_ := set $jobs "lease" (include "tendril.fullname" .) }}{{ end -}}
{{- end -}}
{{- with $v.state.backend }}{{ $_ := set $state "backend" . }}{{ end -}}
{{- with $v.state.config }}{{ $_ := set $state "config" . }}{{ end -}}
{{- $own := dict "slots" $v.slots "drain_timeout" $v.drainTimeout "log_format" $v.logFormat "log_level" $v.logLevel
    "queue" $queue "health" (dict "listen" ":9090") "policy" $policy "state" $state "run" $run -}}
{{- if $jobs }}{{ $_ := set $own "kubernetes" $jobs }}{{ end -}}
{{- if $git }}{{ $_ := set $own "git" $git }}{{ end -}}
{{- if $credentials }}{{ $_ := set $own "credentials" $credentials }}{{ end -}}
{{- if $v.identity.existingSecret }}{{ $_ := set $own "identity_file" "/etc/tendril/identity" }}{{ end -}}
{{- toJson (mustMergeOverwrite (deepCopy $v.config) $own) -}}
{{- end -}}

{{/* tendril.toml */}}
{{- define "tendril.config" -}}
{{- $settings := include "tendril.settings" . | fromJson -}}
# Made by the chart: change its values, not this.
{{- range $key, $value := $settings -}}{{ if not (kindIs "map" $value) }}
{{ $key }} = {{ include "tendril.toml" $value }}
{{- end }}{{ end }}
{{- range $table, $values := $settings }}{{ if and (kindIs "map" $values) $values }}

[{{ $table }}]
{{- range $key, $value := $values }}
{{ $key }} = {{ include "tendril.toml" $value }}
{{- end }}
{{- end }}{{ end }}
{{- end -}}
