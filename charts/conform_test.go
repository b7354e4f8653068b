package charts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// schemas is where TestMain has put them.
var schemas string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tendril-charts-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = writeSchemas(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the schemas of Kubernetes cannot be made; run `make deps`:", err)
		return 1
	}
	schemas = dir
	return m.Run()
}

// nonconforming is what kubeconform says against a stream of objects, in the
// schemas of one Kubernetes; "" where it finds nothing.
func nonconforming(t *testing.T, kubernetes, stream string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), pgtest.Tool(t, "kubeconform"), "-strict", "-summary",
		"-schema-location", filepath.Join(schemas, kubernetes, schemaLocation))
	cmd.Stdin = strings.NewReader(stream)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Sprintf("%v:\n%s", err, out)
	}
	return ""
}

// The schemas are made here, so they have to be shown to refuse something.
func TestSchemasRefuse(t *testing.T) {
	t.Parallel()
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, ports: [{containerPort: 1}]}]}\n"
	for _, tc := range []struct{ name, stream, says string }{
		{"valid", pod, ""},
		{"unknown field", strings.Replace(pod, "image: i", "image: i, imgae: i", 1), "imgae"},
		{"wrong type", strings.Replace(pod, "containerPort: 1", "containerPort: http", 1), "containerPort"},
		{"missing", strings.Replace(pod, "name: c, ", "", 1), "name"},
		{"unknown in metadata", strings.Replace(pod, "name: p", "name: p, lables: {}", 1), "lables"},
		{"unknown kind", strings.Replace(pod, "kind: Pod", "kind: Pood", 1), "Pood"},
		{"int or string", "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: p}\nspec: {maxUnavailable: 1}\n", ""},
		{"neither", "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: p}\nspec: {maxUnavailable: true}\n", "maxUnavailable"},
		{"monitor", "apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: {name: p}\nspec: {selector: {}, endpoints: [{port: http}]}\n", ""},
		{"monitor's typo", "apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: {name: p}\nspec: {selector: {}, endpoints: [{prot: http}]}\n", "prot"},
	} {
		for _, kubernetes := range []string{oldestKubernetes, newerKubernetes} {
			got := nonconforming(t, kubernetes, tc.stream)
			if (got == "") != (tc.says == "") || !strings.Contains(got, tc.says) {
				t.Errorf("kubeconform (%s) of %s says %q, want it to name %q", kubernetes, tc.name, got, tc.says)
			}
		}
	}
}
