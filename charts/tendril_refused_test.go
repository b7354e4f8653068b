package charts

import (
	"encoding/base64"
	"strings"
	"testing"
)

func TestAgentRefuses(t *testing.T) {
	t.Parallel()
	with := func(more string) string { return three + more }
	queue := func(keys string) string { return "cluster: prod\nqueue: {" + keys + "}\n" }
	testRefusals(t, agentChart, []refusal{
		{"nothing", "", []string{
			"cluster: missing; set it to the cluster's name on the console's page Clusters",
			"queue.url: missing; set it to https://… of trellis serve",
			"queue.join.tokenSecret: missing; make a Secret with a token of trellis clusters join-token, kubectl create secret generic tendril-join --namespace platform --from-file=token=FILE, and name it here; or one with the cluster's token, and name that by queue.tokenSecret",
		}},
		{"cluster's name", strings.Replace(three, "prod", "our prod", 1), []string{`cluster: "our prod" must be 1 to 63 letters, digits`}},
		{"two urls", queue("url: https://t.example, urlSecret: {name: u}, tokenSecret: t"), []string{"queue.url and queue.urlSecret.name are both set"}},
		{"two urls to listen at", queue("url: https://t.example, listenUrlSecret: {name: u}, tokenSecret: t") + "config: {queue: {listen_url: 'off'}}\n", []string{"queue.listenUrlSecret.name and config.queue.listen_url are both set"}},
		{"no url", queue("url: tendril.example, tokenSecret: t"), []string{"queue.url: must be https://HOST"}},
		{"a password", queue("url: 'postgres://u:hunter2@db/x', tokenSecret: t"), []string{"queue.url: has a password", "queue.urlSecret.name"}},
		{"the chart's labels", with("labels: {app.kubernetes.io/name: x}\npodLabels: {tendril.run/cluster: x}\nserviceMonitor: {labels: {helm.sh/chart: x}}\n"), []string{
			"labels: app.kubernetes.io/name is a label of the chart's", "podLabels: tendril.run/cluster is", "serviceMonitor.labels: helm.sh/chart is"}},
		{"in the clear", queue("url: 'http://t.example', tokenSecret: t"), []string{"queue.url: http:// would send", "queue.allowHttp=true"}},
		{"two tokens", queue("url: https://t.example, tokenSecret: t, token: tnd_x"), []string{"queue.token and queue.tokenSecret are both set"}},
		{"no token", queue("url: https://t.example, token: sb_secret_x"), []string{"queue.token: is no cluster's token, which begins with tnd_"}},
		{"a token for a name", queue("url: https://t.example, tokenSecret: tnd_x"), []string{"queue.tokenSecret: is a token; it must be the name of a Secret"}},
		{"a join token for a cluster's", queue("url: https://t.example, tokenSecret: tnj_x"), []string{"queue.tokenSecret: is a join token", "queue.join.tokenSecret"}},
		{"a join token for a name", queue("url: https://t.example, join: {tokenSecret: tnj_x}"), []string{"queue.join.tokenSecret: is a token; it must be the name of a Secret"}},
		{"join and a token's Secret", queue("url: https://t.example, tokenSecret: t, join: {tokenSecret: j}"), []string{"queue.join.tokenSecret and queue.tokenSecret are both set"}},
		{"join and a token", queue("url: https://t.example, token: tnd_x, join: {tokenSecret: j}"), []string{"queue.join.tokenSecret and queue.token are both set"}},
		{"join in the clear", queue("url: 'http://t.example', allowHttp: true, join: {tokenSecret: j}"), []string{"queue.join: agents join by https://"}},
		{"join by Postgres", queue("url: 'postgres://u@db/x', join: {tokenSecret: j}"), []string{"queue.join: agents join by https://"}},
		{"join by a URL unseen", queue("urlSecret: {name: u}, join: {tokenSecret: j}"), []string{"queue.join: agents join by https://"}},
		{"join without a volume", joining + "persistence: {enabled: false}\nidentity: {existingSecret: i}\nstate: {default: managed}\n", []string{"queue.join.tokenSecret with persistence.enabled=false", "keep the volume, or set queue.join.serviceAccount"}},
		{"a service account without an audience", queue("url: https://t.example, join: {serviceAccount: {enabled: true}}"), []string{"queue.join.serviceAccount.audience: missing; trellis clusters trust add prod --service-account platform/tendril prints it"}},
		{"a service account and a join token", queue("url: https://t.example, join: {tokenSecret: j, serviceAccount: {enabled: true, audience: a}}"), []string{"queue.join.tokenSecret and queue.join.serviceAccount are both set"}},
		{"a service account and a token's Secret", queue("url: https://t.example, tokenSecret: t, join: {serviceAccount: {enabled: true, audience: a}}"), []string{"queue.join.serviceAccount and queue.tokenSecret are both set"}},
		{"a service account by Postgres", queue("url: 'postgres://u@db/x', join: {serviceAccount: {enabled: true, audience: a}}"), []string{"queue.join: agents join by https://"}},
		{"raw token of a service account", with("config: {queue: {join_service_account_token_file: /x}}\n"), []string{"config.queue.join_service_account_token_file: the chart sets it; use queue.join.serviceAccount"}},
		{"raw join token", with("config: {queue: {join_token_file: /x}}\n"), []string{"config.queue.join_token_file: the chart sets it; use queue.join.tokenSecret"}},
		{"typo in join", queue("url: https://t.example, join: {secret: j}"), []string{"queue.join: Additional property secret is not allowed"}},
		{"local state, no volume", with("persistence: {enabled: false}\nidentity: {existingSecret: i}\n"), []string{"persistence.enabled=false with local state", "state.default=managed or state.backend"}},
		{"local backend, no volume", with("persistence: {enabled: false}\nidentity: {existingSecret: i}\nstate: {default: managed, backend: local}\n"), []string{"persistence.enabled=false with local state"}},
		{"no volume, no identity", with("persistence: {enabled: false}\nstate: {default: managed}\n"), []string{"persistence.enabled=false without identity.existingSecret"}},
		{"states scaled away", with("persistence: {retention: {whenScaled: Delete}}\n"), []string{"persistence.retention.whenScaled=Delete with local state"}},
		{"replicas", with("replicas: 2\nstate: {default: managed}\n"), []string{"replicas=2 without identity.existingSecret", "tendril identity new"}},
		{"short grace", with("terminationGracePeriodSeconds: 60\n"), []string{"terminationGracePeriodSeconds=60", "a drain of 8m takes up to 570"}},
		{"no scraper", with("serviceMonitor: {enabled: true}\n"), []string{"serviceMonitor.enabled=true", "set networkPolicy.metricsFrom, such as"}},
		{"nowhere", with("networkPolicy: {strict: true}\n"), []string{"networkPolicy.strict=true with an empty networkPolicy.egress"}},
		{"not strict", with("networkPolicy: {egress: [{}]}\n"), []string{"networkPolicy.egress has no effect without networkPolicy.strict=true"}},
		{"root", with("podSecurityContext: {runAsNonRoot: false}\n"), []string{"podSecurityContext.runAsNonRoot: must be true"}},
		{"token in the environment", with("extraEnv: [{name: TENDRIL_API_TOKEN, value: tnd_x}]\n"), []string{"extraEnv: TENDRIL_API_TOKEN is the agent's own"}},
		{"home", with("extraEnv: [{name: HOME, value: /x}]\n"), []string{"extraEnv: HOME is set by the chart"}},
		{"two authorities", with("ca: {configMap: a, secret: b}\n"), []string{"ca.configMap and ca.secret are both set"}},
		{"the chart's volume", with("extraVolumes: [{name: data, emptyDir: {}}]\n"), []string{"extraVolumes: data is a volume of the chart's"}},
		{"the chart's directory", with("extraVolumeMounts: [{name: x, mountPath: /etc/tendril/x}]\n"), []string{"extraVolumeMounts: /etc/tendril/x is the chart's"}},
		{"no key", with("git: {hosts: {github.com: {secret: {name: g}}}}\n"), []string{`git.hosts."github.com".secret: names no key`, "token, sshKey or appKey"}},
		{"no secret", with("credentials: [{workspace: a, envFile: e}]\n"), []string{"credentials[0].secret: missing"}},
		{"no credential", with("credentials: [{workspace: a}]\n"), []string{"credentials[0]: names no credential"}},
		{"relative hook", with("policy: {hook: [conftest]}\n"), []string{`policy.hook: "conftest" is no absolute path`}},
		{"raw data_dir", with("config: {data_dir: /x}\n"), []string{"config.data_dir: the chart sets it; use persistence"}},
		{"raw policy", with("config: {policy: {repos: [x], plain_sensitive: false}}\n"), []string{"config.policy.repos: the chart sets it; use policy.repos", "config.policy.plain_sensitive: the chart sets it"}},
		{"raw token", with("config: {queue: {token_file: /x}}\n"), []string{"config.queue.token_file: the chart sets it; use queue.tokenSecret"}},

		// By the schema, which names the key.
		{"typo", with("polcy: {repos: []}\n"), []string{"Additional property polcy is not allowed"}},
		{"typo within", with("policy: {repo: []}\n"), []string{"policy: Additional property repo is not allowed"}},
		{"typo in config", with("config: {run: {timout: 1h}}\n"), []string{"config.run: Additional property timout is not allowed"}},
		{"typo in a host", with("git: {hosts: {github.com: {secret: {name: g, ssh_key: k}}}}\n"), []string{"git.hosts.github.com.secret: Additional property ssh_key is not allowed"}},
		{"approval", with("policy: {approval: sometimes}\n"), []string{`policy.approval must be one of the following: "never", "destructive", "always"`}},
		{"operation", with("policy: {operations: [explode]}\n"), []string{"policy.operations.0 must be one of the following"}},
		{"slots", with("slots: 65\n"), []string{"slots: Must be less than or equal to 64"}},
		{"duration", with("drainTimeout: 600\n"), []string{"drainTimeout: Invalid type. Expected: string"}},
		{"no evictions", with("podDisruptionBudget: {maxUnavailable: 0}\n"), []string{"podDisruptionBudget.maxUnavailable"}},
		{"text for a switch", with("persistence: {enabled: 'no'}\n"), []string{"persistence.enabled: Invalid type. Expected: boolean"}},
		{"a host's URL", with("git: {hosts: {'https://github.com': {secret: {name: g, token: t}}}}\n"), []string{"git.hosts"}},
	})
}

// What is secret must not be in the values, of which Helm keeps every revision,
// nor in what is said of that.
func TestAgentRefusesSecrets(t *testing.T) {
	t.Parallel()
	queue := func(keys string) string { return "cluster: prod\nqueue: {" + keys + "}\n" }
	url := func(url string) string { return queue("tokenSecret: t, url: '" + url + "'") }
	key := func(key string) string {
		return queue("tokenSecret: t, url: https://x.supabase.co, apiKey: '" + key + "'")
	}
	jwt := func(role string) string {
		return "eyJhbGciOiJIUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"supabase?>","role":"`+role+`"}`)) + ".hunter2"
	}
	state := func(setting string) string { return three + "state: {config: {some: {" + setting + "}}}\n" }
	for _, tc := range []struct{ values, says string }{
		{url("postgres://u:hunter2@db/x"), "queue.url: has a password"},
		{url("postgres://u:hunter2/2@db/x"), "queue.url: has a password"},
		{url("postgres://u:hunter2?@db/x"), "queue.url: has a password"},
		{url("postgres://u@db/x?sslmode=require&password=hunter2"), "queue.url: has a password"},
		{url("https://hunter2@tendril.example"), "queue.url: has a password"},
		{queue("url: https://t.example, token: hunter2"), "queue.token: is no cluster's token"},
		{queue("url: https://t.example, tokenSecret: tnd_hunter2"), "queue.tokenSecret: is a token"},
		{queue("url: https://t.example, join: {tokenSecret: tnj_hunter2}"), "queue.join.tokenSecret: is a token"},
		{queue("url: https://t.example, tokenSecret: tnj_hunter2"), "queue.tokenSecret: is a join token"},
		{key("sb_secret_hunter2"), "queue.apiKey: is a secret key"},
		{key(jwt("service_role")), "queue.apiKey: is a secret key"},
		{key("tnd_hunter2"), "queue.apiKey: is a cluster's token"},
		{three + "config: {queue: {listen_url: 'postgres://u:hunter2@db/x'}}\n", "config.queue.listen_url: has a password"},
		{state("secret_key: hunter2"), "state.config.some.secret_key: is a secret"},
		{state("conn_str: 'postgres://u:hunter2@db/x'"), "state.config.some.conn_str: is a secret"},
		{state(`credentials: '{"private_key": "hunter2"}'`), "state.config.some.credentials: is a secret"},
		{three + "extraEnv: [{name: AWS_SECRET_ACCESS_KEY, value: hunter2}]\n", "extraEnv: AWS_SECRET_ACCESS_KEY has its value here"},
		{three + "extraEnv: [{name: HTTPS_PROXY, value: 'http://u:hunter2@proxy'}]\n", "extraEnv: HTTPS_PROXY has its value here"},
	} {
		if _, complaint := agentChart.template(t, tc.values); !strings.Contains(complaint, tc.says) || strings.Contains(complaint, "hunter2") {
			t.Errorf("helm template with\n%s\nsays:\n%s\nwant %q, without the secret", tc.values, complaint, tc.says)
		}
	}
	// And what only looks like one is none.
	for _, values := range []string{
		url("postgres://u@db:5432/x?sslmode=verify-full&passfile=/etc/extra/pgpass"), url("https://tendril.example:8443"),
		key("sb_publishable_abc"), key(jwt("anon")),
		state("credentials: /etc/extra/key.json, secret_suffix: prod, region: eu"),
		three + "extraEnv: [{name: AWS_WEB_IDENTITY_TOKEN_FILE, value: /x}, {name: VAULT_TOKEN, valueFrom: {secretKeyRef: {name: v, key: t}}}, {name: HTTPS_PROXY, value: 'http://proxy:3128'}]\n",
	} {
		if _, complaint := agentChart.template(t, values); complaint != "" {
			t.Errorf("helm template refuses\n%s\n%s", values, complaint)
		}
	}
}
