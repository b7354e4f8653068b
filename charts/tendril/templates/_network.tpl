{{/* Where agents, and the pods of runs, may go. */}}
{{- define "tendril.egress" -}}
egress:
{{- if .Values.networkPolicy.strict }}
  # Of the pods that answer for names: OpenShift's listen on 5353.
  - ports:
      - port: 53
        protocol: UDP
      - port: 53
        protocol: TCP
      - port: 5353
        protocol: UDP
      - port: 5353
        protocol: TCP
  {{- toYaml .Values.networkPolicy.egress | nindent 2 }}
{{- else }}
  - {}
{{- end }}
{{- end -}}
