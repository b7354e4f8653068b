//go:build kube

package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pages"
)

// Each block that installs or upgrades a chart, wherever people read it, is run
// as it stands, but for where the charts are and what the namespaces are called.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	for i, blocks := range [][]string{
		{pages.Block(t, "docs/OPERATIONS.md", "helm install trellis"), pages.Block(t, "docs/OPERATIONS.md", "helm install tendril")},
		{pages.Block(t, "charts/tendril/README.md", "helm install")},
		{pages.Block(t, "charts/trellis/README.md", "helm install"), pages.Block(t, "charts/trellis/README.md", "helm upgrade")},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			charts, err := filepath.Abs(chartDir(""))
			if err != nil {
				t.Fatal(err)
			}
			dir, done := t.TempDir(), map[string]bool{}
			// No control plane runs here, which a token's maker asks.
			if err := os.WriteFile(filepath.Join(dir, "trellis"), []byte("#!/bin/sh\necho tnj_secret\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			for name, content := range map[string]string{"url.txt": "postgres://o:p@db.example/d", "database-url": "postgres://o:p@db.example/d"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, commands := range blocks {
				commands = strings.ReplaceAll(commands, "oci://ghcr.io/tendril-run/charts", charts)
				inNamespace := regexp.MustCompile(`(--namespace|-n|create namespace) (\S+)`)
				for _, m := range inNamespace.FindAllStringSubmatch(commands, -1) {
					if name := fmt.Sprintf("docs-%d-%s", i, m[2]); !done[name] {
						done[name] = true
						(&namespace{name}).play(t, "migrate", succeeds)
					}
				}
				run := kubernetes.command(t.Context(), "", "-ec", inNamespace.ReplaceAllString(commands, fmt.Sprintf("$1 docs-%d-$2", i)))
				run.Env = append(run.Env, "PATH="+dir+":"+filepath.Dir(kubernetes.kubectl(t.Context()).Path)+":"+os.Getenv("PATH"))
				run.Path, run.Dir, run.Stdin = "/bin/bash", dir, strings.NewReader("tnd_secret\n")
				out, err := run.CombinedOutput()
				if err != nil || strings.Contains(string(out), "Warning") {
					t.Fatalf("%v\n%s\nsays:\n%s", err, commands, out)
				}
			}
			for name := range done {
				n := &namespace{name}
				await(t, "pods of what is installed in "+name, func() (bool, string) {
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

// wantDocumentedRights asks the cluster each of them, of an account, and as the page does
// for all that the account may.
func (n *namespace) wantDocumentedRights(t *testing.T, account string) {
	t.Helper()
	for _, line := range pages.Lines(pages.Block(t, "docs/SECURITY.md", "kubectl auth can-i --list")) {
		args := strings.Fields(line)
		if !slices.Contains(args, "system:serviceaccount:"+account+":"+account) {
			continue
		}
		for i := range args {
			args[i] = strings.Replace(args[i], "serviceaccount:"+account, "serviceaccount:"+n.name, 1)
			if args[i] == "--namespace" {
				args[i+1] = n.name
			}
		}
		if out, err := kubernetes.kubectl(t.Context(), args[1:]...).CombinedOutput(); err != nil || !strings.Contains(string(out), "selfsubjectaccessreviews") {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	for what, want := range documentedRights(t) {
		if got := n.can(t, account, what[0], what[1]); got != want {
			t.Errorf("kubectl auth can-i %s %s of %s = %v, docs/SECURITY.md says %v", what[0], what[1], account, got, want)
		}
	}
}
