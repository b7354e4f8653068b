package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/testkit/providertest"
	"github.com/tendril-run/tendril/internal/testkit/runlog"

	"github.com/tendril-run/tendril/e2e/site"
)

const timed = `
terraform {
  required_providers {
    time = { source = "hashicorp/time" }
  }
}
resource "time_static" "now" {}
resource "terraform_data" "who" {
  provisioner "local-exec" { command = "echo \"ran as $(id -u) in $HOME.\"; touch /tmp/$MARK-$(id -u)" }
}
`

// Two workspaces of an agent that is root share packages that neither can
// change, each under a uid of its own.
func TestSharedProvidersBelongToNoRun(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root has uids to give; the tests of CI run as root")
	}
	s := site.New(t)
	mirror := providertest.NewMirror(t)
	if err := os.Chmod(filepath.Dir(filepath.Dir(mirror.ConfigFile())), 0o711); err != nil {
		t.Fatal(err)
	}
	mark := filepath.Base(filepath.Dir(site.Meeting(t))) // nobody else's
	t.Cleanup(func() {
		left, err := filepath.Glob("/tmp/" + mark + "-*")
		for _, path := range left {
			err = errors.Join(err, os.Remove(path))
		}
		if err != nil {
			t.Error(err)
		}
	})
	a := s.NewAgent("one", 2, "")
	a.Set("TENDRIL_RUN_PASS_ENV", "GORACE,TF_CLI_CONFIG_FILE,SSL_CERT_FILE,MARK")
	a.Env = append(a.Env, mirror.Env()...)
	a.Set("MARK", mark)
	a.Start()
	repo := s.Template("timed", map[string]string{"main.tf": timed})
	uids := map[string]string{}
	for _, workspace := range []string{"a", "b", "a"} {
		id := s.DeployTemplate(repo, workspace, nil)
		if got := s.AwaitEnd(id); got != "SUCCESS" {
			t.Fatalf("provision = %s: %s", got, s.Message(id))
		}
		said := ranAs.FindStringSubmatch(runlog.Printed(s.Log(t, id)))
		if said == nil {
			continue // nothing to do the second time
		}
		if said[1] == "0" || !strings.HasPrefix(said[2], a.Dir+"/work/") {
			t.Errorf("a template runs as %s with HOME %s, want an unprivileged uid and a home of its own", said[1], said[2])
		}
		uids[workspace] = said[1]
	}
	if len(uids) != 2 || uids["a"] == uids["b"] {
		t.Errorf("uids = %v, want one for each workspace while there are enough", uids)
	}
	if got := mirror.Downloads(); got != 1 {
		t.Errorf("%d downloads by two workspaces, want 1", got)
	}
	cache := ownerOf(t, filepath.Join(a.Dir, "providers"))
	packages := 0
	err := filepath.WalkDir(filepath.Join(a.Dir, "providers"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if owner := ownerOf(t, path); owner != cache || owner == 0 || info.Mode().Perm()&0o022 != 0 {
			t.Errorf("%s belongs to %d with mode %v, want the caches' uid %d alone to write there", path, owner, info.Mode(), cache)
		}
		if strings.HasPrefix(entry.Name(), "terraform-provider-") {
			packages++
		}
		return nil
	})
	if err != nil || packages != 1 {
		t.Errorf("the store has %d packages, %v, want 1", packages, err)
	}
	// What a run leaves in /tmp is gone with the next start, at the latest.
	for _, uid := range uids {
		if _, err := os.Lstat("/tmp/" + mark + "-" + uid); err != nil {
			t.Errorf("what the run of uid %s left is not there (%v), so the test shows nothing", uid, err)
		}
	}
	a.Terminate()
	a.Start().AwaitOutput("registered")
	again := s.DeployTemplate(repo, "c", nil)
	if got := s.AwaitEnd(again); got != "SUCCESS" {
		t.Fatalf("provision = %s: %s", got, s.Message(again))
	}
	// Meanwhile another test's agent may have taken the uids: then it is theirs to remove it.
	said := ranAs.FindStringSubmatch(runlog.Printed(s.Log(t, again)))
	if said == nil {
		t.Fatalf("the run does not say its uid:\n%s", s.Log(t, again))
	}
	now, errNow := strconv.Atoi(said[1])
	then, errThen := strconv.Atoi(uids["a"])
	if err := errors.Join(errNow, errThen); err != nil {
		t.Fatal(err)
	}
	if now-then >= isolation.MaxRuns || then-now >= isolation.MaxRuns {
		t.Logf("the agent has other uids now (%d, and not %d), for another one has taken its own", now, then)
		return
	}
	for _, uid := range uids {
		if _, err := os.Lstat("/tmp/" + mark + "-" + uid); err == nil && !strings.Contains(runlog.Printed(s.Log(t, again)), "ranas"+uid+"in") {
			t.Errorf("what the run of uid %s left in /tmp is still there after a start", uid)
		}
	}
}

// ranAs is what the template timed prints.
var ranAs = regexp.MustCompile(`ranas(\d+)in(\S+?)\.$`)

func ownerOf(t *testing.T, path string) uint32 {
	t.Helper()
	var stat syscall.Stat_t
	if err := syscall.Lstat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Uid
}

// containersRights are those that root has in a container unless somebody asks
// for more: it cannot look into processes of other uids.
const containersRights = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+setfcap,+mknod,+net_bind_service,+sys_chroot,+audit_write"

// Agent and exec are both killed; what they leave runs with a uid that only the
// next start knows to be its own.
func TestRestartInAContainerEndsWhatARunLeft(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root has uids to give; the tests of CI run as root")
	}
	s := site.New(t)
	gate := site.Meeting(t)
	repo := s.Template("slow", map[string]string{"main.tf": slowApply(gate)})
	a := s.NewAgent("one", 1, "")
	a.Wrap = []string{"setpriv", "--bounding-set", containersRights}
	a.Start()
	id := s.DeployTemplate(repo, "a", nil)
	said := s.AwaitPrinted(id, regexp.MustCompile(`applying(\d+)\.`))
	left, err := strconv.Atoi(said[1])
	if err != nil {
		t.Fatal(err)
	}
	below, err := process.Descendants(a.Cmd.Process.Pid)
	if err == nil {
		err = a.Cmd.Process.Signal(syscall.SIGSTOP) // or it would see to what exec leaves
	}
	for stopped := false; err == nil && !stopped; { // a process that is to stop may go on for a moment
		var status syscall.WaitStatus
		if _, err = syscall.Wait4(a.Cmd.Process.Pid, &status, syscall.WUNTRACED, nil); errors.Is(err, syscall.EINTR) {
			err = nil
		}
		stopped = status.Stopped()
	}
	for _, child := range below {
		if child.Parent == a.Cmd.Process.Pid {
			err = errors.Join(err, syscall.Kill(child.PID, syscall.SIGKILL))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	a.Kill()
	if !process.Alive(left) {
		t.Fatal("nothing of the run is left, so the test shows nothing")
	}
	a.Start()
	if got := s.AwaitEnd(id); got != "FAILED/agent_restarted" {
		t.Errorf("provision = %s, want FAILED/agent_restarted", got)
	}
	if process.Alive(left) {
		t.Errorf("process %d of the dead run lives on", left)
	}
	release(t, gate)
	again := s.DeployTemplate(repo, "a", nil)
	if got := s.AwaitEnd(again); got != "SUCCESS" {
		t.Errorf("the next run = %s: %s", got, s.Message(again))
	}
}

// What a template has init start finds a run that has given up the caches' uid.
func TestInitWithCommandsOfTheTemplateIsTheRunsAlone(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root has uids to give; the tests of CI run as root")
	}
	s := site.New(t)
	seen := filepath.Join(site.Meeting(t), "seen")
	repo := s.Template("credentials", map[string]string{
		"main.tf": `terraform {
  backend "s3" {
    bucket                      = "b"
    region                      = "eu-central-1"
    profile                     = "p"
    shared_config_files         = ["aws"]
    endpoints                   = { s3 = "http://127.0.0.1:9" }
    skip_credentials_validation = true
    skip_requesting_account_id  = true
  }
}`,
		"aws": "[profile p]\ncredential_process = sh bring.sh\n",
		"bring.sh": `pid=$$
while [ "$(cat /proc/$pid/comm)" != tendril ]; do pid=$(sed -n 's/^PPid:\t//p' /proc/$pid/status); done
sed -n 's/^Uid:\t//p' /proc/$pid/status > ` + seen + "\nexit 1\n",
	})
	s.NewAgent("one", 1, "").Start()
	id := s.DeployTemplate(repo, "a", nil)
	if got := s.AwaitEnd(id); got != "FAILED/init_failed" {
		t.Errorf("provision = %s: %s, want FAILED/init_failed", got, s.Message(id))
	}
	text, err := os.ReadFile(seen)
	uids := strings.Fields(string(text))
	if err != nil || len(uids) != 4 || strings.Count(string(text), uids[0]) != 4 {
		t.Errorf("during init, exec has the uids %v, %v, want the run's alone", uids, err)
	}
}
