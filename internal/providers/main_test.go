package providers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/providertest"
)

// childEnv makes the test binary carry out one run in a directory.
const childEnv = "TENDRIL_TEST_PROVIDERS_CHILD"

// cleanEnv makes it a process that removes all packages of a store.
const cleanEnv = "TENDRIL_TEST_PROVIDERS_CLEAN"

func TestMain(m *testing.M) {
	if store := os.Getenv(cleanEnv); store != "" {
		if _, err := caches.NewKeeper(store, caches.Limits{Most: 1}, Packages{store}).Pass(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(childEnv); dir != "" {
		if err := runIn(context.Background(), dir, os.Getenv("TENDRIL_TEST_STORE"), os.Environ(), nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// runIn does what a run does with providers: init and apply of the template in
// dir/source.
func runIn(ctx context.Context, dir, store string, env []string, notice func(string)) error {
	template := filepath.Join(dir, "source")
	cache := New(Options{Store: store, Private: filepath.Join(dir, "providers"), Template: template, Notice: notice})
	defer cache.Close()
	init := func(ctx context.Context) error {
		return terraformIn(ctx, dir, cache, env, "init", "-input=false", "-no-color")
	}
	if err := cache.Init(ctx, init); err != nil {
		return err
	}
	return terraformIn(ctx, dir, cache, env, "apply", "-auto-approve", "-input=false", "-no-color")
}

// terraformIn runs Terraform in dir/source.
func terraformIn(ctx context.Context, dir string, cache *Cache, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "terraform", args...)
	cmd.Dir = filepath.Join(dir, "source")
	cmd.Env = slices.Concat(env, cache.Env(), []string{"TF_DATA_DIR=" + filepath.Join(dir, "data"), "CHECKPOINT_DISABLE=1"})
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("terraform %s: %w\n%s", args[0], err, out)
	}
	return nil
}

// site is one machine: a store and a mirror to fill it from.
type site struct {
	t      testing.TB
	mirror *providertest.Mirror
	store  store
	h1s    map[string]string
}

func newSite(t testing.TB, versions ...string) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no process of Terraform")
	}
	return &site{t: t, mirror: providertest.NewMirror(t, versions...), store: store{dir: filepath.Join(t.TempDir(), "store")}, h1s: map[string]string{}}
}

// h1 is the checksum of a version's package, as a lock file has it.
func (s *site) h1(version string) string {
	s.t.Helper()
	if s.h1s[version] == "" {
		s.h1s[version] = s.mirror.Unpack(s.t, version, s.t.TempDir())
	}
	return s.h1s[version]
}

// path is the path of a version's package in the store.
func (s *site) path(version string) string {
	s.t.Helper()
	sum, ok := parseChecksum(s.h1(version))
	at, sane := newSlot("registry.terraform.io/hashicorp/time", version)
	if !ok || !sane {
		s.t.Fatal("no checksum or no slot")
	}
	return s.store.path(at, sum)
}

const plainTemplate = `
terraform {
  required_providers {
    time = { source = "hashicorp/time" }
  }
}
resource "time_static" "now" {}
`

// workspace makes a work directory with a template; it is locked to a version,
// unless that is "".
func (s *site) workspace(version string) string {
	s.t.Helper()
	dir := s.t.TempDir()
	files := map[string]string{"main.tf": plainTemplate}
	if version != "" {
		files[LockFileName] = fmt.Sprintf("provider \"registry.terraform.io/hashicorp/time\" {\n  version = %q\n  hashes = [%q]\n}\n", version, s.h1(version))
	}
	s.checkOut(dir, files)
	return dir
}

// checkOut replaces the template of a work directory.
func (s *site) checkOut(dir string, files map[string]string) {
	s.t.Helper()
	source := filepath.Join(dir, "source")
	for name, content := range files {
		if err := os.MkdirAll(source, 0o700); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(source, name), []byte(content), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *site) env() []string {
	return append(s.mirror.Env(), "PATH="+os.Getenv("PATH"), "HOME="+s.t.TempDir())
}

// run carries out a run here and returns what the log was told.
func (s *site) run(dir string) (notices []string) {
	s.t.Helper()
	err := runIn(s.t.Context(), dir, s.store.dir, s.env(), func(text string) { notices = append(notices, text) })
	if err != nil {
		s.t.Fatal(err)
	}
	return notices
}

// init runs a workspace's init with a cache.
func (s *site) init(ctx context.Context, dir string, cache *Cache) error {
	return terraformIn(ctx, dir, cache, s.env(), "init", "-input=false", "-no-color")
}

// start carries out a run in a process of its own, which leads its group.
func (s *site) start(dir string) *exec.Cmd {
	s.t.Helper()
	return s.startWith(dir, childEnv+"="+dir, "TENDRIL_TEST_STORE="+s.store.dir)
}

// startCleaner removes all packages in a process of its own.
func (s *site) startCleaner() *exec.Cmd {
	s.t.Helper()
	return s.startWith("the clean-up", cleanEnv+"="+s.store.dir)
}

func (s *site) startWith(name string, env ...string) *exec.Cmd {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = slices.Concat(s.env(), env, []string{"GORACE=atexit_sleep_ms=0"})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			s.kill(cmd)
		}
		if s.t.Failed() {
			s.t.Logf("%s said: %s", name, said.String())
		}
	})
	return cmd
}

// kill ends a run and everything it started.
func (s *site) kill(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	_ = cmd.Wait()
}

// await returns when path exists, or something that matches it.
func (s *site) await(path string) {
	s.t.Helper()
	s.until(path+" is there", func() bool {
		found, err := filepath.Glob(path)
		return len(found) > 0 && err == nil
	})
}

func (s *site) until(what string, holds func() bool) {
	s.t.Helper()
	limit := patience.After(2 * time.Minute)
	for !holds() {
		select {
		case <-limit:
			s.t.Fatalf("timed out waiting until %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// packages lists what is in the store.
func (s *site) packages() []string {
	s.t.Helper()
	found, err := filepath.Glob(filepath.Join(s.store.dir, "*", "*", "*", "*", "*", "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

// wantStored fails unless the store holds exactly the packages of these
// versions, undamaged, and nothing that is being removed.
func (s *site) wantStored(versions ...string) {
	s.t.Helper()
	var want []string
	for _, v := range versions {
		want = append(want, s.path(v))
	}
	slices.Sort(want)
	got := s.packages()
	if !slices.Equal(got, want) {
		s.t.Fatalf("the store holds %v, want %v", got, want)
	}
	for _, path := range got {
		if sum, err := hashPackage(path); err != nil || string(sum) != filepath.Base(path) {
			s.t.Errorf("hashPackage(%s) = %s, %v, want its name", path, sum, err)
		}
	}
	if trash, err := filepath.Glob(filepath.Join(s.store.dir, trashPrefix+"*")); err != nil || trash != nil {
		s.t.Errorf("left in the store: %v, %v, want nothing", trash, err)
	}
}

func (s *site) wantDownloads(n int) {
	s.t.Helper()
	if got := s.mirror.Downloads(); got != n {
		s.t.Errorf("%d packages were downloaded, want %d", got, n)
	}
}

func terraformInit(t testing.TB, dir string, env []string) {
	t.Helper()
	cmd := exec.Command("terraform", "init", "-input=false", "-no-color")
	cmd.Dir = filepath.Join(dir, "source")
	cmd.Env = append(env, "TF_DATA_DIR="+filepath.Join(dir, "data"), "CHECKPOINT_DISABLE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("terraform init: %v\n%s", err, out)
	}
}

// unheld is for a package that no run goes on using.
func unheld(string) bool { return true }
