{{/* What no schema can say, or not in words that help. All of it is told at once. */}}
{{- define "tendril.validate" -}}
{{- $problems := concat
    (include "tendril.problems.queue" . | fromJsonArray)
    (include "tendril.problems.state" . | fromJsonArray)
    (include "tendril.problems.secrets" . | fromJsonArray)
    (include "tendril.problems.config" . | fromJsonArray)
    (include "tendril.problems.pod" . | fromJsonArray)
    (include "tendril.problems.upgrade" . | fromJsonArray) -}}
{{- if $problems -}}
{{- fail (printf "\n\nthe values are not valid:\n  - %s\n" (join "\n  - " $problems)) -}}
{{- end -}}
{{- end -}}

{{- define "tendril.problems.queue" -}}
{{- $v := .Values -}}
{{- $problems := list -}}
{{- if not $v.cluster -}}
  {{- $problems = append $problems "cluster: missing; set it to the cluster's name on the console's page Clusters, such as --set cluster=prod" -}}
{{- else if not (regexMatch "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$" $v.cluster) -}}
  {{- $problems = append $problems (printf "cluster: %q must be 1 to 63 letters, digits, and . _ -, a letter or digit first, as on the console's page Clusters" $v.cluster) -}}
{{- end -}}
{{- if and $v.queue.url $v.queue.urlSecret.name -}}
  {{- $problems = append $problems "queue.url and queue.urlSecret.name are both set; keep one of them" -}}
{{- else if $v.queue.urlSecret.name -}}
{{- else if not $v.queue.url -}}
  {{- $problems = append $problems "queue.url: missing; set it to https://… of trellis serve or of a Supabase project, or name a Secret with a postgres:// URL by queue.urlSecret.name" -}}
{{- else if not (regexMatch "^(https?|postgres|postgresql)://[^ ]+$" $v.queue.url) -}}
  {{- $problems = append $problems "queue.url: must be https://HOST of trellis serve or of a Supabase project, or postgres://USER@HOST/DATABASE" -}}
{{- else if include "tendril.hasPassword" $v.queue.url -}}
  {{- $problems = append $problems "queue.url: has a password, which does not belong in values; put the URL into a Secret and name that by queue.urlSecret.name" -}}
{{- else if and (hasPrefix "http://" $v.queue.url) (not $v.queue.allowHttp) -}}
  {{- $problems = append $problems "queue.url: http:// would send the cluster's token in the clear; use https://, or set queue.allowHttp=true where nobody can listen in" -}}
{{- end -}}
{{- if and $v.queue.listenUrlSecret.name (dig "queue" "listen_url" "" $v.config) -}}
  {{- $problems = append $problems "queue.listenUrlSecret.name and config.queue.listen_url are both set; keep one of them" -}}
{{- end -}}
{{- if or $v.queue.join.tokenSecret $v.queue.join.serviceAccount.enabled -}}
  {{- $join := ternary "queue.join.serviceAccount" "queue.join.tokenSecret" (default false $v.queue.join.serviceAccount.enabled) -}}
  {{- range $name := list "token" "tokenSecret" -}}
    {{- if get $v.queue $name -}}
      {{- $problems = append $problems (printf "%s and queue.%s are both set; keep one of them" $join $name) -}}
    {{- end -}}
  {{- end -}}
  {{- if regexMatch "^tn[dj]_" (default "" $v.queue.join.tokenSecret) -}}
    {{- $problems = append $problems "queue.join.tokenSecret: is a token; it must be the name of a Secret that holds one (and that token has been seen now: revoke it)" -}}
  {{- end -}}
  {{- if or $v.queue.urlSecret.name (not (regexMatch "^(https://|$)" (default "" $v.queue.url))) -}}
    {{- $problems = append $problems "queue.join: agents join by https:// of trellis serve, which verifies their signatures; set queue.url to it, or queue.tokenSecret in place of queue.join" -}}
  {{- end -}}
  {{- if not $v.queue.join.serviceAccount.enabled -}}
    {{- if not $v.persistence.enabled -}}
      {{- $problems = append $problems "queue.join.tokenSecret with persistence.enabled=false: the key would be lost with the pod, and a join token lets in one key only; keep the volume, or set queue.join.serviceAccount" -}}
    {{- end -}}
  {{- else if $v.queue.join.tokenSecret -}}
    {{- $problems = append $problems "queue.join.tokenSecret and queue.join.serviceAccount are both set; keep one of them" -}}
  {{- else if not $v.queue.join.serviceAccount.audience -}}
    {{- $problems = append $problems (printf "queue.join.serviceAccount.audience: missing; trellis clusters trust add %s --service-account %s/%s prints it" (default "CLUSTER" $v.cluster) .Release.Namespace (include "tendril.serviceAccountName" .)) -}}
  {{- end -}}
{{- else if and $v.queue.token $v.queue.tokenSecret -}}
  {{- $problems = append $problems "queue.token and queue.tokenSecret are both set; keep one of them" -}}
{{- else if $v.queue.token -}}
  {{- if not (regexMatch "^tnd_[^ \t\n]+$" $v.queue.token) -}}
    {{- $problems = append $problems "queue.token: is no cluster's token, which begins with tnd_ and is one word; the console shows it once, when it is made" -}}
  {{- end -}}
{{- else if not $v.queue.tokenSecret -}}
  {{- $problems = append $problems (printf "queue.join.tokenSecret: missing; make a Secret with a token of trellis clusters join-token, kubectl create secret generic tendril-join --namespace %s --from-file=token=FILE, and name it here; or one with the cluster's token, and name that by queue.tokenSecret" .Release.Namespace) -}}
{{- else if hasPrefix "tnj_" $v.queue.tokenSecret -}}
  {{- $problems = append $problems "queue.tokenSecret: is a join token; put it into a Secret and name that by queue.join.tokenSecret (and that token has been seen now: make another)" -}}
{{- else if hasPrefix "tnd_" $v.queue.tokenSecret -}}
  {{- $problems = append $problems "queue.tokenSecret: is a token; it must be the name of a Secret that holds one (and that token has been seen now: rotate it)" -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{- define "tendril.problems.state" -}}
{{- $v := .Values -}}
{{- $problems := list -}}
{{- $identity := $v.identity.existingSecret -}}
{{- if and (not $v.persistence.enabled) (eq (include "tendril.state" .) "local") -}}
  {{- $problems = append $problems "persistence.enabled=false with local state: states would be lost with the pod; set state.default=managed or state.backend, or keep the volume" -}}
{{- end -}}
{{- if and (not $v.persistence.enabled) (not $identity) -}}
  {{- $problems = append $problems "persistence.enabled=false without identity.existingSecret: each start would make another identity, and what was sealed to the last could not be read; make a Secret with one (tendril identity new --file identity) and name it there" -}}
{{- end -}}
{{- if and $v.persistence.enabled (eq $v.persistence.retention.whenScaled "Delete") (eq (include "tendril.state" .) "local") -}}
  {{- $problems = append $problems "persistence.retention.whenScaled=Delete with local state: fewer replicas would lose states; set state.default=managed or state.backend, or retain the volumes" -}}
{{- end -}}
{{- if and (eq (default "" $v.launcher) "kubernetes") (eq (include "tendril.state" .) "local") -}}
  {{- $problems = append $problems "launcher=kubernetes with local state: states would be lost with the pods of runs; set state.default=managed or state.backend" -}}
{{- end -}}
{{- if and (gt (int $v.replicas) 1) (not $identity) -}}
  {{- $problems = append $problems (printf "replicas=%d without identity.existingSecret: agents of a cluster must share one identity, or one could not read the managed states, plans and sealed variables of another; make a Secret with one (tendril identity new --file identity) and name it there" (int $v.replicas)) -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/* Keys of the agent's file for which there are values of the chart. */}}
{{- define "tendril.ownKeys" -}}
name: cluster, and the names of pods; fullnameOverride changes those
data_dir: persistence
slots: slots
drain_timeout: drainTimeout
identity_file: identity.existingSecret
log_format: logFormat
log_level: logLevel
credentials: credentials
queue.url: queue.url
queue.url_file: queue.urlSecret
queue.listen_url_file: queue.listenUrlSecret
queue.api_key: queue.apiKey
queue.ca_file: ca
queue.allow_http: queue.allowHttp
queue.token_file: queue.tokenSecret
queue.join_token_file: queue.join.tokenSecret
queue.join_service_account_token_file: queue.join.serviceAccount
health.listen: nothing; probes need :9090
policy.repos: policy.repos
policy.operations: policy.operations
policy.approval: policy.approval
policy.modules: policy.modules
policy.check_ranges: policy.checkRanges
policy.programs: policy.programs
policy.requester_keys: policy.requesterKeys
policy.hook: policy.hook
policy.hook_timeout: policy.hookTimeout
policy.plain_sensitive: policy.plainSensitive
git.ca_file: ca
git.hosts: git.hosts
state.default: state.default
state.backend: state.backend
state.config: state.config
run.cancel_grace: cancelGrace
run.launcher: launcher
kubernetes.image: image
kubernetes.service_account: jobs.serviceAccountName
kubernetes.start_timeout: jobs.startTimeout
kubernetes.pod_file: jobs
kubernetes.pod_files: jobs.classes
kubernetes.lease: replicas
kubernetes.namespace: nothing; Jobs are made in the release's namespace
kubernetes.kubeconfig: nothing; the agent's service account reaches Kubernetes
run.uids: nothing; the agent is no root here
{{- end -}}

{{- define "tendril.problems.config" -}}
{{- $v := .Values -}}
{{- $problems := list -}}
{{- range $name, $instead := include "tendril.ownKeys" . | fromYaml -}}
  {{- $at := $v.config -}}
  {{- range splitList "." $name -}}
    {{- $at = ternary (get (default dict $at) .) nil (kindIs "map" $at) -}}
  {{- end -}}
  {{- if not (has (kindOf $at) (list "invalid" "string")) -}}
    {{- $problems = append $problems (printf "config.%s: the chart sets it; use %s" $name $instead) -}}
  {{- else if and (kindIs "string" $at) (ne $at "") -}}
    {{- $problems = append $problems (printf "config.%s: the chart sets it; use %s" $name $instead) -}}
  {{- end -}}
{{- end -}}
{{- range $host, $set := $v.git.hosts -}}
  {{- $keys := compact (list $set.secret.token $set.secret.sshKey $set.secret.appKey) -}}
  {{- if not $keys -}}
    {{- $problems = append $problems (printf "git.hosts.%q.secret: names no key of the Secret; set token, sshKey or appKey" $host) -}}
  {{- end -}}
{{- end -}}
{{- range $i, $entry := $v.credentials -}}
  {{- if and (or $entry.envFile $entry.files) (not $entry.secret) -}}
    {{- $problems = append $problems (printf "credentials[%d].secret: missing; name the Secret that has the keys of envFile and files" $i) -}}
  {{- else if not (or $entry.envFile $entry.files $entry.awsRoleArn) -}}
    {{- $problems = append $problems (printf "credentials[%d]: names no credential; set envFile or files with secret, or awsRoleArn" $i) -}}
  {{- end -}}
{{- end -}}
{{- if and $v.ca.configMap $v.ca.secret -}}
  {{- $problems = append $problems "ca.configMap and ca.secret are both set; keep one of them" -}}
{{- end -}}
{{- with $v.policy.hook -}}
  {{- if not (hasPrefix "/" (first .)) -}}
    {{- $problems = append $problems (printf "policy.hook: %q is no absolute path; name the program by where it is mounted" (first .)) -}}
  {{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{- define "tendril.problems.pod" -}}
{{- $v := .Values -}}
{{- $problems := list -}}
{{- $needed := int (include "tendril.neededToEnd" .) -}}
{{- $given := int $v.terminationGracePeriodSeconds -}}
{{- if and $given (lt $given $needed) -}}
  {{- $problems = append $problems (printf "terminationGracePeriodSeconds=%d: an apply could be killed in the middle; a drain of %s takes up to %d: leave it out, or shorten drainTimeout" $given $v.drainTimeout $needed) -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled $v.networkPolicy.enabled (not $v.networkPolicy.metricsFrom) -}}
  {{- $problems = append $problems "serviceMonitor.enabled=true, but the network policy lets no Prometheus in; set networkPolicy.metricsFrom, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]" -}}
{{- end -}}
{{- if and $v.networkPolicy.enabled $v.networkPolicy.strict (not $v.networkPolicy.egress) -}}
  {{- $problems = append $problems "networkPolicy.strict=true with an empty networkPolicy.egress: nothing could be reached, not even the queue; list it, the git servers, clouds and registries there" -}}
{{- end -}}
{{- if and $v.networkPolicy.egress (not $v.networkPolicy.strict) -}}
  {{- $problems = append $problems "networkPolicy.egress has no effect without networkPolicy.strict=true" -}}
{{- end -}}
{{- if not $v.podSecurityContext.runAsNonRoot -}}
  {{- $problems = append $problems "podSecurityContext.runAsNonRoot: must be true; the image's user is 10001" -}}
{{- end -}}
{{- range $v.extraEnv -}}
  {{- if or (hasPrefix "TENDRIL_" .name) (hasPrefix "SUPABASE_" .name) -}}
    {{- $problems = append $problems (printf "extraEnv: %s is the agent's own; set it by the chart's values or by config" .name) -}}
  {{- else if or (has .name (list "HOME" "POD_NAME")) (and (eq .name "SSL_CERT_FILE") (or $v.ca.configMap $v.ca.secret)) -}}
    {{- $problems = append $problems (printf "extraEnv: %s is set by the chart" .name) -}}
  {{- end -}}
{{- end -}}
{{- $own := include "tendril.labels" (dict "Values" (dict "cluster" $v.cluster "nameOverride" $v.nameOverride) "Chart" .Chart "Release" .Release) | fromYaml -}}
{{- range $name, $labels := dict "labels" $v.labels "podLabels" $v.podLabels "serviceMonitor.labels" $v.serviceMonitor.labels -}}
  {{- range $label, $_ := $labels -}}
    {{- if hasKey $own $label -}}
      {{- $problems = append $problems (printf "%s: %s is a label of the chart's, by which pods are found; choose another" $name $label) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $v.extraVolumes -}}
  {{- if has .name (list "config" "data" "tmp") -}}
    {{- $problems = append $problems (printf "extraVolumes: %s is a volume of the chart's; choose another name" .name) -}}
  {{- end -}}
{{- end -}}
{{- range $v.extraVolumeMounts -}}
  {{- $at := .mountPath -}}
  {{- range list "/etc/tendril" "/var/lib/tendril" -}}
    {{- if or (eq $at .) (hasPrefix (printf "%s/" .) $at) -}}
      {{- $problems = append $problems (printf "extraVolumeMounts: %s is the chart's; mount it elsewhere, such as below /etc/extra" $at) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}
