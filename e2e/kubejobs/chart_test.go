//go:build kube

package kubejobs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The chart, installed by somebody who is only admin of a restricted namespace, has runs carried out
// as Jobs: its Role is enough, and an upgrade in the middle of a run costs that nothing.
func TestChartRunsJobs(t *testing.T) {
	w := newWorld(t)
	node.applyIn(t, w.namespace, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: installer}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: installer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{kind: ServiceAccount, name: installer}]
`)
	node.kubectl(t, "-n", w.namespace, "create", "secret", "generic", "queue", "--from-literal=url="+w.QueueURL, "--from-literal=token="+w.Token)
	ca, err := os.ReadFile(w.Git.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	node.kubectl(t, "-n", w.namespace, "create", "configmap", "corp", "--from-literal=ca.crt="+string(ca))
	values := fmt.Sprintf(`
cluster: prod
launcher: kubernetes
queue: {urlSecret: {name: queue, key: url}, tokenSecret: queue}
state: {default: managed}
policy: {repos: [%q]}
ca: {configMap: corp}
persistence: {enabled: false}
identity: {existingSecret: identity}
image: {repository: tendril.test/runner, tag: "1", pullPolicy: Never}
hostAliases: [{ip: %q, hostnames: [%s]}]
resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 256Mi}}
jobs: {resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 512Mi}}}
`, w.repos+"/**", host, hostName)
	identity := filepath.Join(t.TempDir(), "identity")
	w.makeIdentity(identity)
	node.kubectl(t, "-n", w.namespace, "create", "secret", "generic", "identity", "--from-file=identity="+identity)

	w.install(t, values)
	repo := w.template("slow", map[string]string{"main.tf": slow})
	id := w.DeployTemplate(repo, "one", map[string]any{"seconds": 20})
	w.AwaitLine(id, "begun")
	w.install(t, strings.Replace(values, "cluster: prod", "cluster: prod\npodAnnotations: {upgraded: again}", 1))
	node.kubectl(t, "-n", w.namespace, "rollout", "status", "statefulset/tendril", "--timeout=120s")
	if got := w.Status(t, id); got != "PROCESSING" {
		t.Fatalf("status = %s: the upgrade was to be over before the run", got)
	}
	second := w.DeployTemplate(repo, "two", map[string]any{"seconds": 1})
	for _, id := range []string{w.AwaitEnd(second), w.AwaitEnd(id)} {
		if id != "SUCCESS" {
			t.Errorf("a run ended %s, want SUCCESS\n%s", id, node.kubectl(t, "-n", w.namespace, "logs", "tendril-0"))
		}
	}
	w.await("Jobs to be removed", func() bool { return len(w.names("jobs")) == 0 })
}

// install has helm render the chart, and the installer apply it.
func (w *world) install(t *testing.T, values string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(node.tools, "helm"), "template", "tendril", "../../charts/tendril", "--namespace", w.namespace, "--values", file).Output()
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	apply := exec.CommandContext(t.Context(), filepath.Join(node.tools, "kubernetes", "kubectl"), "--kubeconfig", node.kubeconfig, "-n", w.namespace,
		"--as", "system:serviceaccount:"+w.namespace+":installer", "apply", "-f", "-")
	apply.Stdin = strings.NewReader(string(out))
	if said, err := apply.CombinedOutput(); err != nil || strings.Contains(string(said), "would violate PodSecurity") {
		t.Fatalf("kubectl apply: %v\n%s", err, said)
	}
}
