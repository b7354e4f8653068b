//go:build kube

package kubejobs

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// world is a site whose agent has its runs carried out in a namespace of the cluster.
type world struct {
	*site.Site
	namespace string
	repos     string // the git server, as pods reach it
	pods      string // the file that is laid over pods
}

// newWorld makes a site, and a namespace that enforces the Pod Security Standard "restricted".
func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{Site: site.New(t), namespace: "t-" + strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())) + "-" + strings.ToLower(rand.Text()[:5])}
	node.apply(t, fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %q, labels: {pod-security.kubernetes.io/enforce: restricted}}
`, w.namespace))
	t.Cleanup(func() {
		if t.Failed() {
			for _, what := range [][]string{{"get", "jobs,pods", "-o", "wide"}, {"get", "events", "--sort-by=.lastTimestamp"}, {"logs", "-l", "app.kubernetes.io/component=runner", "--tail=50"}} {
				said, _ := node.try(t, append([]string{"-n", w.namespace}, what...)...)
				t.Logf("kubectl %s:\n%s", strings.Join(what, " "), said)
			}
		}
		_, _ = node.try(t, "delete", "namespace", w.namespace, "--wait=false", "--grace-period=1")
	})
	config, err := pgx.ParseConfig(w.QueueURL)
	if err != nil {
		t.Fatal(err)
	}
	socket := fmt.Sprintf("%s/.s.PGSQL.%d", config.Host, config.Port)
	w.QueueURL = fmt.Sprintf("postgres://%s:%s@%s:%s/%s?sslmode=disable", config.User, url.QueryEscape(config.Password), host, forward(t, "unix", socket), config.Database)
	git, err := url.Parse(w.Git.URL)
	if err != nil {
		t.Fatal(err)
	}
	w.repos = "https://" + hostName + ":" + forward(t, "tcp", git.Host)
	w.pods = filepath.Join(t.TempDir(), "pod.yaml")
	w.layOver(fmt.Sprintf(`
spec:
  hostAliases: [{ip: %q, hostnames: [%s]}]
  containers:
  - name: runner
    imagePullPolicy: Never
    resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 512Mi}}
`, host, hostName))
	return w
}

// layOver sets what is laid over pods.
func (w *world) layOver(yaml string) {
	w.T.Helper()
	if err := os.WriteFile(w.pods, []byte(yaml), 0o600); err != nil {
		w.T.Fatal(err)
	}
}

// template serves one as the pods reach it.
func (w *world) template(name string, files map[string]string) string {
	w.T.Helper()
	return w.repos + strings.TrimPrefix(w.Template(name, files), w.Git.URL)
}

// dispatcher configures an agent whose runs are Jobs; more goes into its table [kubernetes].
func (w *world) dispatcher(name string, slots int, more string) *site.Agent {
	w.T.Helper()
	a := w.NewAgent(name, slots, fmt.Sprintf(`launcher = "kubernetes"
[state]
default = "managed"
[kubernetes]
kubeconfig = %q
namespace = %q
image = %q
pod_file = %q
%s
`, node.kubeconfig, w.namespace, runnerImage, w.pods, more))
	a.Set("TENDRIL_POLICY_REPOS", w.repos+"/**")
	return a
}

// names lists the names of all objects of a kind.
func (w *world) names(kind string) []string {
	w.T.Helper()
	return strings.Fields(node.kubectl(w.T, "-n", w.namespace, "get", kind, "-o", "jsonpath={.items[*].metadata.name}"))
}

// await waits for what Kubernetes does in its own time.
func (w *world) await(what string, holds func() bool) {
	w.T.Helper()
	limit := patience.Begin(site.Patience)
	for !holds() {
		if limit.Over() {
			w.T.Fatalf("timed out waiting for %s", what)
		}
		limit.Pause()
	}
}
