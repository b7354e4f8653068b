package doctor_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/doctor"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// faults breaks one thing each and says what is to be found.
type faults map[string]struct {
	breaks func(*testing.T, *patient)
	check  string
	status doctor.Status
	says   []string
}

func (f faults) run(t *testing.T, begin func(*testing.T) *patient) {
	for name, c := range f {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := begin(t)
			if c.check == "engine" {
				p.Config.Engine.Kind = "terraform"
			}
			c.breaks(t, p)
			want(t, p.examine(t), c.check, c.status, c.says...)
		})
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// small mounts a file system of that size in the data directory's place.
func small(t *testing.T, p *patient, size int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a small disk is a small tmpfs, and only root can mount one")
	}
	if err := unix.Mount("tmpfs", p.Config.DataDir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(p.Config.DataDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestDataDirectoryAndDisk(t *testing.T) {
	t.Parallel()
	faults{
		"not there yet": {func(_ *testing.T, p *patient) { p.Config.DataDir = filepath.Dir(p.Config.DataDir) + "/a/b" }, "data_dir", doctor.OK, []string{"not there yet"}},
		"a file": {func(t *testing.T, p *patient) { p.Config.DataDir = write(t, p.Config.DataDir+"/file", "", 0o600) },
			"data_dir", doctor.Fail, []string{"not a directory"}},
		"below a file": {func(t *testing.T, p *patient) {
			p.Config.DataDir = write(t, p.Config.DataDir+"/file", "", 0o600) + "/below"
		},
			"data_dir", doctor.Fail, []string{"not a directory"}},
		"open to others": {func(t *testing.T, p *patient) {
			if err := os.Chmod(p.Config.DataDir, 0o755); err != nil {
				t.Fatal(err)
			}
		}, "data_dir", doctor.Warn, []string{"0755", "chmod"}},
		"below what is shut to others": {func(t *testing.T, p *patient) {
			if os.Geteuid() != 0 {
				t.Skip("only an agent of root's has runs of other uids")
			}
			shut := filepath.Join(p.Config.DataDir, "shut")
			p.Config.DataDir = filepath.Join(shut, "data")
			if err := os.MkdirAll(p.Config.DataDir, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "data_dir", doctor.Fail, []string{"lets no other user through", "chmod o+x"}},
		"in use": {func(t *testing.T, p *patient) {
			lock, err := os.Create(filepath.Join(p.Config.DataDir, "lock"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = lock.Close() })
			if _, err := lock.WriteString(strconv.Itoa(os.Getpid()) + "\n"); err != nil {
				t.Fatal(err)
			}
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
				t.Fatal(err)
			}
		}, "data_dir", doctor.OK, []string{fmt.Sprintf("in use by a running agent: process %d", os.Getpid())}},
		"read-only": {func(t *testing.T, p *patient) {
			small(t, p, 1<<20)
			if err := unix.Mount("", p.Config.DataDir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
		}, "data_dir", doctor.Fail, []string{"read-only"}},
		"little room":     {func(t *testing.T, p *patient) { small(t, p, 8<<20) }, "disk", doctor.Fail, []string{"8.0 MiB free", "make room"}},
		"state in memory": {func(t *testing.T, p *patient) { small(t, p, 1<<30) }, "backend", doctor.Warn, []string{"in memory", "state.backend"}},
		"room for one":    {func(t *testing.T, p *patient) { small(t, p, 1<<30) }, "disk", doctor.Warn, []string{"1.0 GiB free"}},
	}.run(t, machine)
}

func TestEngine(t *testing.T) {
	t.Parallel()
	mirror := http.NewServeMux()
	mirror.HandleFunc("/terraform/99.0.1/index.json", func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewServer(mirror)
	t.Cleanup(server.Close)
	faults{
		"older than the policy allows": {func(_ *testing.T, p *patient) { p.Config.Engine.Version = "0.13.7" }, "engine", doctor.Fail,
			[]string{"0.13.7", "policy.oldest_terraform", "engine.version"}},
		"not here": {func(_ *testing.T, p *patient) { p.Config.Engine.Version = "99.0.1" }, "engine", doctor.Fail, []string{"99.0.1", "engine.dir"}},
		"no tofu": {func(t *testing.T, p *patient) {
			p.Config.Engine.Kind, p.Config.Engine.Version, p.Config.Engine.Install = "tofu", "99.0.1", true
		},
			"engine", doctor.Fail, []string{"OpenTofu"}},
		"to be downloaded": {func(_ *testing.T, p *patient) {
			p.Config.Engine.Version, p.Config.Engine.Install, p.Config.Engine.MirrorURL = "99.0.1", true, server.URL
		}, "engine", doctor.OK, []string{"downloads it from"}},
		"not to be downloaded": {func(_ *testing.T, p *patient) {
			p.Config.Engine.Version, p.Config.Engine.Install, p.Config.Engine.MirrorURL = "99.0.2", true, server.URL
		}, "engine", doctor.Fail, []string{"404", "engine.mirror_url"}},
		"mirror is away": {func(_ *testing.T, p *patient) {
			p.Config.Engine.Install, p.Config.Engine.MirrorURL = true, "http://user:s3cret-word@127.0.0.1:1"
		},
			"engine", doctor.Warn, []string{"runs", "cannot be downloaded", "127.0.0.1:1"}},
		"installed before": {func(t *testing.T, p *patient) {
			engine(t, "true", p.Config.DataDir+"/engines/terraform/99.0.1", 0o755)
			open(t, p.Config.DataDir)
			p.Config.Engine.Version = "99.0.1"
		}, "engine", doctor.OK, []string{"terraform 99.0.1 runs", "/engines/terraform/99.0.1/terraform"}},
		"damaged": {func(t *testing.T, p *patient) {
			engine(t, "true", p.Config.DataDir+"/engines/terraform/99.0.1", 0o755)
			open(t, p.Config.DataDir)
			if err := os.Truncate(p.Config.DataDir+"/engines/terraform/99.0.1/terraform", 1<<10); err != nil {
				t.Fatal(err)
			}
			p.Config.Engine.Version = "99.0.1"
		}, "engine", doctor.Fail, []string{"does not run"}},
		"slow": {func(t *testing.T, p *patient) {
			engine(t, "yes", p.Config.DataDir+"/engines/terraform/99.0.1", 0o755) // it prints for ever
			open(t, p.Config.DataDir)
			p.Config.Engine.Version = "99.0.1"
		}, "engine", doctor.Warn, []string{"terraform version took longer than 12s"}},
		"root's alone": {func(t *testing.T, p *patient) {
			if os.Geteuid() != 0 {
				t.Skip("only an agent of root's has runs of other uids")
			}
			p.Config.Engine.Dir = t.TempDir()
			engine(t, "terraform", p.Config.Engine.Dir, 0o700)
		}, "engine", doctor.Fail, []string{"by root alone"}},
		"a script": {func(t *testing.T, p *patient) {
			p.Config.Engine.Version, p.Config.Engine.Dir = "99.0.1", t.TempDir()
			write(t, p.Config.Engine.Dir+"/terraform", "#!/bin/sh\necho Terraform v0.0.1\n", 0o755)
		}, "engine", doctor.Fail, []string{"is a script"}},
	}.run(t, machine)
}

// engine copies a program of the machine's to a directory. Where nobody asks for
// its version, one that says nothing does. Another process writes it: what another
// test starts meanwhile would inherit our descriptor, and the program be busy.
func engine(t *testing.T, name, dir string, mode os.FileMode) {
	t.Helper()
	found, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("install", "-m", fmt.Sprintf("%o", mode), found, dir+"/terraform").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// open lets others pass, as a root's agent does with its data directory.
func open(t *testing.T, dir string) {
	t.Helper()
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
}

func TestRepositories(t *testing.T) {
	t.Parallel()
	faults{
		"private":     {func(t *testing.T, p *patient) { p.repos.Override(gittest.Status(http.StatusUnauthorized)) }, "git", doctor.Fail, []string{"credentials", "[git.hosts]"}},
		"away":        {func(t *testing.T, p *patient) { p.repos.Close() }, "git", doctor.Fail, []string{"refused"}},
		"not trusted": {func(_ *testing.T, p *patient) { p.Config.Git.CAFile = "" }, "git", doctor.Fail, []string{"certificate"}},
		"one of two": {func(_ *testing.T, p *patient) {
			p.Config.Policy.Repos = append(p.Config.Policy.Repos, p.repos.URL+"/nothing")
		},
			"git", doctor.Fail, []string{"/nothing", "not found"}},
		"patterns only": {func(_ *testing.T, p *patient) { p.Config.Policy.Repos = []string{p.repos.URL + "/*"} }, "git", doctor.Skipped, []string{"--repo"}},
		"named": {func(_ *testing.T, p *patient) {
			p.Config.Policy.Repos, p.Repos = []string{p.repos.URL + "/*"}, p.Config.Policy.Repos
		}, "git", doctor.OK, nil},
		"named, refused": {func(_ *testing.T, p *patient) { p.Repos = []string{"https://elsewhere.example/a/b"} }, "git", doctor.Fail, []string{"policy"}},
		"unusable key": {func(_ *testing.T, p *patient) {
			p.Config.Policy.Repos = []string{p.repos.URL + "/*"}
			p.Git = func(context.Context) (job.Git, error) {
				return job.Git{Hosts: []job.GitHost{{Host: "git.example", Key: "s3cret-word"}}}, nil
			}
			p.secrets = []string{"s3cret-word"}
		}, "git", doctor.Fail, []string{"ssh_key_file", "holds no private key"}},
		"none allowed": {func(_ *testing.T, p *patient) { p.Config.Policy.Repos = nil }, "allowlist", doctor.Fail, []string{"policy.repos"}},
		"everybody's":  {func(_ *testing.T, p *patient) { p.Config.Policy.Repos = []string{"https://git.example/**"} }, "allowlist", doctor.Warn, []string{"https://git.example/**"}},
		"an owner's":   {func(_ *testing.T, p *patient) { p.Config.Policy.Repos = []string{"https://git.example/acme/**"} }, "allowlist", doctor.OK, nil},
		"approval": {func(_ *testing.T, p *patient) {
			p.Config.Policy.Operations, p.Config.Policy.Approval = []string{"plan", "apply"}, "destructive"
		}, "allowlist", doctor.OK, []string{"plan, apply; plans that destroy, replace or forget something must be approved"}},
		"no pattern of modules": {func(_ *testing.T, p *patient) { p.Config.Policy.Modules = []string{"acme/net"} }, "allowlist", doctor.Fail, []string{"policy.modules", "acme/net"}},
		"a hook that is gone":   {func(_ *testing.T, p *patient) { p.Config.Policy.Hook = []string{"/does/not/exist"} }, "allowlist", doctor.Fail, []string{"policy.hook: /does/not/exist does not exist"}},
		"a hook":                {func(_ *testing.T, p *patient) { p.Config.Policy.Hook = []string{"/bin/true"} }, "allowlist", doctor.OK, nil},
		"no pattern":            {func(_ *testing.T, p *patient) { p.Config.Policy.Repos = []string{"http://git.example/acme"} }, "allowlist", doctor.Fail, []string{"http://git.example/acme"}},
	}.run(t, machine)
}

func TestBackend(t *testing.T) {
	t.Parallel()
	state := func(backend string, tables map[string]map[string]string) func(*testing.T, *patient) {
		return func(_ *testing.T, p *patient) {
			p.Config.State = config.State{Backend: backend, Config: tables}
			p.secrets = []string{"s3cret-word"}
		}
	}
	type tables = map[string]map[string]string
	faults{
		"unknown":          {state("s4", nil), "backend", doctor.Fail, []string{`"s4"`, "s3"}},
		"unknown table":    {state("", tables{"gsc": {"bucket": "b"}}), "backend", doctor.Fail, []string{`"gsc"`, "gcs"}},
		"incomplete":       {state("s3", nil), "backend", doctor.Fail, []string{"bucket", "[state.config.s3]"}},
		"complete":         {state("s3", tables{"s3": {"bucket": "b", "secret_key": "s3cret-word"}}), "backend", doctor.OK, []string{"s3"}},
		"one for all":      {state("http", tables{"http": {"address": "https://state.example/x", "password": "s3cret-word"}}), "backend", doctor.Fail, []string{"{workspace_id}"}},
		"one for each":     {state("http", tables{"http": {"address": "https://state.example/{workspace_id}"}}), "backend", doctor.OK, nil},
		"completes others": {state("", tables{"s3": {"region": "x"}}), "backend", doctor.OK, []string{"files in"}},
	}.run(t, machine)
}

func TestSlotsOfSharedUID(t *testing.T) {
	t.Parallel()
	shared := func(approval string, slots int) func(*testing.T, *patient) {
		return func(_ *testing.T, p *patient) {
			p.Config.Run.UIDs, p.Config.Policy.Approval, p.Config.Slots = "off", approval, slots
		}
	}
	faults{
		"approval": {shared("always", 4), "configuration", doctor.Warn, []string{"slots 4, of which 1 is used", `policy.approval is "always"`, "set slots = 1"}},
		"one slot": {shared("always", 1), "configuration", doctor.OK, []string{"slots 1"}},
		"nothing":  {shared("never", 4), "configuration", doctor.OK, []string{"slots 4"}},
	}.run(t, machine)
}

func TestFilesWithSecrets(t *testing.T) {
	t.Parallel()
	faults{
		"open token": {func(t *testing.T, p *patient) {
			p.Config.Queue.TokenFile = write(t, t.TempDir()+"/token", p.Token, 0o604)
		},
			"secrets", doctor.Fail, []string{"queue.token_file", "0604", "chmod o="}},
		"closed token": {func(t *testing.T, p *patient) {
			p.Config.Queue.TokenFile = write(t, t.TempDir()+"/token", p.Token, 0o600)
		},
			"secrets", doctor.OK, []string{"others cannot read 1 file"}},
		"no token": {func(t *testing.T, p *patient) { p.Config.Queue.TokenFile = t.TempDir() + "/nothing" }, "secrets", doctor.Fail, []string{"no such file"}},
		"open configuration": {func(t *testing.T, p *patient) {
			p.Config.State.Config = map[string]map[string]string{"pg": {"conn_str": "postgres://x:s3cret-word@db.example/x"}}
			p.File = write(t, t.TempDir()+"/agent.toml", `[state.config.pg]`+"\n"+`conn_str = "postgres://x:s3cret-word@db.example/x"`, 0o644)
		}, "secrets", doctor.Fail, []string{"the configuration", "0644"}},
		"configuration without secrets": {func(t *testing.T, p *patient) { p.File = write(t, t.TempDir()+"/agent.toml", "slots = 2", 0o644) }, "secrets", doctor.OK, nil},
		"open key of a git server": {func(t *testing.T, p *patient) {
			p.Config.Git.Hosts = config.GitHosts{"git.example": {SSHKeyFile: write(t, t.TempDir()+"/key", "x", 0o644)}}
		}, "secrets", doctor.Fail, []string{`git.hosts."git.example".ssh_key_file`}},
	}.run(t, machine)
}
