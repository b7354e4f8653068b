{{- /* What a schema cannot say: which values need which others. */}}
{{- define "trellis.check" -}}
{{- $v := .Values -}}
{{- if not $v.publicURL }}
{{- fail "publicURL is missing: how people and agents reach the server, such as --set publicURL=https://tendril.example" }}
{{- end }}
{{- if not $v.database.urlSecret.name }}
{{- fail (printf "database.urlSecret.name is missing: the Secret with the database's URL. Make it with: kubectl --namespace %s create secret generic trellis-database --from-file=url=FILE, then --set database.urlSecret.name=trellis-database" .Release.Namespace) }}
{{- end }}
{{- $oidc := $v.signIn.oidc -}}
{{- $supabase := $v.signIn.supabase -}}
{{- if and $oidc.issuer $supabase.url }}
{{- fail "signIn.oidc.issuer and signIn.supabase.url: give one of them" }}
{{- end }}
{{- if and (not $oidc.issuer) (or $oidc.clientID $oidc.clientSecret.name $oidc.audience) }}
{{- fail "signIn.oidc.issuer is missing: the issuer's URL, exactly as its tokens have it" }}
{{- end }}
{{- if and $oidc.issuer (not $oidc.clientID) (not $oidc.audience) }}
{{- fail "signIn.oidc.clientID is missing (or signIn.oidc.audience, where only programs come)" }}
{{- end }}
{{- if and (not $supabase.url) (or $supabase.provider $supabase.keySecret.name) }}
{{- fail "signIn.supabase.url is missing: the project's URL, https://PROJECT.supabase.co" }}
{{- end }}
{{- if and $supabase.provider (not $supabase.keySecret.name) }}
{{- fail "signIn.supabase.keySecret.name is missing: the Secret with the project's publishable key, which browsers sign in with" }}
{{- end }}
{{- if and $v.signIn.firstAdmin (not $oidc.clientID) (not $supabase.provider) }}
{{- fail "signIn.firstAdmin needs an issuer that browsers sign in at: signIn.oidc.clientID or signIn.supabase.provider" }}
{{- end }}
{{- if and $v.webhooks.allow (not $v.webhooks.keySecret.name) }}
{{- fail "webhooks.keySecret.name is missing: without a key there are no webhooks, so webhooks.allow does nothing" }}
{{- end }}
{{- range $v.extraEnv }}
{{- if hasPrefix "TRELLIS_" .name }}
{{- fail (printf "extraEnv: %s is the program's own; set it by the chart's values. Passwords and keys are Secrets, named there" .name) }}
{{- end }}
{{- end }}
{{- range $name, $labels := dict "labels" $v.labels "podLabels" $v.podLabels }}
{{- range $own := list "name" "instance" "component" "version" "managed-by" "part-of" }}
{{- if hasKey (default dict $labels) (print "app.kubernetes.io/" $own) }}
{{- fail (printf "%s: app.kubernetes.io/%s is the chart's own: Services and policies choose pods by such labels" $name $own) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $v.ca.configMap $v.ca.secret }}
{{- fail "ca.configMap and ca.secret: give one of them" }}
{{- end }}
{{- if and $v.serviceMonitor.enabled $v.networkPolicy.enabled (not $v.networkPolicy.metricsFrom) }}
{{- fail "serviceMonitor.enabled=true, but the network policy lets no Prometheus in; set networkPolicy.metricsFrom, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]" }}
{{- end }}
{{- if and $v.networkPolicy.egress (not $v.networkPolicy.strict) }}
{{- fail "networkPolicy.egress has no effect without networkPolicy.strict=true" }}
{{- end }}
{{- $tls := or $v.tls.secretName (and $v.ingress.enabled $v.ingress.tls.enabled) -}}
{{- if and $tls (hasPrefix "http://" $v.publicURL) }}
{{- fail "publicURL begins with http:// but tls.secretName or ingress.tls.enabled has the server reached by https://: cookies would not be for https only" }}
{{- end }}
{{- if gt (add (int $v.preStopSeconds) 10) (int $v.terminationGracePeriodSeconds) }}
{{- fail (printf "terminationGracePeriodSeconds (%d) is too short: preStopSeconds (%d) and 10 more for what is under way" (int $v.terminationGracePeriodSeconds) (int $v.preStopSeconds)) }}
{{- end }}
{{- end }}
