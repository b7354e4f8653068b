package charts

import (
	"fmt"
	"strings"
	"testing"
)

const agentChart chart = "tendril"

// three are the values that suffice.
const three = "cluster: prod\nqueue: {url: https://tendril.example, tokenSecret: tendril-token}\n"

// joining is the same for an agent that joins by key.
const joining = "cluster: prod\nqueue: {url: https://tendril.example, join: {tokenSecret: tendril-join}}\n"

// byAccount is the same for agents without a volume, which join by their service account.
const byAccount = `cluster: prod
queue: {url: https://tendril.example, join: {serviceAccount: {enabled: true, audience: tendril:6ba7b810-9dad-11d1-80b4-00c04fd430c8}}}
persistence: {enabled: false}
identity: {existingSecret: tendril-identity}
state: {default: managed}
replicas: 2
`

// agentRenderings are values of the agent's chart, by what they are about.
var agentRenderings = []rendering{
	{name: "three-values", values: three, snapshot: true, check: checkThreeValues},
	{name: "everything", values: everything, snapshot: true, check: func(t *testing.T, all objects) {
		checkFiles(t, all, "tendril.toml", "git/git.corp.example_8443/known_hosts", "token", "queue-url", "queue-listen-url", "identity", "ca.crt",
			"git/git.corp.example_8443/ssh_key", "git/github.com/app.pem",
			"credentials/0/env", "credentials/0/files/GOOGLE_APPLICATION_CREDENTIALS", "credentials/1/aws-token")
		// What downloads engines and providers trusts them by that alone.
		all.one(t, "StatefulSet").want(t, "/etc/tendril/ca.crt", "spec", "template", "spec", "containers", 0, "env", "SSL_CERT_FILE", "value")
	}},
	{name: "no-volume", snapshot: true, values: three + "state: {default: managed}\nidentity: {existingSecret: tendril-identity}\npersistence: {enabled: false}\n",
		check: func(t *testing.T, all objects) {
			set := all.one(t, "StatefulSet")
			set.want(t, nil, "spec", "volumeClaimTemplates")
			set.want(t, nil, "spec", "persistentVolumeClaimRetentionPolicy")
			set.want(t, map[string]any{}, "spec", "template", "spec", "volumes", "data", "emptyDir")
		}},
	{name: "token as a value", values: "cluster: prod\nqueue: {url: https://tendril.example, token: tnd_abc}\n", check: func(t *testing.T, all objects) {
		secret := all.one(t, "Secret")
		secret.want(t, "tendril-token", "metadata", "name")
		secret.want(t, "dG5kX2FiYw==", "data", "token")
		if set := yamlOf(all.one(t, "StatefulSet")) + yamlOf(all.one(t, "ConfigMap")); strings.Contains(set, "tnd_abc") {
			t.Error("the token stands outside its Secret")
		}
	}},
	{name: "jobs", snapshot: true, values: three + "state: {default: managed}\nlauncher: kubernetes\nidentity: {existingSecret: tendril-identity}\nreplicas: 2\nca: {configMap: corp}\n" +
		"jobs: {serviceAccountName: runs, nodeSelector: {pool: runs}, podLabels: {team: a}, extraEnv: [{name: HTTPS_PROXY, value: \"http://proxy:3128\"}],\n" +
		"  classes: [{workspaces: acme/large/**, resources: {limits: {memory: 8Gi}}, serviceAccountName: large, nodeSelector: {pool: large}}]}\n",
		check: func(t *testing.T, all objects) {
			checkFiles(t, all, "tendril.toml", "pod.yaml", "pod-0.yaml", "token", "identity", "ca.crt")
			all.one(t, "StatefulSet").want(t, true, "spec", "template", "spec", "automountServiceAccountToken")
			// What it may do, verb by verb: no more is needed, and no less is enough.
			role := yamlOf(all.one(t, "Role"))
			for _, never := range []string{"*", "pods/exec", "deletecollection", "serviceaccounts", "configmaps"} {
				if strings.Contains(role, never) {
					t.Errorf("the Role has %q:\n%s", never, role)
				}
			}
		}},
	{name: "join", snapshot: true, values: joining, check: func(t *testing.T, all objects) {
		checkFiles(t, all, "tendril.toml", "join-token")
		// The token is spent once the agent has joined: a pod that is replaced must not wait for it.
		sources, _ := all.one(t, "StatefulSet").get("spec", "template", "spec", "volumes", "config", "projected", "sources").([]any)
		if got := follow(sources[1], "secret", "optional"); got != true {
			t.Errorf("the Secret with the join token is optional: %v, want true", got)
		}
	}},
	{name: "service-account", snapshot: true, values: byAccount, check: func(t *testing.T, all objects) {
		checkFiles(t, all, "tendril.toml", "service-account-token", "identity")
		sources, _ := all.one(t, "StatefulSet").get("spec", "template", "spec", "volumes", "config", "projected", "sources").([]any)
		if got := fmt.Sprint(follow(sources[1], "serviceAccountToken")); got != "map[audience:tendril:6ba7b810-9dad-11d1-80b4-00c04fd430c8 expirationSeconds:600 path:service-account-token]" {
			t.Errorf("the pod's token = %s, want one for that audience, for ten minutes", got)
		}
	}},
	{name: "drain", values: three + "drainTimeout: 1h30m\ncancelGrace: 90s\n", check: func(t *testing.T, all objects) {
		all.one(t, "StatefulSet").want(t, 90*60+90+60, "spec", "template", "spec", "terminationGracePeriodSeconds")
	}},
	{name: "longer grace", values: three + "terminationGracePeriodSeconds: 3600\n", check: func(t *testing.T, all objects) {
		all.one(t, "StatefulSet").want(t, 3600, "spec", "template", "spec", "terminationGracePeriodSeconds")
	}},
	{name: "image", values: three + "image: {tag: v1.2.3, variant: slim}\n", check: wantImage("ghcr.io/tendril-run/tendril:v1.2.3-slim")},
	{name: "digest", values: three + "image: {repository: mirror.example/t, digest: sha256:" + strings.Repeat("a", 64) + "}\n",
		check: wantImage("mirror.example/t@sha256:" + strings.Repeat("a", 64))},
	{name: "rules", values: three + "rbac: {rules: [{apiGroups: [''], resources: [configmaps], verbs: [get]}], clusterRules: [{apiGroups: [''], resources: [namespaces], verbs: [create]}]}\n",
		check: func(t *testing.T, all objects) {
			all.one(t, "StatefulSet").want(t, true, "spec", "template", "spec", "automountServiceAccountToken")
			all.one(t, "Role").want(t, []any{"configmaps"}, "rules", 0, "resources")
			all.one(t, "ClusterRole").want(t, "platform-tendril", "metadata", "name")
			for _, kind := range []string{"RoleBinding", "ClusterRoleBinding"} {
				all.one(t, kind).want(t, map[string]any{"kind": "ServiceAccount", "name": "tendril", "namespace": "platform"}, "subjects", 0)
			}
		}},
	{name: "foreign account", values: three + "serviceAccount: {create: false, name: ours, automountToken: true}\n", check: func(t *testing.T, all objects) {
		if made := all.of("ServiceAccount"); len(made) != 0 {
			t.Errorf("a service account is made although serviceAccount.create is false")
		}
		all.one(t, "StatefulSet").want(t, "ours", "spec", "template", "spec", "serviceAccountName")
		all.one(t, "StatefulSet").want(t, true, "spec", "template", "spec", "automountServiceAccountToken")
	}},
	{name: "strict network", values: three + "networkPolicy: {strict: true, egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 443}]}], metricsFrom: [{podSelector: {}}]}\n",
		check: func(t *testing.T, all objects) {
			policy := all.one(t, "NetworkPolicy")
			policy.want(t, 53, "spec", "egress", 0, "ports", 0, "port")
			policy.want(t, "10.0.0.0/8", "spec", "egress", 1, "to", 0, "ipBlock", "cidr")
			policy.want(t, nil, "spec", "egress", 2)
			policy.want(t, 9090, "spec", "ingress", 0, "ports", 0, "port")
		}},
	{name: "switched off", values: three + "networkPolicy: {enabled: false}\npodDisruptionBudget: {enabled: false}\nserviceMonitor: {enabled: true}\n", check: func(t *testing.T, all objects) {
		for _, kind := range []string{"NetworkPolicy", "PodDisruptionBudget"} {
			if len(all.of(kind)) != 0 {
				t.Errorf("there is a %s, which is switched off", kind)
			}
		}
	}},
	{name: "OpenShift", values: three + "podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}\n", check: func(t *testing.T, all objects) {
		all.one(t, "StatefulSet").want(t, nil, "spec", "template", "spec", "securityContext", "runAsUser")
	}},
	{name: "long names", values: "cluster: " + strings.Repeat("c", 62) + "-\nqueue: {url: https://tendril.example, tokenSecret: t}\nfullnameOverride: " + strings.Repeat("n", 90) + "\n", check: checkLongNames},
	{name: "names like numbers", values: `
cluster: "1e3"
queue: {urlSecret: {name: "1", key: "2"}, tokenSecret: "3", tokenSecretKey: "4"}
identity: {existingSecret: "5", key: "6"}
serviceAccount: {name: "7"}
rbac: {rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]}
nameOverride: "8"
ca: {secret: "9", key: "10"}
git: {hosts: {github.com: {secret: {name: "11", token: "12"}}}}
credentials: [{workspace: "13", secret: "14", envFile: "15"}]
persistence: {size: 10000000000, storageClass: "16"}
priorityClassName: "17"
runtimeClassName: "18"
labels: {team: "19"}
`},
	{name: "large numbers", values: three + "terminationGracePeriodSeconds: 1000000\ngit: {hosts: {github.com: {secret: {name: g, appKey: k}, appId: 1234567, appInstallationId: 67890123}}}\n",
		check: func(t *testing.T, all objects) {
			all.one(t, "StatefulSet").want(t, 1000000, "spec", "template", "spec", "terminationGracePeriodSeconds")
			got, err := start(t, all)
			if app := got.Git.Hosts["github.com"]; err != nil || app.AppID != "1234567" || app.AppInstallationID != "67890123" {
				t.Errorf("the agent reads app_id %q and app_installation_id %q (%v), want 1234567 and 67890123", app.AppID, app.AppInstallationID, err)
			}
		}},
	// No line of a file, nor what YAML takes for the end of one, is more than text.
	{name: "odd lines", values: three + `
git: {hosts: {github.com: {secret: {name: g, token: t}, knownHosts: "   git.example ssh-ed25519 AAAA\r\nother.example ssh-ed25519 BBBB\r\n"}}}
policy: {hook: [/bin/true, "a\u0085b: c\n[queue]\nurl = \"x\"\n"]}
`, check: func(t *testing.T, all objects) {
		all.one(t, "ConfigMap").want(t, "git.example ssh-ed25519 AAAA\nother.example ssh-ed25519 BBBB\n", "data", "git.github.com.known_hosts")
		got, err := start(t, all)
		if want := "a\u0085b: c\n[queue]\nurl = \"x\"\n"; err != nil || len(got.Policy.Hook) != 2 || got.Policy.Hook[1] != want {
			t.Errorf("policy.hook = %q (%v), want %q in it", got.Policy.Hook, err, want)
		}
	}},
	{name: "one label twice", values: three + "labels: {team: all, release: none}\npodLabels: {team: pods}\nserviceMonitor: {enabled: true, labels: {release: prometheus}}\nnetworkPolicy: {metricsFrom: [{podSelector: {}}]}\n",
		check: func(t *testing.T, all objects) {
			all.one(t, "StatefulSet").want(t, "all", "metadata", "labels", "team")
			all.one(t, "StatefulSet").want(t, "pods", "spec", "template", "metadata", "labels", "team")
			all.one(t, "ServiceMonitor").want(t, "prometheus", "metadata", "labels", "release")
		}},
	// What a parent chart brings, and an anchor's home.
	{name: "subchart", values: three + "global: {registry: x}\nenabled: true\nx-team: &team {team: platform}\nlabels: *team\n", check: func(t *testing.T, all objects) {
		all.one(t, "StatefulSet").want(t, "platform", "metadata", "labels", "team")
	}},
}

func TestAgentRenderings(t *testing.T) {
	t.Parallel()
	testRenderings(t, agentChart, agentRenderings)
}

func checkThreeValues(t *testing.T, all objects) {
	if got, want := fmt.Sprint(all.names()), "[NetworkPolicy/tendril PodDisruptionBudget/tendril ServiceAccount/tendril ConfigMap/tendril Service/tendril StatefulSet/tendril]"; got != want {
		t.Errorf("three values make %s, want %s: no role, no secret", got, want)
	}
	checkFiles(t, all, "tendril.toml", "token")
	set := all.one(t, "StatefulSet")
	pod := []any{"spec", "template", "spec"}
	at := func(path ...any) []any { return append(append([]any{}, pod...), path...) }
	set.want(t, "Parallel", "spec", "podManagementPolicy")
	set.want(t, false, at("automountServiceAccountToken")...)
	set.want(t, 480+30+60, at("terminationGracePeriodSeconds")...)
	set.want(t, 10001, at("securityContext", "runAsUser")...)
	set.want(t, "ghcr.io/tendril-run/tendril:0.0.0", at("containers", 0, "image")...)
	set.want(t, "prod.$(POD_NAME)", at("containers", 0, "env", "TENDRIL_NAME", "value")...)
	set.want(t, "/healthz", at("containers", 0, "livenessProbe", "httpGet", "path")...)
	set.want(t, "/readyz", at("containers", 0, "readinessProbe", "httpGet", "path")...)
	set.want(t, "Retain", "spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted")
	set.want(t, 0o440, at("volumes", "config", "projected", "defaultMode")...)
	policy := all.one(t, "NetworkPolicy")
	policy.want(t, []any{}, "spec", "ingress")
	policy.want(t, []any{map[string]any{}}, "spec", "egress")

	// What decides which pods and which claim are meant can never be changed, so
	// the chart's version must not be in there, nor in the pods' labels: those of
	// another chart alone must not be a reason to end what runs.
	for _, path := range [][]any{{"spec", "selector", "matchLabels"}, {"spec", "template", "metadata", "labels"}, {"spec", "volumeClaimTemplates", 0, "metadata", "labels"}} {
		labels, _ := set.get(path...).(map[string]any)
		if len(labels) == 0 || labels["helm.sh/chart"] != nil || labels["app.kubernetes.io/version"] != nil {
			t.Errorf("%v = %v, want labels without a version", path, labels)
		}
	}
}

// checkFiles wants those files, and no others, below /etc/tendril.
func checkFiles(t *testing.T, all objects, want ...string) {
	t.Helper()
	var got []string
	for _, file := range mounted(all) {
		got = append(got, file.path)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("/etc/tendril has %v, want %v", got, want)
	}
}

func wantImage(image string) func(*testing.T, objects) {
	return func(t *testing.T, all objects) {
		all.one(t, "StatefulSet").want(t, image, "spec", "template", "spec", "containers", 0, "image")
	}
}

// checkLongNames holds names against what Kubernetes and the agent allow.
func checkLongNames(t *testing.T, all objects) {
	set := all.one(t, "StatefulSet")
	// The controller makes labels of it, with a hash of 10 and a dash.
	name, _ := set.get("metadata", "name").(string)
	if len(name) > 52 {
		t.Errorf("the StatefulSet's name has %d characters, want at most 52", len(name))
	}
	agent, _ := set.get("spec", "template", "spec", "containers", 0, "env", "TENDRIL_NAME", "value").(string)
	if got := len(strings.Replace(agent, "$(POD_NAME)", name+"-999", 1)); got > 100 {
		t.Errorf("the agent's name has %d characters, want at most 100", got)
	}
	set.want(t, strings.Repeat("c", 62), "metadata", "labels", "tendril.run/cluster")
}

// A changed configuration has to reach the agent, which reads it at its start.
func TestAgentRollsWithItsConfiguration(t *testing.T) {
	t.Parallel()
	sum := func(values string, args ...string) string {
		rendered, complaint := agentChart.template(t, values, args...)
		if complaint != "" {
			t.Fatal(complaint)
		}
		annotation, _ := decode(t, rendered).one(t, "StatefulSet").get("spec", "template", "metadata", "annotations", "checksum/config").(string)
		return annotation
	}
	const token = "cluster: prod\nqueue: {url: https://tendril.example, token: tnd_abc}\n"
	for _, tc := range []struct{ name, before, after string }{
		{"a key of the file", three, three + "slots: 3\n"},
		{"a raw key", three, three + "config: {run: {timeout: 3h}}\n"},
		{"another Secret", three, strings.Replace(three, "tendril-token", "other", 1)},
		{"another token", token, strings.Replace(token, "tnd_abc", "tnd_abd", 1)},
	} {
		if before, after := sum(tc.before), sum(tc.after); before == after || len(after) != 64 {
			t.Errorf("checksum/config with %s: %q before, %q after, want another", tc.name, before, after)
		}
	}
	if sum(three) != sum(three+"replicas: 0\nresources: {limits: {memory: 3Gi}}\n") {
		t.Error("checksum/config changes with what is not the agent's configuration")
	}
}
