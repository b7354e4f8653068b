{{/* What an upgrade cannot change: the API server would refuse it in words that help
nobody, or the agent would be another one, with an empty volume. Only where a cluster
is asked: "helm template" knows of none. */}}
{{- define "tendril.problems.upgrade" -}}
{{- $problems := list -}}
{{- $name := include "tendril.fullname" . -}}
{{- $ns := .Release.Namespace -}}
{{- $component := "agent" -}}
{{- $found := dict -}}
{{- $others := list -}}
{{- range (lookup "apps/v1" "StatefulSet" $ns "").items -}}
  {{- if eq .metadata.name $name -}}
    {{- $found = . -}}
  {{- /* Of a parent chart's several agents, by their alias, each is its own. */}}
  {{- else if and (eq (get (default dict .metadata.annotations) "meta.helm.sh/release-name") $.Release.Name) (eq (get (default dict .metadata.labels) "app.kubernetes.io/component") $component) (hasPrefix (printf "%s-" $.Chart.Name) (get .metadata.labels "helm.sh/chart")) -}}
    {{- $others = append $others .metadata.name -}}
  {{- end -}}
{{- end -}}
{{- if and .Release.IsUpgrade $others (not $found) -}}
  {{- $problems = append $problems (printf "nameOverride, fullnameOverride: the release's StatefulSet is called %s, and %s would be another agent with an empty volume; set fullnameOverride=%s" (first $others) $name (first $others)) -}}
{{- end -}}
{{- if $found -}}
  {{- $selector := include "tendril.selectorLabels" . | fromYaml -}}
  {{- if ne (toJson $selector) (toJson $found.spec.selector.matchLabels) -}}
    {{- $problems = append $problems (printf "nameOverride: the pods of StatefulSet %s are labelled %s; keep the one that makes app.kubernetes.io/name=%s" $name (toJson $found.spec.selector.matchLabels) (index $found.spec.selector.matchLabels "app.kubernetes.io/name")) -}}
  {{- end -}}
  {{- $claims := default list $found.spec.volumeClaimTemplates -}}
  {{- $want := .Values.persistence -}}
  {{- $changed := list -}}
  {{- if ne (gt (len $claims) 0) $want.enabled -}}
    {{- $changed = append $changed (printf "persistence.enabled: was %t" (gt (len $claims) 0)) -}}
  {{- else if $claims -}}
    {{- $was := first $claims -}}
    {{- $size := $was.spec.resources.requests.storage -}}
    {{- if ne (include "tendril.bytes" $size) (include "tendril.bytes" $want.size) -}}
      {{- $changed = append $changed (printf "persistence.size: was %s" $size) -}}
    {{- end -}}
    {{- if ne (default "" $was.spec.storageClassName) (default "" $want.storageClass) -}}
      {{- $changed = append $changed (printf "persistence.storageClass: was %q" (default "" $was.spec.storageClassName)) -}}
    {{- end -}}
    {{- if ne (first $was.spec.accessModes) $want.accessMode -}}
      {{- $changed = append $changed (printf "persistence.accessMode: was %s" (first $was.spec.accessModes)) -}}
    {{- end -}}
    {{- if ne (toJson (default dict $was.metadata.annotations)) (toJson (default dict $want.annotations)) -}}
      {{- $changed = append $changed (printf "persistence.annotations: was %s" (toJson (default dict $was.metadata.annotations))) -}}
    {{- end -}}
  {{- end -}}
  {{- range $changed -}}
    {{- $problems = append $problems (printf "%s, and an upgrade cannot change what volumes a StatefulSet makes. Change the claims themselves where they must, take the StatefulSet away from its pods, and upgrade again: kubectl delete statefulset %s --cascade=orphan --namespace %s" . $name $ns) -}}
  {{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/* The bytes of a quantity such as 1Ti: the API server may write 1024Gi so. */}}
{{- define "tendril.bytes" -}}
{{- $factors := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- if kindIs "float64" . -}}
{{- printf "%.0f" . -}}
{{- else if and $number (hasKey $factors $unit) -}}
{{- printf "%.0f" (mulf (float64 $number) (get $factors $unit)) -}}
{{- else -}}
{{- $text -}}
{{- end -}}
{{- end -}}
