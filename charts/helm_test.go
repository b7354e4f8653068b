package charts

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/pgtest"
)

// chart is the name of a chart's directory.
type chart string

// helm runs it without anything of this user's, and returns what it printed and,
// if it failed, what it said.
func helm(t *testing.T, stdin string, args ...string) (stdout, complaint string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), pgtest.Tool(t, "helm"), args...)
	home := t.TempDir()
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "KUBECONFIG=" + filepath.Join(home, "none")}
	cmd.Stdin = strings.NewReader(stdin)
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	if cmd.Run() != nil {
		return out.String(), err.String()
	}
	return out.String(), ""
}

// template renders the chart as release "tendril" or, for another chart, one of
// its name, in namespace "platform", for a cluster of the oldest Kubernetes that
// the charts are for.
func (c chart) template(t *testing.T, values string, args ...string) (rendered, complaint string) {
	t.Helper()
	return helm(t, values, append([]string{
		"template", string(c), string(c), "--namespace", "platform", "--kube-version", oldestKubernetes, "--values", "-",
	}, args...)...)
}

// lint is helm's own judgement, warnings included.
func (c chart) lint(t *testing.T, values string) (complaint string) {
	t.Helper()
	out, complaint := helm(t, values, "lint", "--strict", "--kube-version", oldestKubernetes, "--values", "-", string(c))
	if complaint != "" {
		return out + complaint
	}
	return ""
}

// notes are what people read after an install.
func (c chart) notes(t *testing.T, values string, args ...string) string {
	t.Helper()
	// A dry run on the client is the only rendering that shows them.
	out, complaint := helm(t, values, append([]string{
		"install", string(c), string(c), "--namespace", "platform", "--dry-run=client", "--values", "-",
	}, args...)...)
	if complaint != "" {
		t.Fatalf("helm install --dry-run of %s failed:\n%s", c, complaint)
	}
	_, notes, ok := strings.Cut(out, "\nNOTES:\n")
	if !ok {
		t.Fatalf("helm install --dry-run of %s prints no notes:\n%s", c, out)
	}
	return notes
}
