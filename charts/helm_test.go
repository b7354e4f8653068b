package charts

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
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

// notes are what people read after an install. Helm shows them only where there
// is a cluster, so a copy of the chart renders them as an object.
func (c chart) notes(t *testing.T, values string) string {
	t.Helper()
	copied := filepath.Join(t.TempDir(), string(c))
	if err := os.CopyFS(copied, os.DirFS(string(c))); err != nil {
		t.Fatal(err)
	}
	object := "notes: |\n  {{- include \"" + string(c) + "/templates/NOTES.txt\" . | nindent 2 }}\n"
	if err := os.WriteFile(filepath.Join(copied, "templates", "shown.yaml"), []byte(object), 0o600); err != nil {
		t.Fatal(err)
	}
	out, complaint := helm(t, values, "template", string(c), copied, "--namespace", "platform", "--kube-version", oldestKubernetes,
		"--values", "-", "--show-only", "templates/shown.yaml")
	if complaint != "" {
		t.Fatalf("the notes of %s cannot be rendered:\n%s", c, complaint)
	}
	notes, _ := decode(t, out)[0].get("notes").(string)
	return notes
}
