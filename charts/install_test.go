package charts

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/pgtest"
)

// Every command that installs a chart, wherever people read it, has values that
// exist, and the Secrets that they name are made before it in that namespace.
// `make e2e-kube` runs the same blocks on a Kubernetes API server.
func TestCommandsThatInstall(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile(`(?s)helm install (\S+) oci://ghcr\.io/tendril-run/charts/(\S+) (.*)`)
	for file, want := range map[string][]string{
		"../README.md":          {"tendril"},
		"../docs/OPERATIONS.md": {"trellis", "tendril"},
		"tendril/README.md":     {"tendril"},
		"trellis/README.md":     {"trellis"},
	} {
		var installed []string
		for _, block := range blocks(t, file, "text") {
			found := command.FindStringSubmatch(block)
			if found == nil {
				continue
			}
			installed = append(installed, found[2])
			// By a shell: quotes and continued lines are part of what is shown.
			out, err := exec.CommandContext(t.Context(), "bash", "-c", fmt.Sprintf("%s template %s %s --kube-version %s %s",
				pgtest.Tool(t, "helm"), found[1], found[2], oldestKubernetes, found[3])).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %s%v\n%s", file, found[0], err, out)
				continue
			}
			for _, o := range decode(t, string(out)) {
				for _, missing := range unmade(o, block) {
					t.Errorf("%s installs chart %s, whose %v needs %s, which is not made before:\n%s", file, found[2], o.get("kind"), missing, block)
				}
			}
		}
		if !slices.Equal(installed, want) {
			t.Errorf("%s installs %v, want %v", file, installed, want)
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
				for line := range strings.Lines(commands) {
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
