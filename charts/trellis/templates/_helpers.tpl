{{- define "trellis.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* At most 53 characters, for what is put behind it. */}}
{{- define "trellis.fullname" -}}
{{- $name := include "trellis.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* What never changes: selectors are of it. */}}
{{- define "trellis.selector" -}}
app.kubernetes.io/name: {{ include "trellis.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trellis.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "trellis.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: tendril
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Those of objects: with a dict of root, and of more, which beat those of all. */}}
{{- define "trellis.annotations" -}}
{{- with merge dict (default dict .more) (default dict .root.Values.annotations) -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "trellis.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "trellis.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "trellis.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- define "trellis.servicePort" -}}
{{- if .Values.service.port }}{{ .Values.service.port }}{{ else if .Values.tls.secretName }}443{{ else }}80{{ end }}
{{- end }}

{{- define "trellis.host" -}}
{{- .Values.ingress.host | default (urlParse .Values.publicURL).hostname }}
{{- end }}

{{- /* What pods of the database have. */}}
{{- define "trellis.env" -}}
- name: TRELLIS_DATABASE_URL_FILE
  value: /etc/trellis/database/url
{{- include "trellis.anyEnv" . }}
{{- end }}

{{- define "trellis.mounts" -}}
- {name: database, mountPath: /etc/trellis/database, readOnly: true}
{{- include "trellis.anyMounts" . }}
{{- end }}

{{- /* What all pods have. */}}
{{- define "trellis.anyEnv" -}}
{{- if or .Values.ca.configMap .Values.ca.secret }}
- name: SSL_CERT_DIR # besides the file of the system's
  value: /etc/trellis/ca
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "trellis.anyMounts" -}}
{{- if or .Values.ca.configMap .Values.ca.secret }}
- {name: ca, mountPath: /etc/trellis/ca, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Takes (dict "root" . "url" SECRET), and "job" true for a Job: without its Secret
a pod would wait until the Job's time is over, and be gone with what it waited for.
So it starts, and its log says what is missing. */}}
{{- define "trellis.volumes" -}}
{{- include "trellis.secretVolume" (list "database" .url "url") }}
{{- if .job }}
    optional: true
{{- end }}
{{- include "trellis.anyVolumes" .root }}
{{- end }}

{{- define "trellis.anyVolumes" }}
{{- with .Values.ca }}
{{- if .configMap }}
- name: ca
  configMap: {name: {{ .configMap | quote }}}
{{- else if .secret }}
- name: ca
  secret: {secretName: {{ .secret | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.tmp.sizeLimit | quote }}}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The Secret of the URL for Jobs, which want no pooler in transaction mode. */}}
{{- define "trellis.directUrl" -}}
{{- with .Values.database }}
{{- ternary .directUrlSecret .urlSecret (not (empty .directUrlSecret.name)) | toYaml }}
{{- end }}
{{- end }}

{{- /* Takes (list VOLUME SECRET FILE): one key of a Secret as a file for this group alone. */}}
{{- define "trellis.secretVolume" }}
- name: {{ index . 0 }}
  secret:
    secretName: {{ (index . 1).name | quote }}
    defaultMode: 0440
    items:
      - {key: {{ (index . 1).key | quote }}, path: {{ index . 2 }}}
{{- end }}

{{- /* What all pods of a kind have around their containers. */}}
{{- define "trellis.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "trellis.securityContext" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
