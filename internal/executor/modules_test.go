package executor_test

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

const moduleToken = "ghp_modules0123456789"

// module is a repository with one output.
func module(text string) gittest.Files {
	return gittest.Text(map[string]string{"main.tf": fmt.Sprintf("output %q { value = %q }\n", "text", text)})
}

// privateModules are a site, an HTTPS server that asks for moduleToken and an
// SSH server, and git's arguments and environments are recorded in a file.
func privateModules(t *testing.T) (s *site, web *gittest.Server, shell *gittest.SSHServer, record string) {
	t.Helper()
	s = newSite(t)
	web, shell = gittest.NewServer(t, gittest.BasicAuth("bob", moduleToken)), gittest.NewSSHServer(t)
	s.job.Settings.Git.Hosts = []job.GitHost{
		{Host: strings.TrimPrefix(web.URL, "https://"), Username: "bob", Token: moduleToken, Repos: []string{web.URL + "/mods/**"}},
		{Host: shell.Addr, Key: shell.ClientPEM, KnownHosts: shell.KnownHosts, KnownHostsFile: "/etc/tendril/known_hosts",
			Repos: []string{"ssh://git@" + shell.Addr + "/mods/**"}},
	}
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	record = filepath.Join(bin, "record")
	script := fmt.Sprintf("#!/bin/sh\n{ echo \"git $*\"; env; } >> '%s'\nexec '%s' \"$@\"\n", record, git)
	if err := os.WriteFile(filepath.Join(bin, "git"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "PATH="+bin+":"+os.Getenv("PATH"))
	return s, web, shell, record
}

// Private modules come over HTTPS and over SSH, and what opens their servers is
// in no argument, no environment, no file and no line of the log.
func TestPrivateModules(t *testing.T) { bothEngines(t, testPrivateModules) }

func testPrivateModules(t *testing.T, kind string) {
	t.Parallel()
	s, web, shell, record := privateModules(t)
	overWeb, _ := web.Repo("mods/web", module("from the web"), "v1")
	overSSH, _ := shell.Repo("mods/shell", module("from the shell"), "v1")
	s.spoolDir = t.TempDir()
	s.template(map[string]string{"main.tf": fmt.Sprintf(`
module "web" { source = "git::%s?ref=v1" }
module "shell" { source = "git::%s?ref=v1" }
output "web" { value = module.web.text }
output "shell" { value = module.shell.text }
resource "terraform_data" "env" {
  provisioner "local-exec" { command = "env; echo token %s" }
}
`, overWeb.URL, overSSH.URL, moduleToken)}, nil)
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	for _, want := range []string{"from the web", "from the shell", "***"} {
		if !strings.Contains(c.text(), want) {
			t.Errorf("the log lacks %q:\n%s", want, c.text())
		}
	}
	// The template's code runs after init: it finds no way to the credentials.
	for _, not := range []string{"GIT_SSH_COMMAND", "GIT_CONFIG_", "tendril-git-"} {
		if strings.Contains(c.text(), not) {
			t.Errorf("the template's environment has %q:\n%s", not, c.text())
		}
	}
	seen, err := os.ReadFile(record)
	if err != nil || !strings.Contains(string(seen), "git clone") || !strings.Contains(string(seen), "GIT_SSH_COMMAND=") {
		t.Fatalf("git was recorded as %q, %v, want its clones and its environment", seen, err)
	}
	key := strings.Split(s.job.Settings.Git.Hosts[1].Key, "\n")[1]
	for _, secret := range []string{moduleToken, base64.StdEncoding.EncodeToString([]byte("bob:" + moduleToken)), key} {
		if strings.Contains(c.text(), secret) || strings.Contains(string(seen), secret) {
			t.Errorf("%q is in the log or in what git was started with", secret)
		}
		for _, dir := range []string{s.dirs, s.spoolDir} {
			wantInNoFile(t, dir, secret)
		}
	}
	if _, err := os.Stat(filepath.Join(s.job.Dirs.Work, "data", "modules", "web", ".git", "config")); err != nil {
		t.Errorf("where git would keep credentials: %v, want it looked through", err)
	}
}

// wantInNoFile allows a secret in the template's files, where it stood before.
func wantInNoFile(t *testing.T, dir, secret string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.HasSuffix(path, ".tfstate") {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), secret) {
			t.Errorf("%s holds %q", path, secret)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A template that is allowed may name any module; what is not in the scope of the
// credentials does not see them, and the message says why.
func TestModulesOutOfScope(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source func(web *gittest.Server, shell *gittest.SSHServer) string
		want   []string
	}{
		"https": {
			func(web *gittest.Server, _ *gittest.SSHServer) string { return "git::" + web.URL + "/other/web.git" },
			[]string{"/other/web asks for credentials and gets none", "[policy] repos"},
		},
		"ssh": {
			func(_ *gittest.Server, shell *gittest.SSHServer) string {
				return "git::ssh://git@" + shell.Addr + "/other/shell.git"
			},
			[]string{"/other/shell asks for credentials and gets none", "[policy] repos"},
		},
		"key of its own": {
			func(_ *gittest.Server, shell *gittest.SSHServer) string {
				return "git::ssh://git@" + shell.Addr + "/other/shell.git?sshkey=a2V5"
			},
			[]string{"a key in a module's source", "ssh_key_file"},
		},
		"program": {
			func(*gittest.Server, *gittest.SSHServer) string { return "git::ext::sh -c touch% /tmp/x" },
			[]string{"ext"},
		},
		"file": {
			func(*gittest.Server, *gittest.SSHServer) string { return "git::file:///etc" },
			[]string{"transport 'file' not allowed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, web, shell, _ := privateModules(t)
			s.job.Settings.Policy.Modules = []string{"**"} // from everywhere, but not with the credentials
			web.Repo("other/web", module("x"), "v1")
			shell.Repo("other/shell", module("x"), "v1")
			shell.Repo("mods/shell", module("x"), "v1")
			var shown atomic.Int32
			web.Anyone()
			web.Override(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "" {
					shown.Add(1)
				}
				w.Header().Set("WWW-Authenticate", `Basic realm="modules"`)
				w.WriteHeader(http.StatusUnauthorized)
			}))
			s.template(map[string]string{"main.tf": fmt.Sprintf("module \"m\" { source = %q }\n", c.source(web, shell))}, nil)
			got, _ := s.run()
			wantEnd(t, got, provision.Failed, provision.CodeInitFailed)
			said := strings.Join(strings.Fields(got.Detail.ErrorMessage), " ")
			for _, want := range c.want {
				if !strings.Contains(said, want) {
					t.Errorf("message = %q, want %q in it", said, want)
				}
			}
			if shown.Load() != 0 || shell.Sessions() != 0 {
				t.Errorf("credentials were shown %d times over HTTPS, %d sessions over SSH, want none", shown.Load(), shell.Sessions())
			}
		})
	}
}

// A server that sends git elsewhere does not send the token along.
func TestModuleRedirectTakesNoToken(t *testing.T) {
	t.Parallel()
	s, web, _, _ := privateModules(t)
	web.Repo("mods/web", module("x"), "v1")
	target := gittest.NewServer(t)
	target.Repo("mods/web", module("redirected"), "v1")
	var asked, shown atomic.Int32
	git := target.Git()
	target.Override(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("Authorization") != "" {
			shown.Add(1)
		}
		git.ServeHTTP(w, r)
	}))
	web.Override(gittest.Redirect(target.URL)) // after it has seen the token
	s.template(map[string]string{"main.tf": fmt.Sprintf("module \"m\" { source = \"git::%s/mods/web.git\" }\n", web.URL)}, nil)
	s.run()
	if asked.Load() == 0 || shown.Load() != 0 {
		t.Errorf("the target was asked %d times, and saw the token %d times, want some and none", asked.Load(), shown.Load())
	}
}

// What git's servers say to the wrong credentials is told with what to do.
func TestModuleCredentialsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		host int // whose credentials are changed
		auth job.GitHost
		want []string
	}{
		"token":        {0, job.GitHost{Username: "bob", Token: "ghp_expired0123"}, []string{"refused the credentials of [git.hosts.", "wrong, expired or revoked"}},
		"token file":   {0, job.GitHost{TokenProblem: "token_file: /t cannot be read"}, []string{"asks for credentials, which are missing: token_file: /t cannot be read"}},
		"unknown host": {1, job.GitHost{KnownHosts: "", KnownHostsFile: "/etc/tendril/known_hosts", Key: "filled in"}, []string{"nothing in /etc/tendril/known_hosts is about this host", "SHA256:", "add this line there: ["}},
		"key file":     {1, job.GitHost{KeyProblem: "ssh_key_file: /k cannot be read", KnownHostsFile: "/etc/tendril/known_hosts"}, []string{"ssh_key_file: /k cannot be read"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, web, shell, _ := privateModules(t)
			overWeb, _ := web.Repo("mods/web", module("x"), "v1")
			overSSH, _ := shell.Repo("mods/shell", module("x"), "v1")
			old := &s.job.Settings.Git.Hosts[c.host]
			if c.auth.Key != "" {
				c.auth.Key = old.Key
			}
			c.auth.Host, c.auth.Repos = old.Host, old.Repos
			*old = c.auth
			s.template(map[string]string{"main.tf": fmt.Sprintf("module \"m\" { source = \"git::%s\" }\n", []string{overWeb.URL, overSSH.URL}[c.host])}, nil)
			got, log := s.run()
			wantEnd(t, got, provision.Failed, provision.CodeInitFailed)
			said := strings.Join(strings.Fields(got.Detail.ErrorMessage), " ")
			for _, want := range c.want {
				if !strings.Contains(said, want) {
					t.Errorf("message = %q, want %q in it", said, want)
				}
			}
			if text := log.text() + said; strings.Contains(text, "ghp_expired0123") {
				t.Errorf("the token is in the log:\n%s", text)
			}
		})
	}
}
