package githosts

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/testkit/apptest"
)

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// What is read is what the files hold now: a rotated Secret serves the next run.
func TestReadAnewEachTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token, key, hosts := filepath.Join(dir, "token"), filepath.Join(dir, "key"), filepath.Join(dir, "hosts")
	write(t, token, " glpat-first\n", 0o600)
	write(t, key, "KEY", 0o600)
	write(t, hosts, "HOSTS", 0o644)
	api := apptest.New(t, nil)
	r := New(config.Git{CAFile: api.CAFile, Hosts: config.GitHosts{
		"gitlab.example": {TokenFile: token, Username: "oauth2", Repos: []string{"https://gitlab.example/m/*"}},
		"git.example:22": {SSHKeyFile: key, KnownHostsFile: hosts},
		"github.com":     {AppID: apptest.AppID, AppInstallationID: apptest.Installation, AppKeyFile: api.KeyFile, AppAPIURL: api.URL},
	}})
	want := []job.GitHost{
		{Host: "git.example:22", Username: appUser, Key: "KEY", KnownHosts: "HOSTS", KnownHostsFile: hosts},
		{Host: "github.com", Username: appUser, Token: "ghs_000000000000000000000000000000000001"},
		{Host: "gitlab.example", Username: "oauth2", Token: "glpat-first", Repos: []string{"https://gitlab.example/m/*"}},
	}
	if got := r.Read(t.Context()); !reflect.DeepEqual(got, want) {
		t.Errorf("Read() = %+v, want %+v", got, want)
	}
	write(t, token, "glpat-second", 0o600)
	want[2].Token = "glpat-second"
	if got := r.Read(t.Context()); !reflect.DeepEqual(got, want) {
		t.Errorf("Read() after the token was replaced = %+v, want %+v", got, want)
	}
}

// What cannot be had is told to whoever needs it, and only to them.
func TestReadProblems(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open, short, empty := filepath.Join(dir, "open"), filepath.Join(dir, "short"), filepath.Join(dir, "empty")
	write(t, open, "glpat-secret", 0o644)
	write(t, short, "hunter2", 0o600)
	write(t, empty, "\n", 0o600)
	for _, c := range []struct {
		host config.GitHost
		want string
	}{
		{config.GitHost{TokenFile: filepath.Join(dir, "none")}, `token_file of [git.hosts."h"]: ` + dir + "/none cannot be read"},
		{config.GitHost{TokenFile: open}, "others may read it (mode 0644)"},
		{config.GitHost{TokenFile: short}, "holds no token"},
		{config.GitHost{TokenFile: empty}, "is empty"},
		{config.GitHost{SSHKeyFile: open}, `ssh_key_file of [git.hosts."h"]`},
		{config.GitHost{SSHKeyFile: short, KnownHostsFile: filepath.Join(dir, "none")}, `known_hosts_file of [git.hosts."h"]`},
		{config.GitHost{AppID: "1", AppInstallationID: "2", AppKeyFile: filepath.Join(dir, "none")}, `the GitHub App of [git.hosts."h"]`},
		{config.GitHost{AppID: "1", AppInstallationID: "2", AppKeyFile: short}, "no RSA key in PEM"},
	} {
		got := New(config.Git{Hosts: config.GitHosts{"h": c.host}}).Read(t.Context())[0]
		problem := got.TokenProblem + got.KeyProblem
		if got.Token != "" || got.Key != "" || !strings.Contains(problem, c.want) || strings.Contains(problem, "secret") || strings.Contains(problem, "hunter2") {
			t.Errorf("Read() of %+v = %+v, want no credential and %q", c.host, got, c.want)
		}
	}
}

func TestAPIURL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ host, configured, want string }{
		{"github.com", "", "https://api.github.com"},
		{"acme.ghe.com", "", "https://api.acme.ghe.com"},
		{"git.acme.example:8443", "", "https://git.acme.example:8443/api/v3"},
		{"github.com", "https://proxy.example/gh", "https://proxy.example/gh"},
	} {
		if got := apiURL(c.host, c.configured); got != c.want {
			t.Errorf("apiURL(%q, %q) = %q, want %q", c.host, c.configured, got, c.want)
		}
	}
}
