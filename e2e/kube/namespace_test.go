//go:build kube

package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// namespace is one that enforces the restricted profile of Pod Security, as a
// platform team would have it.
type namespace struct{ name string }

func newNamespace(t *testing.T, name string) *namespace {
	t.Helper()
	n := &namespace{name}
	n.create(t, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": name, "labels": map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted",
	}}})
	// Pods need the account that a controller makes.
	await(t, "the default service account of "+name, func() (bool, string) { return n.exists(t, "serviceaccounts", "default"), "none" })
	return n
}

func (n *namespace) create(t *testing.T, path string, o any) {
	t.Helper()
	if _, err := kubernetes.call(t.Context(), http.MethodPost, path, o); err != nil {
		t.Fatalf("POST %s: %v", path, err)
	}
}

// secret makes one, as people do before an install.
func (n *namespace) secret(t *testing.T, name string, data map[string]string) {
	t.Helper()
	n.create(t, "/api/v1/namespaces/"+n.name+"/secrets", map[string]any{"metadata": map[string]any{"name": name}, "stringData": data})
}

// groups are where the API has what the charts make.
var groups = map[string]string{
	"deployments": "/apis/apps/v1", "statefulsets": "/apis/apps/v1", "replicasets": "/apis/apps/v1", "jobs": "/apis/batch/v1", "cronjobs": "/apis/batch/v1",
	"networkpolicies": "/apis/networking.k8s.io/v1", "ingresses": "/apis/networking.k8s.io/v1", "poddisruptionbudgets": "/apis/policy/v1",
	"servicemonitors": "/apis/monitoring.coreos.com/v1", "roles": "/apis/rbac.authorization.k8s.io/v1", "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
}

func (n *namespace) path(resource string) string {
	group := groups[resource]
	if group == "" {
		group = "/api/v1"
	}
	return group + "/namespaces/" + n.name + "/" + resource
}

// get returns an object that has to be there.
func (n *namespace) get(t *testing.T, resource, name string) (o object) {
	t.Helper()
	answer, err := kubernetes.call(t.Context(), http.MethodGet, n.path(resource)+"/"+name, nil)
	if err != nil {
		t.Fatalf("GET %s %s: %v", resource, name, err)
	}
	if err := json.Unmarshal(answer, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func (n *namespace) exists(t *testing.T, resource, name string) bool {
	t.Helper()
	_, err := kubernetes.call(t.Context(), http.MethodGet, n.path(resource)+"/"+name, nil)
	if refused, ok := errors.AsType[*refusedError](err); ok && refused.code == http.StatusNotFound {
		return false
	}
	if err != nil {
		t.Fatalf("GET %s %s: %v", resource, name, err)
	}
	return true
}

// list returns those of a kind that have all labels, KEY=VALUE.
func (n *namespace) list(t *testing.T, resource string, labels ...string) []object {
	t.Helper()
	answer, err := kubernetes.call(t.Context(), http.MethodGet, n.path(resource)+"?labelSelector="+strings.Join(labels, ","), nil)
	if err != nil {
		t.Fatalf("list %s: %v", resource, err)
	}
	var found struct{ Items []object }
	if err := json.Unmarshal(answer, &found); err != nil {
		t.Fatal(err)
	}
	return found.Items
}

func (n *namespace) names(t *testing.T, resource string, labels ...string) (names []string) {
	t.Helper()
	for _, o := range n.list(t, resource, labels...) {
		names = append(names, o.Metadata.Name)
	}
	slices.Sort(names)
	return names
}

// helm runs it here and returns its words, warnings of the API server included,
// and whether it succeeded.
func (n *namespace) helm(t *testing.T, values string, args ...string) (said string, ok bool) {
	t.Helper()
	cmd := kubernetes.command(t.Context(), "helm", append(args, "--namespace", n.name)...)
	if values != "" {
		cmd.Args = append(cmd.Args, "--values", "-")
		cmd.Stdin = strings.NewReader(values)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// must is helm where it has to succeed, without a warning.
func (n *namespace) must(t *testing.T, values string, args ...string) string {
	t.Helper()
	said, ok := n.helm(t, values, args...)
	if !ok || strings.Contains(said, "Warning:") || strings.Contains(said, "warnings.go") {
		t.Fatalf("helm %s says:\n%s", strings.Join(args, " "), said)
	}
	return said
}

// chartDir is where a chart is.
func chartDir(name string) string { return filepath.Join("..", "..", "charts", name) }

// newer packs a chart as it will be called at its next release.
func newer(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	out, err := kubernetes.command(t.Context(), "helm", "package", chartDir(name), "--version", "99.0.0", "--app-version", "99.0.0", "--destination", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("helm package: %v\n%s", err, out)
	}
	return filepath.Join(dir, name+"-99.0.0.tgz")
}

// may is what `kubectl auth can-i --list` answers of an account, a line each.
func (n *namespace) may(t *testing.T, account string) []string {
	t.Helper()
	var out, complaint bytes.Buffer
	cmd := kubernetes.kubectl(t.Context(), "auth", "can-i", "--list", "--no-headers", "--namespace", n.name, "--as", n.user(account))
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		t.Fatalf("kubectl auth can-i --list: %v\n%s", err, complaint.String())
	}
	var rules []string
	for line := range strings.Lines(out.String()) {
		rules = append(rules, strings.Join(strings.Fields(line), " "))
	}
	slices.Sort(rules)
	return rules
}

// can asks `kubectl auth can-i VERB RESOURCE`.
func (n *namespace) can(t *testing.T, account, verb, resource string) bool {
	t.Helper()
	// What it warns of, such as that nodes are in no namespace, is not its answer.
	out, err := kubernetes.kubectl(t.Context(), "auth", "can-i", verb, resource, "--namespace", n.name, "--as", n.user(account)).Output()
	switch answer := strings.TrimSpace(string(out)); {
	case answer == "yes" && err == nil:
		return true
	case strings.HasPrefix(answer, "no"): // and the exit code is 1
		return false
	}
	t.Fatalf("kubectl auth can-i %s %s: %v\n%s", verb, resource, err, out)
	return false
}

func (n *namespace) user(account string) string {
	return "system:serviceaccount:" + n.name + ":" + account
}
