//go:build kube

package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each block that installs or upgrades a chart, wherever people read it, is run
// as it stands, but for where the charts are and what the namespaces are called.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?ms)^```text\n(.*?)^```$")
	for i, file := range []string{"README.md", "docs/OPERATIONS.md", "charts/tendril/README.md", "charts/trellis/README.md"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("../..", file))
			if err != nil {
				t.Fatal(err)
			}
			charts, err := filepath.Abs(chartDir(""))
			if err != nil {
				t.Fatal(err)
			}
			dir, done := t.TempDir(), map[string]bool{}
			for name, content := range map[string]string{"token": "tnd_secret", "url.txt": "postgres://o:p@db.example/d", "database-url": "postgres://o:p@db.example/d"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, found := range block.FindAllStringSubmatch(string(text), -1) {
				commands := found[1]
				if !strings.Contains(commands, "helm ") {
					continue
				}
				commands = strings.ReplaceAll(commands, "oci://ghcr.io/tendril-run/charts", charts)
				inNamespace := regexp.MustCompile(`(--namespace|-n|create namespace) (\S+)`)
				for _, m := range inNamespace.FindAllStringSubmatch(commands, -1) {
					if name := fmt.Sprintf("docs-%d-%s", i, m[2]); !done[name] {
						done[name] = true
						(&namespace{name}).play(t, "migrate", succeeds)
					}
				}
				run := kubernetes.command(t.Context(), "", "-ec", inNamespace.ReplaceAllString(commands, fmt.Sprintf("$1 docs-%d-$2", i)))
				run.Env = append(run.Env, "PATH="+filepath.Dir(kubernetes.kubectl(t.Context()).Path)+":"+os.Getenv("PATH"))
				run.Path, run.Dir, run.Stdin = "/bin/bash", dir, strings.NewReader("tnd_secret\n")
				out, err := run.CombinedOutput()
				if err != nil || strings.Contains(string(out), "Warning") {
					t.Fatalf("%s: %v\n%s\nsays:\n%s", file, err, commands, out)
				}
			}
			if len(done) == 0 {
				t.Fatalf("%s says nowhere how a chart is installed", file)
			}
			for name := range done {
				n := &namespace{name}
				await(t, "pods of what "+file+" installs", func() (bool, string) {
					pods := n.names(t, "pods", "app.kubernetes.io/name")
					return len(pods) > 0, fmt.Sprint(pods)
				})
			}
		})
	}
}

// documentedRights are the questions of SECURITY.md, and whether the cluster is
// to answer yes.
func documentedRights(t *testing.T) map[[2]string]bool {
	t.Helper()
	text, err := os.ReadFile("../../docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| `kubectl auth can-i …` | answer |")
	rights := map[[2]string]bool{}
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\S+) (\\S+)` \\| (yes|no) \\|$").FindAllStringSubmatch(table, -1) {
		rights[[2]string{row[1], row[2]}] = row[3] == "yes"
	}
	if !found || len(rights) < 5 {
		t.Fatalf("docs/SECURITY.md has %d questions of what the accounts may, want them", len(rights))
	}
	return rights
}

// wantDocumentedRights asks the cluster each of them, of an account.
func (n *namespace) wantDocumentedRights(t *testing.T, account string) {
	t.Helper()
	for what, want := range documentedRights(t) {
		if got := n.can(t, account, what[0], what[1]); got != want {
			t.Errorf("kubectl auth can-i %s %s of %s = %v, docs/SECURITY.md says %v", what[0], what[1], account, got, want)
		}
	}
}
