package charts

import (
	"fmt"
	"strings"
	"testing"
)

const (
	trellis chart = "trellis"

	trellisLeast = "publicURL: https://tendril.example\ndatabase: {urlSecret: {name: database}}\n"
	trellisMost  = "publicURL: https://tendril.example\ndatabase: {urlSecret: {name: database}, directUrlSecret: {name: database, key: direct}}\n" + `
signIn:
  oidc: {issuer: "https://accounts.example", clientID: tendril, clientSecret: {name: oidc}, audience: programs}
  firstAdmin: ada@example.com
webhooks: {keySecret: {name: webhooks}, allow: [hooks.internal, 10.0.0.0/8]}
apiKeySecret: {name: api}
trustedProxies: [10.1.0.0/16, "fd00::1"]
limits: {rate: 12.5, maxBody: 16777216, maxHeader: 32768, maxConnections: 500, maxCalls: 64, readTimeout: 45s, writeTimeout: 1m30s, idleTimeout: 5m, statementTimeout: 4s, lockTimeout: 1500ms}
inspectPrivate: true
accessLog: all
labels: {owner: platform}
ingress: {enabled: true, className: nginx, annotations: {cert-manager.io/cluster-issuer: ours}}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
networkPolicy: {strict: true, metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}], ingressFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress}}}], databasePorts: [6432], egress: [{ports: [{port: 8443}]}]}
gc: {enabled: true}
ca: {configMap: authorities}
serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::123456789012:role/trellis"}}
extraEnv: [{name: HTTPS_PROXY, value: "http://proxy:3128"}]
imagePullSecrets: [{name: registry}]
priorityClassName: platform
podLabels: {team: platform}
podAnnotations: {reloader.stakater.com/auto: "true"}
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: platform, operator: Exists}]
`
)

func TestTrellisRenders(t *testing.T) {
	t.Parallel()
	testRenderings(t, trellis, []rendering{
		{name: "least", values: trellisLeast, snapshot: true, check: func(t *testing.T, all objects) {
			if found := fmt.Sprint(all.names()); strings.Contains(found, "Role") || strings.Contains(found, "Secret") {
				t.Errorf("objects = %s: trellis needs no rights in the cluster, and keeps no secret in a release", found)
			}
			server := all.one(t, "Deployment")
			server.want(t, 0, "spec", "strategy", "rollingUpdate", "maxUnavailable")
			server.want(t, false, "spec", "template", "spec", "automountServiceAccountToken")
			for _, probe := range []struct{ name, path string }{{"startupProbe", "/healthz"}, {"livenessProbe", "/healthz"}, {"readinessProbe", "/readyz"}} {
				server.want(t, map[string]any{"path": probe.path, "port": "metrics"}, "spec", "template", "spec", "containers", 0, probe.name, "httpGet")
			}
			wantApart(t, all)
			// Metrics for nobody who was not named.
			all.find(t, "NetworkPolicy", "trellis").want(t, []any{map[string]any{"ports": []any{map[string]any{"protocol": "TCP", "port": "http"}}}}, "spec", "ingress")
		}},
		{name: "most", values: trellisMost, snapshot: true, check: func(t *testing.T, all objects) {
			wantApart(t, all)
			for _, job := range []object{all.one(t, "Job"), all.one(t, "CronJob")} {
				if key := follow(podSpec(job), "volumes", "database", "secret", "items", 0, "key"); key != "direct" {
					t.Errorf("%v takes key %v of the database's Secret, want direct", job.get("kind"), key)
				}
			}
			all.one(t, "Deployment").want(t, "url", "spec", "template", "spec", "volumes", "database", "secret", "items", 0, "key")
			ingress := all.one(t, "Ingress")
			ingress.want(t, "tendril.example", "spec", "rules", 0, "host")
			ingress.want(t, "trellis-tls", "spec", "tls", 0, "secretName")
			// Helm merges: an annotation more takes none away.
			ingress.want(t, "8m", "metadata", "annotations", "nginx.ingress.kubernetes.io/proxy-body-size")
			ingress.want(t, "ours", "metadata", "annotations", "cert-manager.io/cluster-issuer")
		}},
		{name: "tls-in-the-pods", values: trellisLeast + "tls: {secretName: certificate}\nservice: {type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24]}\n", check: func(t *testing.T, all objects) {
			all.find(t, "Service", "trellis").want(t, []any{map[string]any{"name": "https", "port": 443, "targetPort": "http"}}, "spec", "ports")
			// Who reaches the load balancer must not reach what asks nobody who they are.
			all.find(t, "Service", "trellis-metrics").want(t, "ClusterIP", "spec", "type")
		}},
		{name: "supabase", values: trellisLeast + "signIn: {supabase: {url: 'https://abc.supabase.co', keySecret: {name: supabase}, provider: github}, firstAdmin: ada@example.com}\n"},
		{name: "no-migration", values: trellisLeast + "migrate: {enabled: false}\n", check: func(t *testing.T, all objects) {
			if jobs := append(all.of("Job"), all.of("NetworkPolicy")...).names(); fmt.Sprint(jobs) != "[NetworkPolicy/trellis]" {
				t.Errorf("jobs and policies = %v, want the server's policy alone", jobs)
			}
		}},
		{name: "account-of-ones-own", values: trellisLeast + "serviceAccount: {create: false, name: theirs}\n", check: func(t *testing.T, all objects) {
			if made := all.of("ServiceAccount"); len(made) != 0 {
				t.Errorf("service accounts made: %v", made.names())
			}
			// It exists before: the migration may use it, too, to sign in at a database.
			for _, o := range append(all.of("Job"), all.of("Deployment")...) {
				o.want(t, "theirs", "spec", "template", "spec", "serviceAccountName")
			}
		}},
		{name: "digest", values: trellisLeast + "image: {repository: registry.internal/trellis, digest: 'sha256:" + strings.Repeat("0a", 32) + "'}\n", check: func(t *testing.T, all objects) {
			all.one(t, "Deployment").want(t, "registry.internal/trellis@sha256:"+strings.Repeat("0a", 32), "spec", "template", "spec", "containers", 0, "image")
		}},
		{name: "long-names", values: trellisLeast + "fullnameOverride: " + strings.Repeat("long", 13) + "\ngc: {enabled: true}\n", check: func(t *testing.T, all objects) {
			for _, o := range all {
				if name := fmt.Sprint(o.get("metadata", "name")); len(name) > 63 {
					t.Errorf("%v is called %s: %d characters, 63 at most", o.get("kind"), name, len(name))
				}
			}
		}},
		{name: "part-of-another-chart", values: trellisLeast + "enabled: true\nglobal: {any: thing}\n"},
		{name: "openshift", values: trellisLeast + "podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}\n", check: func(t *testing.T, all objects) {
			all.one(t, "Deployment").want(t, nil, "spec", "template", "spec", "securityContext", "runAsUser")
		}},
	})
}

// wantApart: no Service and no budget takes the pods of Jobs for servers, and each
// takes the server's.
func wantApart(t *testing.T, all objects) {
	t.Helper()
	pods := map[string]object{}
	for _, kind := range []string{"Deployment", "Job", "CronJob"} {
		for _, o := range all.of(kind) {
			template := o.get("spec", "template")
			if kind == "CronJob" {
				template = o.get("spec", "jobTemplate", "spec", "template")
			}
			pods[kind], _ = template.(map[string]any)
		}
	}
	chosen := func(selector any, kind string) bool {
		wanted, _ := selector.(map[string]any)
		for key, value := range wanted {
			if pods[kind].get("metadata", "labels", key) != value {
				return false
			}
		}
		return len(wanted) > 0
	}
	for _, o := range append(all.of("Service"), all.of("PodDisruptionBudget")...) {
		selector := o.get("spec", "selector")
		if labels := follow(selector, "matchLabels"); labels != nil {
			selector = labels
		}
		for kind := range pods {
			if got, want := chosen(selector, kind), kind == "Deployment"; got != want {
				t.Errorf("%v %v chooses the pods of the %s: %v, want %v", o.get("kind"), o.get("metadata", "name"), kind, got, want)
			}
		}
	}
}

// Pods are asked to wait before they end where Kubernetes knows how to.
func TestTrellisWaitsBeforeItEnds(t *testing.T) {
	t.Parallel()
	for kubernetes, want := range map[string]any{oldestKubernetes: nil, "v1.30.0": 10, newerKubernetes: 10} {
		rendered, complaint := trellis.template(t, trellisLeast, "--kube-version", kubernetes)
		if complaint != "" {
			t.Fatal(complaint)
		}
		if no := nonconforming(t, newerKubernetes, rendered); no != "" {
			t.Error(no)
		}
		decode(t, rendered).one(t, "Deployment").want(t, want, "spec", "template", "spec", "containers", 0, "lifecycle", "preStop", "sleep", "seconds")
	}
}

func TestTrellisRefuses(t *testing.T) {
	t.Parallel()
	testRefusals(t, trellis, []refusal{
		{name: "nothing given", values: "{}", says: []string{"publicURL is missing", "--set publicURL=https://"}},
		{name: "no database", values: "publicURL: https://tendril.example", says: []string{"database.urlSecret.name is missing", "kubectl --namespace platform create secret"}},
		{name: "typo", values: trellisLeast + "ingres: {enabled: true}", says: []string{"ingres"}},
		{name: "typo within", values: trellisLeast + "signIn: {oidc: {clientId: x}}", says: []string{"signIn.oidc", "clientId"}},
		{name: "a path", values: trellisLeast + "publicURL: https://tendril.example/console", says: []string{"publicURL"}},
		{name: "a URL with its password", values: "publicURL: https://tendril.example\ndatabase: {url: 'postgres://me:secret@db/tendril'}", says: []string{"database", "url"}},
		{name: "two issuers", values: trellisLeast + "signIn: {oidc: {issuer: 'https://a.example', clientID: x}, supabase: {url: 'https://b.example'}}", says: []string{"give one of them"}},
		{name: "an id without an issuer", values: trellisLeast + "signIn: {oidc: {clientID: x}}", says: []string{"signIn.oidc.issuer is missing"}},
		{name: "an issuer without an id", values: trellisLeast + "signIn: {oidc: {issuer: 'https://a.example'}}", says: []string{"signIn.oidc.clientID is missing"}},
		{name: "a provider without a key", values: trellisLeast + "signIn: {supabase: {url: 'https://a.example', provider: github}}", says: []string{"signIn.supabase.keySecret.name is missing"}},
		{name: "a key without a project", values: trellisLeast + "signIn: {supabase: {keySecret: {name: k}}}", says: []string{"signIn.supabase.url is missing"}},
		{name: "an admin who cannot sign in", values: trellisLeast + "signIn: {firstAdmin: ada@example.com}", says: []string{"signIn.firstAdmin needs an issuer"}},
		{name: "no address", values: trellisLeast + "signIn: {oidc: {issuer: 'https://a.example', clientID: x}, firstAdmin: ada}", says: []string{"signIn.firstAdmin"}},
		{name: "webhooks without a key", values: trellisLeast + "webhooks: {allow: [hooks.internal]}", says: []string{"webhooks.keySecret.name is missing"}},
		{name: "metrics that nobody may read", values: trellisLeast + "serviceMonitor: {enabled: true}", says: []string{"networkPolicy.metricsFrom"}},
		{name: "rules that do nothing", values: trellisLeast + "networkPolicy: {egress: [{}]}", says: []string{"networkPolicy.strict=true"}},
		{name: "the program's own environment", values: trellisLeast + "extraEnv: [{name: TRELLIS_DATABASE_URL, value: 'postgres://me:secret@db/tendril'}]", says: []string{"extraEnv: TRELLIS_DATABASE_URL is the program's own"}},
		{name: "labels that others choose by", values: trellisLeast + "labels: {app.kubernetes.io/name: ours}", says: []string{"labels: app.kubernetes.io/name is the chart's own"}},
		{name: "the same of pods", values: trellisLeast + "podLabels: {app.kubernetes.io/component: ours}", says: []string{"podLabels: app.kubernetes.io/component is the chart's own"}},
		{name: "two sorts of authorities", values: trellisLeast + "ca: {configMap: a, secret: b}", says: []string{"give one of them"}},
		{name: "cookies without https", values: "publicURL: http://tendril.example\ndatabase: {urlSecret: {name: database}}\ningress: {enabled: true}", says: []string{"publicURL begins with http://"}},
		{name: "killed while it waits", values: trellisLeast + "preStopSeconds: 25", says: []string{"terminationGracePeriodSeconds (30) is too short", "preStopSeconds (25)"}},
		{name: "no network", values: trellisLeast + "trustedProxies: [ingress.local]", says: []string{"trustedProxies"}},
		{name: "no duration", values: trellisLeast + "limits: {readTimeout: 30}", says: []string{"limits.readTimeout"}},
		{name: "no limit", values: trellisLeast + "limits: {rate: 0}", says: []string{"limits.rate"}},
		{name: "a budget that keeps every node", values: trellisLeast + "podDisruptionBudget: {maxUnavailable: 0}", says: []string{"podDisruptionBudget.maxUnavailable"}},
	})
}

func TestTrellisValues(t *testing.T) {
	t.Parallel()
	testValues(t, trellis)
}

func TestTrellisNotes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, values string
		says, not    []string
	}{
		{"least", trellisLeast, []string{
			"exec deployment/trellis -- /usr/local/bin/trellis admin init", "ingress.enabled is false", "trellis clusters create", "queue.url=https://tendril.example", "no notifications",
		}, []string{"trustedProxies is empty", "trellis migrate", "helm test"}},
		{"most", trellisMost, []string{"ada@example.com signs in at https://tendril.example"}, []string{"admin init", "ingress.enabled is false", "trustedProxies is empty", "no notifications"}},
		{"least", trellisLeast + "test: {tokenSecret: {name: trellis-test}}\n", []string{
			"kubectl --namespace tendril create secret", "--namespace tendril \\", "--set-string cluster=prod", "helm test trellis --namespace platform --logs",
		}, nil},
		{"behind an Ingress", trellisLeast + "ingress: {enabled: true}\nmigrate: {enabled: false}\n", []string{"trustedProxies is empty", `run "trellis migrate"`}, nil},
	} {
		notes := trellis.notes(t, tc.values)
		for _, part := range tc.says {
			if !strings.Contains(notes, part) {
				t.Errorf("the notes of %s lack %q:\n%s", tc.name, part, notes)
			}
		}
		for _, part := range tc.not {
			if strings.Contains(notes, part) {
				t.Errorf("the notes of %s have %q:\n%s", tc.name, part, notes)
			}
		}
	}
}
