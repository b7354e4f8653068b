package terraform

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// installerEnv makes the test binary an agent's child that needs an engine; its
// value is an installJob.
const installerEnv = "TENDRIL_TEST_INSTALLER"

type installJob struct {
	Config job.Engine
	Dir    string
}

// playInstaller prints that it begins, and the path of the engine.
func playInstaller() int {
	var j installJob
	if err := json.Unmarshal([]byte(os.Getenv(installerEnv)), &j); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	fmt.Println("begins")
	engine, err := Locate(context.Background(), j.Config, Want{Version: mirrored}, j.Dir, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(engine.Path)
	return 0
}

// installer is a process that installs.
type installer struct {
	*exec.Cmd
	stdout *bufio.Reader
	stderr strings.Builder
}

func startInstaller(t *testing.T, cfg job.Engine, dir string) *installer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	task, err := json.Marshal(installJob{cfg, dir})
	if err != nil {
		t.Fatal(err)
	}
	i := &installer{Cmd: exec.Command(self)}
	i.Env = []string{installerEnv + "=" + string(task), "TMPDIR=" + t.TempDir()}
	i.Stderr = &i.stderr
	stdout, err := i.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	i.stdout = bufio.NewReader(stdout)
	if err := i.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if i.ProcessState == nil {
			_ = i.Process.Kill()
			_ = i.Wait()
		}
	})
	if line := i.line(); line != "begins" {
		t.Fatalf("the installer printed %q and %q, want begins", line, i.stderr.String())
	}
	return i
}

// line is the next one that the process prints, "" when it has ended.
func (i *installer) line() string {
	line, _ := i.stdout.ReadString('\n')
	return strings.TrimSuffix(line, "\n")
}

func TestProcessesInstallOnce(t *testing.T) {
	t.Parallel()
	m, dir := newMirror(t), t.TempDir()
	release := m.holdArchive()
	installers := []*installer{startInstaller(t, m.cfg, dir), startInstaller(t, m.cfg, dir), startInstaller(t, m.cfg, dir)}
	patience.Await(t, "one downloads", func() bool { return m.downloads.Load() == 1 })
	release()
	want := filepath.Join(dir, Terraform, mirrored, Terraform)
	for _, i := range installers {
		got := i.line()
		if err := i.Wait(); err != nil || got != want {
			t.Errorf("installer: %v, printed %q and %q, want %s", err, got, i.stderr.String(), want)
		}
	}
	if got := m.downloads.Load(); got != 1 {
		t.Errorf("%d downloads, want 1", got)
	}
}

// An installer dies while it asks what it has unpacked: everything is there,
// and nothing is verified.
func TestKilledInstallerLeavesNothingToFind(t *testing.T) {
	t.Parallel()
	m, dir := newMirror(t), t.TempDir()
	m.publish(t, zipWith(t, map[string][]byte{"terraform": testBinary(t), "fake-hang": nil}))
	first := startInstaller(t, m.cfg, dir)
	var staged []string
	patience.Await(t, "the program is asked", func() bool {
		staged, _ = filepath.Glob(filepath.Join(dir, Terraform, stagingPrefix+"*", "asked"))
		return len(staged) == 1
	})
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait() // killed

	// What it left is half-filled now, and answers all the same.
	staging := filepath.Dir(staged[0])
	if err := os.WriteFile(filepath.Join(staging, "fake-version"), []byte(mirrored), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(staging, "fake-hang")) // so that finding it would be a success
	cfg := m.cfg
	cfg.Install = false
	for _, want := range []Want{{Version: mirrored}, {Version: ""}} {
		engine, err := locateInstalled(t, cfg, want, dir)
		if err == nil {
			t.Errorf("Locate(%+v) = %+v, want nothing: no installation was finished", want, engine)
			continue
		}
		_ = wantCode(t, err, provision.CodeEngineMissing)
	}

	m.publish(t, zipOf(t, testBinary(t)))
	engine, err := Locate(t.Context(), m.cfg, Want{Version: mirrored}, dir, nil)
	if err != nil || engine.Path != filepath.Join(dir, Terraform, mirrored, Terraform) {
		t.Errorf("Locate() = %+v, %v, want it installed now", engine, err)
	}
	if _, err := os.Stat(staging); !os.IsNotExist(err) {
		t.Errorf("Stat(the killed installer's directory) error = %v, want it swept", err)
	}
}

// locateInstalled looks among what was installed only.
func locateInstalled(t *testing.T, cfg job.Engine, want Want, dir string) (Engine, error) {
	t.Helper()
	s, err := newSearch(cfg, want, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range s.installed() {
		if engine, ok := s.try(t.Context(), path); ok {
			return engine, nil
		}
	}
	return s.install(t.Context(), func(string) {})
}
