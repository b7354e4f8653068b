//go:build kube

package kube

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// agentIn makes the namespace and the Secret that an agent needs, and installs
// one by the three values.
func agentIn(t *testing.T, name string) *namespace {
	t.Helper()
	n := newNamespace(t, name)
	n.secret(t, "tendril-token", map[string]string{"token": "tnd_secret"})
	n.must(t, "", append([]string{"install", "tendril", chartDir("tendril")}, three...)...)
	return n
}

var three = []string{"--set", "cluster=prod", "--set", "queue.url=https://tendril.example", "--set", "queue.tokenSecret=tendril-token"}

// awaitAgent waits for the pod and the claim that a controller makes.
func (n *namespace) awaitAgent(t *testing.T) {
	t.Helper()
	await(t, "the agent's pod and its claim", func() (bool, string) {
		found := fmt.Sprint(n.names(t, "pods"), n.names(t, "persistentvolumeclaims"))
		return found == "[tendril-0] [data-tendril-0]", found
	})
}

func TestAgentIsInstalled(t *testing.T) {
	t.Parallel()
	n := agentIn(t, "agent-install")
	n.awaitAgent(t)
	pod, claim := n.list(t, "pods")[0], n.get(t, "persistentvolumeclaims", "data-tendril-0")
	if size := fmt.Sprint(claim.Spec["resources"]); size != "map[requests:map[storage:20Gi]]" {
		t.Errorf("the claim asks for %s, want 20Gi", size)
	}
	if volumes := fmt.Sprint(pod.Spec["volumes"]); !strings.Contains(volumes, "data-tendril-0") || strings.Contains(volumes, "serviceAccountToken") {
		t.Errorf("the pod's volumes = %s, want the claim, and no token of the Kubernetes API", volumes)
	}
	if got, want := n.may(t, "tendril"), n.may(t, "nobody"); !slices.Equal(got, want) {
		t.Errorf("kubectl auth can-i --list of the agent =\n%s\nwant what any account may:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	n.wantDocumentedRights(t, "tendril")
}

// Rules are given exactly, and the pod then has a token to use them.
func TestAgentMayWhatItsRulesSay(t *testing.T) {
	t.Parallel()
	n := agentIn(t, "agent-rules")
	rules := `
rbac:
  rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, update]}, {apiGroups: [""], resources: [secrets], resourceNames: [tfstate], verbs: [get]}]
  clusterRules: [{apiGroups: [""], resources: [nodes], verbs: [list]}]
`
	n.must(t, rules, append([]string{"upgrade", "tendril", chartDir("tendril")}, three...)...)
	given := n.may(t, "tendril")
	for _, rule := range n.may(t, "nobody") {
		given = slices.DeleteFunc(given, func(r string) bool { return r == rule })
	}
	if want := []string{"configmaps [] [] [get update]", "nodes [] [] [list]", "secrets [] [tfstate] [get]"}; !slices.Equal(given, want) {
		t.Errorf("what the agent may beside what anybody may = %q, want %q", given, want)
	}
	for what, want := range map[[2]string]bool{{"update", "configmaps"}: true, {"delete", "configmaps"}: false, {"get", "secrets/tfstate"}: true, {"get", "secrets/other"}: false, {"list", "nodes"}: true} {
		if got := n.can(t, "tendril", what[0], what[1]); got != want {
			t.Errorf("kubectl auth can-i %s %s = %v, want %v", what[0], what[1], got, want)
		}
	}
	await(t, "a pod with a token", func() (bool, string) {
		pods := n.list(t, "pods")
		volumes := ""
		for _, pod := range pods {
			volumes += fmt.Sprint(pod.Spec["volumes"])
		}
		return strings.Contains(volumes, "serviceAccountToken"), volumes
	})
	// What is of the whole cluster goes with the release, too.
	n.must(t, "", "uninstall", "tendril")
	if n.can(t, "tendril", "list", "nodes") {
		t.Error("the account may list nodes after helm uninstall")
	}
}

// What Kubernetes cannot change is refused before anything is, and in words that
// say how; what they say works.
func TestAgentRefusesWhatCannotChange(t *testing.T) {
	t.Parallel()
	n := agentIn(t, "agent-refuse")
	n.awaitAgent(t)
	before, upgrade := n.kept(t), append([]string{"upgrade", "tendril", chartDir("tendril")}, three...)
	for values, says := range map[string]string{
		"persistence: {size: 50Gi}":                           "persistence.size: was 20Gi",
		"persistence: {storageClass: fast}":                   `persistence.storageClass: was ""`,
		"persistence: {accessMode: ReadWriteOncePod}":         "persistence.accessMode: was ReadWriteOnce",
		"persistence: {annotations: {keep: '7'}}":             "persistence.annotations: was {}",
		"persistence: {enabled: false}\nstate: {backend: s3}": "persistence.enabled: was true",
		"fullnameOverride: other":                             "set fullnameOverride=tendril",
		"nameOverride: other":                                 "set fullnameOverride=tendril",
		"nameOverride: other\nfullnameOverride: tendril":      "app.kubernetes.io/name=tendril",
	} {
		if said, ok := n.helm(t, values, upgrade...); ok || !strings.Contains(said, says) {
			t.Errorf("helm upgrade with %s says (ok = %v):\n%s\nwant %q", values, ok, said, says)
		}
	}
	if after := n.kept(t); !maps.Equal(after, before) {
		t.Errorf("after upgrades that were refused the agent is\n%v, was\n%v", after, before)
	}
	pod := n.get(t, "pods", "tendril-0").Metadata.UID
	if out, err := kubernetes.kubectl(t.Context(), "delete", "statefulset", "tendril", "--cascade=orphan", "--namespace", n.name).CombinedOutput(); err != nil {
		t.Fatalf("kubectl delete: %v\n%s", err, out)
	}
	n.must(t, "persistence: {size: 50Gi}", upgrade...)
	after := n.kept(t)
	if !strings.Contains(after["volumes"], "storage:50Gi") || after["claim"] != before["claim"] {
		t.Errorf("after the way that is told the agent is\n%v, was\n%v", after, before)
	}
	if now := n.get(t, "pods", "tendril-0").Metadata.UID; now != pod {
		t.Errorf("the pod is another: %s, was %s", now, pod)
	}
}

// A parent chart has agents under names of its own, and gets another one later.
func TestAgentsOfAParentChart(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, "agent-parent")
	parent := t.TempDir()
	if err := os.CopyFS(filepath.Join(parent, "charts", "tendril"), os.DirFS(chartDir("tendril"))); err != nil {
		t.Fatal(err)
	}
	const chart = `
apiVersion: v2
name: platform
version: 1.0.0
dependencies:
  - {name: tendril, version: 0.0.0, alias: first, condition: first.enabled}
  - {name: tendril, version: 0.0.0, alias: second, condition: second.enabled}
`
	if err := os.WriteFile(filepath.Join(parent, "Chart.yaml"), []byte(chart), 0o600); err != nil {
		t.Fatal(err)
	}
	const agent = "cluster: prod, queue: {url: 'https://tendril.example', tokenSecret: tendril-token}}\n"
	values := func(second string) string {
		return "first: {enabled: true, " + agent + "second: {" + second + ", " + agent
	}
	n.must(t, values("enabled: false"), "install", "ours", parent)
	n.must(t, values("enabled: true"), "upgrade", "ours", parent)
	if got := fmt.Sprint(n.names(t, "statefulsets")); got != "[ours-first ours-second]" {
		t.Errorf("a parent chart with two agents makes %s, want [ours-first ours-second]", got)
	}
	said, ok := n.helm(t, values("enabled: true, fullnameOverride: other"), "upgrade", "ours", parent)
	if ok || !strings.Contains(said, "set fullnameOverride=ours-second") {
		t.Errorf("another name for the second agent (ok = %v):\n%s\nwant it refused", ok, said)
	}
}
