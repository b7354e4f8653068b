package charts

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// Every command that installs a chart, wherever people read it, has values that
// exist, and the Secrets that they name are made before it in that namespace.
// `make e2e-kube` runs the same blocks on a Kubernetes API server.
func TestCommandsThatInstall(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile(`(?s)helm install (\S+) oci://ghcr\.io/tendril-run/charts/(\S+) (.*)`)
	for _, block := range []string{
		pages.Block(t, "docs/OPERATIONS.md", "helm install trellis"),
		pages.Block(t, "docs/OPERATIONS.md", "helm install tendril"),
		pages.Block(t, "charts/tendril/README.md", "helm install"),
		pages.Block(t, "charts/trellis/README.md", "helm install"),
	} {
		found := command.FindStringSubmatch(block)
		if found == nil {
			t.Errorf("this installs no chart of the registry:\n%s", block)
			continue
		}
		// By a shell: quotes and continued lines are part of what is shown.
		out, err := exec.CommandContext(t.Context(), "bash", "-c", fmt.Sprintf("%s template %s %s --kube-version %s %s",
			pgtest.Tool(t, "helm"), found[1], found[2], oldestKubernetes, found[3])).CombinedOutput()
		if err != nil {
			t.Errorf("%s%v\n%s", found[0], err, out)
			continue
		}
		for _, o := range decode(t, string(out)) {
			for _, missing := range unmade(o, block) {
				t.Errorf("chart %s is installed, whose %v needs %s, which is not made before:\n%s", found[2], o.get("kind"), missing, block)
			}
		}
	}
}

// unmade are the keys of Secrets that an object's pods need and the commands do
// not make in its namespace.
func unmade(o object, commands string) (missing []string) {
	volumes, _ := follow(podSpec(o), "volumes").([]any)
	for _, volume := range volumes {
		sources, _ := follow(volume, "projected", "sources").([]any)
		for _, source := range append(sources, volume) {
			secret := follow(source, "secret")
			name := follow(secret, "secretName")
			if name == nil {
				name = follow(secret, "name")
			}
			items, _ := follow(secret, "items").([]any)
			for _, item := range items {
				made := false
				for line := range strings.Lines(strings.ReplaceAll(commands, "|\n", "| ")) {
					made = made || strings.Contains(line, fmt.Sprintf("create secret generic %v ", name)) &&
						strings.Contains(line, fmt.Sprintf("--from-file=%v=", follow(item, "key"))) &&
						regexp.MustCompile(fmt.Sprintf(`(--namespace|-n) %v\b`, o.get("metadata", "namespace"))).MatchString(line)
				}
				if !made {
					missing = append(missing, fmt.Sprintf("key %v of Secret %v", follow(item, "key"), name))
				}
			}
		}
	}
	return missing
}
