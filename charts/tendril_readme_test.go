package charts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/pgtest"
)

// What people copy from a README must work: values that are shown, and commands
// that install.
func TestAgentReadmeExamples(t *testing.T) {
	t.Parallel()
	examples := blocks(t, "tendril/README.md", "yaml")
	if len(examples) < 2 {
		t.Fatalf("tendril/README.md has %d examples of values, want them", len(examples))
	}
	for _, values := range examples {
		if !strings.HasPrefix(values, "cluster:") { // a part of some
			values = three + values
		}
		rendered, complaint := agentChart.template(t, values)
		if complaint != "" {
			t.Errorf("the chart refuses values of its README: %s\n%s", complaint, values)
			continue
		}
		if _, err := start(t, decode(t, rendered)); err != nil {
			t.Errorf("the agent refuses values of the chart's README: %v\n%s", err, values)
		}
	}
	for _, readme := range []string{"tendril/README.md", "../README.md"} {
		installed := false
		for _, block := range blocks(t, readme, "text") {
			_, command, ok := strings.Cut(block, "helm install tendril oci://ghcr.io/tendril-run/charts/tendril ")
			if !ok {
				continue
			}
			installed = true
			cmd := exec.CommandContext(t.Context(), "bash", "-c", pgtest.Tool(t, "helm")+" template tendril tendril --kube-version "+oldestKubernetes+" "+command)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "kind: StatefulSet") {
				t.Errorf("%s: helm install tendril %s: %v\n%s", readme, command, err, out)
			}
			if !strings.Contains(block, "create secret generic tendril-token --namespace tendril --from-file=token=token") {
				t.Errorf("%s installs the chart without the Secret that it names:\n%s", readme, block)
			}
		}
		if !installed {
			t.Errorf("%s does not say how the chart is installed", readme)
		}
	}
}

// blocks returns the fenced blocks of a language.
func blocks(t *testing.T, file, language string) (found []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		found = append(found, block[1])
	}
	return found
}
