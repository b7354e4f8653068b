{{/* The values of the pods of a class of runs: what the class lacks is that of jobs. */}}
{{- define "tendril.class" -}}
{{- toJson (merge (dict) (omit .class "workspaces") .root.Values.jobs) -}}
{{- end -}}

{{/* What is laid over the pods of Jobs, see kubernetes.pod_file. */}}
{{- define "tendril.jobsPod" -}}
{{- $v := .root.Values -}}
{{- $jobs := .jobs -}}
{{- $ca := or $v.ca.configMap $v.ca.secret -}}
metadata:
  labels:
    # Not those by which the agents are found.
    tendril.run/release: {{ .root.Release.Name | quote }}
    {{- with merge dict (default dict $jobs.podLabels) (default dict $v.labels) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $jobs.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  securityContext:
    {{- toYaml $v.podSecurityContext | nindent 4 }}
  {{- range $key, $value := dict "imagePullSecrets" $v.imagePullSecrets "hostAliases" $v.hostAliases "dnsConfig" $v.dnsConfig
      "nodeSelector" $jobs.nodeSelector "tolerations" $jobs.tolerations "affinity" $jobs.affinity }}
  {{- with $value }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with $jobs.serviceAccountName }}
  serviceAccountName: {{ . | quote }}
  {{- end }}
  {{- with $jobs.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with $jobs.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  containers:
    - name: runner
      imagePullPolicy: {{ $v.image.pullPolicy }}
      {{- with $jobs.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if or $ca $v.extraEnv $jobs.extraEnv }}
      env:
        {{- if $ca }}
        - name: SSL_CERT_FILE
          value: /etc/tendril/ca.crt
        {{- end }}
        {{- with concat (default list $v.extraEnv) (default list $jobs.extraEnv) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- if or $ca $jobs.extraVolumeMounts }}
      volumeMounts:
        {{- if $ca }}
        - name: ca
          mountPath: /etc/tendril
          readOnly: true
        {{- end }}
        {{- with $jobs.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
  {{- if or $ca $jobs.extraVolumes }}
  volumes:
    {{- if $ca }}
    - name: ca
      {{- if $v.ca.configMap }}
      configMap:
        name: {{ $v.ca.configMap | quote }}
      {{- else }}
      secret:
        secretName: {{ $v.ca.secret | quote }}
      {{- end }}
        defaultMode: 0440
        items:
          - key: {{ $v.ca.key | quote }}
            path: ca.crt
    {{- end }}
    {{- with $jobs.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* All of those, for what has to change with them. */}}
{{- define "tendril.allPods" -}}
{{- if eq (default "" .Values.launcher) "kubernetes" -}}
{{ include "tendril.jobsPod" (dict "root" . "jobs" .Values.jobs) }}
{{ toJson .Values.jobs.classes }}
{{- end -}}
{{- end -}}
