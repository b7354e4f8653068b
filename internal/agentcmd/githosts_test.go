package agentcmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/config"
)

// What doctor asks git servers with is what a run would, and a credential that
// cannot be had is told, whether a repository that it looks at needs it or not.
func TestGitWithHosts(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	c := config.Config{Git: config.Git{Hosts: config.GitHosts{"git.example": {TokenFile: token, SSHKeyFile: token + "-key"}}}}
	_, err := gitWithHosts(t.Context(), c)
	for _, want := range []string{`token_file of [git.hosts."git.example"]`, `; ssh_key_file of [git.hosts."git.example"]`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("gitWithHosts() = %v, want %q in it", err, want)
		}
	}
	for _, file := range []string{token, token + "-key"} {
		if err := os.WriteFile(file, []byte("glpat-12345"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git, err := gitWithHosts(t.Context(), c)
	if err != nil || len(git.Hosts) != 1 || git.Hosts[0].Token != "glpat-12345" || git.Hosts[0].Key != "glpat-12345" {
		t.Errorf("gitWithHosts() = %+v, %v, want what the files hold", git.Hosts, err)
	}
}
