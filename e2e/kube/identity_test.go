//go:build kube

package kube

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

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
