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

// notes are what people read after an install. Helm shows them when it has asked a
// cluster only, so here a copy of the chart has them in an object.
func (c chart) notes(t *testing.T, values string, args ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), string(c))
	if err := os.CopyFS(dir, os.DirFS(string(c))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "templates", "NOTES.txt"))
	if err != nil {
		t.Fatal(err)
	}
	object := "{{ define \"test.notes\" }}" + string(text) + "{{ end }}\nnotes: {{ include \"test.notes\" . | toJson }}\n"
	if err := os.WriteFile(filepath.Join(dir, "templates", "notes.yaml"), []byte(object), 0o600); err != nil {
		t.Fatal(err)
	}
	rendered, complaint := helm(t, values, append([]string{
		"template", string(c), dir, "--namespace", "platform", "--kube-version", oldestKubernetes, "--show-only", "templates/notes.yaml", "--values", "-",
	}, args...)...)
	if complaint != "" {
		t.Fatalf("the notes of %s cannot be rendered:\n%s", c, complaint)
	}
	return decode(t, rendered)[0].get("notes").(string)
}
