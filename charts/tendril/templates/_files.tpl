{{/* All of /etc/tendril is one volume, so that what the configuration names and
what is mounted stand side by side. */}}
{{- define "tendril.files" -}}
- configMap:
    name: {{ include "tendril.fullname" . }}
    items:
      - key: tendril.toml
        path: tendril.toml
      {{- if eq (default "" .Values.launcher) "kubernetes" }}
      - key: pod.yaml
        path: pod.yaml
      {{- range $i, $_ := .Values.jobs.classes }}
      - key: pod-{{ $i }}.yaml
        path: pod-{{ $i }}.yaml
      {{- end }}
      {{- end }}
      {{- range $host, $set := .Values.git.hosts }}
      {{- if $set.knownHosts }}
      - key: {{ include "tendril.hostDir" $host | replace "/" "." }}.known_hosts
        path: {{ include "tendril.hostDir" $host }}/known_hosts
      {{- end }}
      {{- end }}
{{- if .Values.queue.join.serviceAccount.enabled }}
- serviceAccountToken:
    audience: {{ .Values.queue.join.serviceAccount.audience | quote }}
    expirationSeconds: 600
    path: service-account-token
{{- else if .Values.queue.join.tokenSecret }}
- secret:
    name: {{ .Values.queue.join.tokenSecret | quote }}
    # Of no use once the agent has joined, so it may be deleted.
    optional: true
    items:
      - key: token
        path: join-token
{{- else }}
- secret:
    name: {{ include "tendril.tokenSecret" . | quote }}
    items:
      - key: {{ .Values.queue.tokenSecretKey | quote }}
        path: token
{{- end }}
{{- with .Values.queue.urlSecret }}
{{- if .name }}
- secret:
    name: {{ .name | quote }}
    items:
      - key: {{ .key | quote }}
        path: queue-url
{{- end }}
{{- end }}
{{- with .Values.queue.listenUrlSecret }}
{{- if .name }}
- secret:
    name: {{ .name | quote }}
    items:
      - key: {{ .key | quote }}
        path: queue-listen-url
{{- end }}
{{- end }}
{{- with .Values.identity }}
{{- if .existingSecret }}
- secret:
    name: {{ .existingSecret | quote }}
    items:
      - key: {{ .key | quote }}
        path: identity
{{- end }}
{{- end }}
{{- range $kind, $name := dict "configMap" .Values.ca.configMap "secret" .Values.ca.secret }}
{{- if $name }}
- {{ $kind }}:
    name: {{ $name | quote }}
    items:
      - key: {{ $.Values.ca.key | quote }}
        path: ca.crt
{{- end }}
{{- end }}
{{- range $host, $set := .Values.git.hosts }}
{{- $dir := include "tendril.hostDir" $host }}
- secret:
    name: {{ $set.secret.name | quote }}
    items:
      {{- with $set.secret.token }}
      - key: {{ . | quote }}
        path: {{ $dir }}/token
      {{- end }}
      {{- with $set.secret.sshKey }}
      - key: {{ . | quote }}
        path: {{ $dir }}/ssh_key
      {{- end }}
      {{- with $set.secret.appKey }}
      - key: {{ . | quote }}
        path: {{ $dir }}/app.pem
      {{- end }}
{{- end }}
{{- range $i, $entry := .Values.credentials }}
{{- $dir := printf "credentials/%d" $i }}
{{- if $entry.secret }}
- secret:
    name: {{ $entry.secret | quote }}
    items:
      {{- with $entry.envFile }}
      - key: {{ . | quote }}
        path: {{ $dir }}/env
      {{- end }}
      {{- range $variable, $key := $entry.files }}
      - key: {{ $key | quote }}
        path: {{ $dir }}/files/{{ $variable }}
      {{- end }}
{{- end }}
{{- if $entry.awsRoleArn }}
- serviceAccountToken:
    audience: sts.amazonaws.com
    expirationSeconds: 3600
    path: {{ $dir }}/aws-token
{{- end }}
{{- end }}
{{- end -}}
