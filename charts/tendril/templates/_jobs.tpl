{{/* What is laid over the pods of Jobs, see kubernetes.pod_file. */}}
{{- define "tendril.jobsPod" -}}
{{- $v := .Values -}}
{{- $ca := or $v.ca.configMap $v.ca.secret -}}
metadata:
  labels:
    # Not those by which the agents are found.
    tendril.run/release: {{ .Release.Name | quote }}
    {{- with merge dict (default dict $v.jobs.podLabels) (default dict $v.labels) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $v.jobs.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  securityContext:
    {{- toYaml $v.podSecurityContext | nindent 4 }}
  {{- range $key, $value := dict "imagePullSecrets" $v.imagePullSecrets "hostAliases" $v.hostAliases "dnsConfig" $v.dnsConfig
      "nodeSelector" $v.jobs.nodeSelector "tolerations" $v.jobs.tolerations "affinity" $v.jobs.affinity }}
  {{- with $value }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with $v.jobs.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with $v.jobs.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  containers:
    - name: runner
      imagePullPolicy: {{ $v.image.pullPolicy }}
      {{- with $v.jobs.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if or $ca $v.extraEnv $v.jobs.extraEnv }}
      env:
        {{- if $ca }}
        - name: SSL_CERT_FILE
          value: /etc/tendril/ca.crt
        {{- end }}
        {{- with concat (default list $v.extraEnv) (default list $v.jobs.extraEnv) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- if or $ca $v.jobs.extraVolumeMounts }}
      volumeMounts:
        {{- if $ca }}
        - name: ca
          mountPath: /etc/tendril
          readOnly: true
        {{- end }}
        {{- with $v.jobs.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
  {{- if or $ca $v.jobs.extraVolumes }}
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
    {{- with $v.jobs.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end -}}
