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

// kept is what makes an agent the one it was.
func (n *namespace) kept(t *testing.T) map[string]string {
	t.Helper()
	set := n.get(t, "statefulsets", "tendril")
	kept := map[string]string{
		"StatefulSet": set.Metadata.UID, "claim": n.get(t, "persistentvolumeclaims", "data-tendril-0").Metadata.UID,
		"selector": fmt.Sprint(set.Spec["selector"]), "service": fmt.Sprint(set.Spec["serviceName"]), "volumes": strings.Replace(fmt.Sprint(set.Spec["volumeClaimTemplates"]), "storage:21474836480", "storage:20Gi", 1), // which is the same
	}
	for _, secret := range n.list(t, "secrets") {
		if !strings.HasPrefix(secret.Metadata.Name, "sh.helm.") {
			kept["Secret "+secret.Metadata.Name] = secret.Metadata.UID + fmt.Sprint(secret.Data)
		}
	}
	return kept
}

// comesBackWhole scales the agents down to none and up again: each is given the
// volume that it had.
func (n *namespace) comesBackWhole(t *testing.T, agents int) {
	t.Helper()
	volumes := func() map[string]string {
		uids := map[string]string{}
		for _, claim := range n.list(t, "persistentvolumeclaims") {
			uids[claim.Metadata.Name] = claim.Metadata.UID
		}
		return uids
	}
	scale := func(replicas int) {
		out, err := kubernetes.kubectl(t.Context(), "scale", "statefulset/tendril", fmt.Sprint("--replicas=", replicas), "--namespace", n.name).CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl scale: %v\n%s", err, out)
		}
		await(t, fmt.Sprint(replicas, " agents"), func() (bool, string) {
			pods := n.names(t, "pods")
			return len(pods) == replicas, fmt.Sprint(pods)
		})
	}
	n.play(t, "agent", runs) // the second comes when the first is ready
	await(t, "a volume of each agent", func() (bool, string) { return len(volumes()) == agents, fmt.Sprint(volumes()) })
	before := volumes()
	scale(0)
	if left := volumes(); !maps.Equal(left, before) {
		t.Errorf("claims without agents = %v, want %v", left, before)
	}
	scale(agents)
	for _, pod := range n.list(t, "pods") {
		if volume := "claimName:data-" + pod.Metadata.Name; !strings.Contains(fmt.Sprint(pod.Spec["volumes"]), volume) {
			t.Errorf("pod %s has the volumes %v, want %s", pod.Metadata.Name, pod.Spec["volumes"], volume)
		}
	}
	if after := volumes(); !maps.Equal(after, before) {
		t.Errorf("claims of agents that are back = %v, want %v", after, before)
	}
}

// Whatever else an upgrade changes, the agent is the same: its pod's name, its
// volume, its token and identity.
func TestAgentKeepsItsIdentity(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, "agent-upgrade")
	n.secret(t, "tendril-identity", map[string]string{"identity": "AGE-SECRET-KEY-1"})
	// With a token that the chart makes a Secret of: it must not be made anew.
	values := "cluster: prod\nqueue: {url: 'https://tendril.example', token: tnd_secret}\nidentity: {existingSecret: tendril-identity}\n"
	n.must(t, values, "install", "tendril", chartDir("tendril"))
	n.awaitAgent(t)
	before, pod := n.kept(t), n.list(t, "pods")[0]
	if len(before) != 7 {
		t.Fatalf("what an agent is = %v, want two Secrets and five more", before)
	}
	upgrades := []struct {
		name, values string
		args         []string
	}{
		{"the same again", values, []string{chartDir("tendril")}},
		{"other values", values + "slots: 5\nlabels: {team: ours}\npersistence: {size: 21474836480}\npolicy: {repos: ['https://github.com/acme/*']}\nresources: {limits: {memory: 4Gi}}\nrbac: {rules: [{apiGroups: [''], resources: [configmaps], verbs: [get]}]}\n", []string{chartDir("tendril")}},
		{"a newer chart", values, []string{newer(t, "tendril")}},
		{"more agents", values + "replicas: 2\nstate: {default: managed}\n", []string{newer(t, "tendril")}},
	}
	for _, u := range upgrades {
		n.must(t, u.values, append([]string{"upgrade", "tendril"}, u.args...)...)
		if after := n.kept(t); !maps.Equal(after, before) {
			t.Errorf("after an upgrade by %s the agent is\n%v, was\n%v", u.name, after, before)
		}
	}
	// Pods that never ran are replaced without being waited for, but by name.
	await(t, "a pod of the newer version under the name of the first", func() (bool, string) {
		if !n.exists(t, "pods", "tendril-0") {
			return false, "none"
		}
		now := n.get(t, "pods", "tendril-0")
		return now.Metadata.UID != pod.Metadata.UID && strings.Contains(fmt.Sprint(now.Spec["containers"]), ":99.0.0"), fmt.Sprint(now.Spec["containers"])
	})
	n.comesBackWhole(t, 2)
	n.must(t, "", "rollback", "tendril", "1")
	if after := n.kept(t); !maps.Equal(after, before) {
		t.Errorf("after a rollback the agent is\n%v, was\n%v", after, before)
	}
	// The volume outlives the release, and the next one of that name takes it up.
	n.must(t, "", "uninstall", "tendril", "--wait")
	if left := fmt.Sprint(n.names(t, "persistentvolumeclaims")); !strings.Contains(left, "data-tendril-0") {
		t.Fatalf("claims after helm uninstall = %s, want data-tendril-0", left)
	}
	n.must(t, values, "install", "tendril", chartDir("tendril"))
	if claim := n.kept(t)["claim"]; claim != before["claim"] {
		t.Errorf("the claim after installing it again = %s, was %s", claim, before["claim"])
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
