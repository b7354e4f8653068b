//go:build kube

package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const (
	trellisValues = "publicURL: https://tendril.example\ndatabase: {urlSecret: {name: database}}\n"
	// All that the chart can make.
	trellisAll = "publicURL: https://tendril.example\ndatabase: {urlSecret: {name: database}, directUrlSecret: {name: database, key: direct}}\n" + `
replicas: 3
signIn: {oidc: {issuer: "https://accounts.example", clientID: tendril, clientSecret: {name: oidc}}, firstAdmin: ada@example.com}
webhooks: {keySecret: {name: webhooks}, allow: [hooks.internal]}
trustedProxies: [10.0.0.0/8]
ingress: {enabled: true, className: nginx}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
networkPolicy: {strict: true, metricsFrom: [{podSelector: {}}]}
ca: {configMap: authorities}
gc: {enabled: true}
`
)

// trellisIn makes the namespace and the Secret that trellis needs.
func trellisIn(t *testing.T, name string) *namespace {
	t.Helper()
	n := newNamespace(t, name)
	n.secret(t, "database", map[string]string{"url": "postgres://owner:secret@db.example/tendril"})
	return n
}

// The server's pods come when the database is migrated, not before.
func TestTrellisIsInstalled(t *testing.T) {
	t.Parallel()
	n := trellisIn(t, "trellis-install")
	installed := make(chan string, 1)
	go func() {
		said, ok := n.helm(t, trellisValues, "install", "trellis", chartDir("trellis"), "--wait", "--timeout", "3m")
		installed <- fmt.Sprint(ok, " ", said)
	}()
	await(t, "the pod of the migration", func() (bool, string) {
		pods := n.names(t, "pods", "app.kubernetes.io/component=migrate")
		return len(pods) == 1, fmt.Sprint(pods, " ", n.names(t, "jobs"))
	})
	if found := n.names(t, "deployments"); len(found) != 0 {
		t.Errorf("deployments before the migration has ended = %v, want none", found)
	}
	n.play(t, "migrate", succeeds)
	n.play(t, "server", runs)
	if said := <-installed; !strings.HasPrefix(said, "true ") || strings.Contains(said, "Warning") {
		t.Fatalf("helm install --wait says: %s", said)
	}
	if found := n.names(t, "jobs"); len(found) != 0 {
		t.Errorf("jobs after the install = %v, want none: that of the migration is done", found)
	}
	if pods := n.names(t, "pods", "app.kubernetes.io/component=server"); len(pods) != 2 {
		t.Errorf("pods of the server = %v, want 2", pods)
	}
	for _, of := range n.list(t, "pods") {
		volumes := fmt.Sprint(of.Spec["volumes"])
		if strings.Contains(volumes, "serviceAccountToken") {
			t.Errorf("pod %s has a token of the Kubernetes API: %s", of.Metadata.Name, volumes)
		}
	}
}

// Everything at once, and an account that may do nothing.
func TestTrellisWithEverything(t *testing.T) {
	t.Parallel()
	n := trellisIn(t, "trellis-all")
	n.play(t, "migrate", succeeds)
	n.must(t, trellisAll, "install", "trellis", chartDir("trellis"), "--timeout", "3m")
	for resource, want := range map[string]string{
		"deployments": "[trellis]", "services": "[trellis trellis-metrics]", "ingresses": "[trellis]", "servicemonitors": "[trellis]", "cronjobs": "[trellis-gc]",
		"poddisruptionbudgets": "[trellis]", "networkpolicies": "[trellis trellis-gc]", "serviceaccounts": "[default trellis]", "roles": "[]", "rolebindings": "[]",
	} {
		if got := fmt.Sprint(n.names(t, resource)); got != want {
			t.Errorf("%s = %s, want %s", resource, got, want)
		}
	}
	await(t, "three pods of the server", func() (bool, string) {
		pods := n.names(t, "pods", "app.kubernetes.io/component=server")
		return len(pods) == 3, fmt.Sprint(pods)
	})
	// As its schedule would; Pod Security judges pods when they are made.
	out, err := kubernetes.kubectl(t.Context(), "create", "job", "now", "--from=cronjob/trellis-gc", "--namespace", n.name).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl create job: %v\n%s", err, out)
	}
	await(t, "a pod that collects", func() (bool, string) {
		pods := n.names(t, "pods", "app.kubernetes.io/component=gc")
		return len(pods) == 1, fmt.Sprint(pods)
	})
	if got, want := n.may(t, "trellis"), n.may(t, "nobody"); !slices.Equal(got, want) {
		t.Errorf("kubectl auth can-i --list of trellis =\n%s\nwant what any account may:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	n.wantDocumentedRights(t, "trellis")
	n.must(t, "", "uninstall", "trellis", "--wait")
	if left := fmt.Sprint(n.names(t, "networkpolicies"), n.names(t, "jobs"), n.names(t, "services"), n.names(t, "secrets")); left != "[] [now] [] [database]" && left != "[] [] [] [database]" {
		t.Errorf("policies, jobs, services and secrets after helm uninstall = %s, want only what people made", left)
	}
}

// A migration that fails stops the upgrade: what runs goes on as it is, and the
// Job stays for its log to be read.
func TestTrellisIsNotUpgradedWithoutMigration(t *testing.T) {
	t.Parallel()
	n := trellisIn(t, "trellis-upgrade")
	n.must(t, trellisValues+"migrate: {enabled: false}\n", "install", "trellis", chartDir("trellis"))
	before := n.get(t, "deployments", "trellis")

	failing := trellisValues + "migrate: {backoffLimit: 0}\n"
	for name, args := range map[string][]string{"failing": nil, "failing, and taken back by Helm": {"--atomic"}} {
		t.Run(name, func(t *testing.T) {
			n.play(t, "migrate", fails)
			n.play(t, "server", runs)
			said, ok := n.helm(t, failing, append([]string{"upgrade", "trellis", newer(t, "trellis"), "--timeout", "3m"}, args...)...)
			if ok || !strings.Contains(said, "pre-upgrade hooks failed") {
				t.Fatalf("helm upgrade with a migration that fails says (ok = %v):\n%s", ok, said)
			}
			if after := n.get(t, "deployments", "trellis"); after.Metadata.Generation != before.Metadata.Generation {
				t.Errorf("the Deployment's generation after a migration that failed = %d, want %d still", after.Metadata.Generation, before.Metadata.Generation)
			}
			if jobs := n.names(t, "jobs"); fmt.Sprint(jobs) != "[trellis-migrate]" {
				t.Errorf("jobs after a migration that failed = %v, want it for its log", jobs)
			}
		})
	}

	n.play(t, "migrate", succeeds)
	n.must(t, trellisAll, "upgrade", "trellis", newer(t, "trellis"), "--timeout", "3m")
	after := n.get(t, "deployments", "trellis")
	if after.Metadata.UID != before.Metadata.UID || fmt.Sprint(after.Spec["selector"]) != fmt.Sprint(before.Spec["selector"]) {
		t.Errorf("the upgrade made another Deployment: %v, before %v", after.Spec["selector"], before.Spec["selector"])
	}
	if !strings.Contains(fmt.Sprint(after.Spec["template"]), "trellis:99.0.0") {
		t.Errorf("the Deployment's image after the upgrade: %v, want that of version 99.0.0", after.Spec["template"])
	}
	n.must(t, "", "rollback", "trellis", "1")
	if rolled := n.get(t, "deployments", "trellis"); rolled.Metadata.UID != before.Metadata.UID {
		t.Errorf("helm rollback made another Deployment")
	}
}

// What the README says to do after a first install that failed, and after a Helm
// that was killed, is what helps.
func TestTrellisIsInstalledAfterAll(t *testing.T) {
	t.Parallel()
	n := trellisIn(t, "trellis-again")
	values := trellisValues + "migrate: {backoffLimit: 0}\n"
	install := []string{"install", "trellis", chartDir("trellis"), "--timeout", "3m"}
	goOn := append([]string{"upgrade", "--install"}, install[1:]...)

	killed := kubernetes.command(t.Context(), "helm", append(install, "--namespace", n.name, "--values", "-")...)
	killed.Stdin = strings.NewReader(values)
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the pod of the migration", func() (bool, string) {
		pods := n.names(t, "pods", "app.kubernetes.io/component=migrate")
		return len(pods) == 1, fmt.Sprint(pods)
	})
	_ = killed.Process.Kill()
	_ = killed.Wait()
	if said, ok := n.helm(t, values, goOn...); ok || !strings.Contains(said, "another operation (install/upgrade/rollback) is in progress") {
		t.Errorf("helm upgrade after one that was killed says (ok = %v):\n%s", ok, said)
	}
	n.must(t, "", "uninstall", "trellis")

	t.Run("failing", func(t *testing.T) {
		n.play(t, "migrate", fails)
		if said, ok := n.helm(t, values, install...); ok || !strings.Contains(said, "job trellis-migrate failed") {
			t.Fatalf("helm install with a migration that fails says (ok = %v):\n%s", ok, said)
		}
	})
	if made := n.names(t, "deployments"); len(made) != 0 {
		t.Errorf("deployments after a migration that failed = %v, want none", made)
	}
	n.play(t, "migrate", succeeds)
	if said, ok := n.helm(t, values, install...); ok || !strings.Contains(said, "cannot re-use a name") {
		t.Errorf("helm install again says (ok = %v):\n%s", ok, said)
	}
	n.must(t, values, goOn...)
	if made := n.names(t, "deployments"); fmt.Sprint(made) != "[trellis]" {
		t.Errorf("deployments after the way that is told = %v, want trellis", made)
	}
}
