{{/* The name of the release's objects: short enough for what Kubernetes adds to that of a StatefulSet. */}}
{{- define "tendril.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tendril.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tendril.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* What an upgrade must never change. */}}
{{- define "tendril.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* What a new chart does not change either, so that it need not replace pods. */}}
{{- define "tendril.ownLabels" -}}
{{ include "tendril.selectorLabels" . }}
app.kubernetes.io/component: agent
tendril.run/cluster: {{ regexReplaceAll "[._-]+$" (default "" .Values.cluster) "" | quote }}
{{- end -}}

{{- define "tendril.podLabels" -}}
{{ include "tendril.ownLabels" . }}
{{- with merge dict (default dict .Values.podLabels) (default dict .Values.labels) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Those of objects: with a dict of root, and of more labels, which beat those of all. */}}
{{- define "tendril.labelsWith" -}}
{{- $root := .root -}}
{{ include "tendril.ownLabels" $root }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with merge dict (default dict .more) (default dict $root.Values.labels) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tendril.labels" -}}
{{ include "tendril.labelsWith" (dict "root" .) }}
{{- end -}}

{{/* Those of objects: with a dict of root, and of more, which beat those of all. */}}
{{- define "tendril.annotations" -}}
{{- with merge dict (default dict .more) (default dict .root.Values.annotations) -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "tendril.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- $tag := default .Chart.AppVersion $image.tag -}}
{{- printf "%s:%s" $image.repository $tag }}{{ with $image.variant }}-{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The Secret that has the cluster's token. */}}
{{- define "tendril.tokenSecret" -}}
{{- default (printf "%s-token" (include "tendril.fullname" .)) .Values.queue.tokenSecret -}}
{{- end -}}

{{/* "true" where pods get a token for the API: nobody needs it unless something is allowed. */}}
{{- define "tendril.apiToken" -}}
{{- if or (eq (default "" .Values.launcher) "kubernetes") .Values.serviceAccount.automountToken .Values.rbac.rules .Values.rbac.clusterRules }}true{{ else }}false{{ end -}}
{{- end -}}

{{/* "local" where states lie on the agent's own volume. */}}
{{- define "tendril.state" -}}
{{- default .Values.state.default .Values.state.backend -}}
{{- end -}}

{{/* The seconds of a duration such as 1h30m. */}}
{{- define "tendril.seconds" -}}
{{- $epoch := toDate "2006-01-02" "2000-01-01" -}}
{{- sub (mustDateModify . $epoch).Unix $epoch.Unix -}}
{{- end -}}

{{/* After the drain comes the grace of each engine, half a minute for what it
started, and the last lines. */}}
{{- define "tendril.neededToEnd" -}}
{{- add (include "tendril.seconds" .Values.drainTimeout) (include "tendril.seconds" .Values.cancelGrace) 60 -}}
{{- end -}}
