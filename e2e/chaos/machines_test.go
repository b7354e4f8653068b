package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// A template whose script makes machines in a directory. A machine's file has the id that
// Tendril gave it. The script can be killed before, during and after the making.
var machineTemplate = gittest.Files{
	"variables.tf": gittest.File(`
variable "cloud" { type = string }
variable "names" { type = set(string) }
`),
	"tendril.hcl": gittest.File(`
provisioner "script" {
  speak      = "once"
  provision  = ["./machine.sh"]
  terminate  = ["./machine.sh"]
  idempotent = true
  machine {
    for_each = var.names
    name     = each.key
  }
}
`),
	"machine.sh": gittest.Executable(`#!/bin/sh
set -eu
read -r request
field() { printf '%s' "$request" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
id=$(field contract_id) cloud=$(field cloud)
echo "$$ $PPID" > "$cloud/at.$$"
sleep "0.$(od -An -N1 -tu1 /dev/urandom | tr -d ' ')"
case $(field action) in
provision) echo "$id" > "$cloud/vm-$id" ;;
terminate) rm -f "$cloud/vm-$id" ;;
esac
sleep "0.$(od -An -N1 -tu1 /dev/urandom | tr -d ' ')"
rm "$cloud/at.$$"
echo "{\"success\": true, \"instance\": {\"external_id\": \"vm-$id\"}}"
`),
}

// A process is killed while a script makes and destroys machines. What exists afterwards is
// what is recorded: none is there twice, and none is forgotten.
func TestMachinesOfAScript(t *testing.T) {
	t.Parallel()
	w, own := ownWorks(t, pgtest.Durable())
	a := w.agent("one", 1, "")
	a.ManageState(w.IdentityFile())
	a.Start()
	repo, _ := w.Git.Repo("machines", machineTemplate, "v1")
	cloud := w.journal // every uid may write there
	victims := []string{"script", "exec", "agent", "database"}
	for n := range times(4, 50) {
		names := []string{fmt.Sprint("a", n), fmt.Sprint("b", n), "c"}[:2+rand.N(2)] // others than before
		w.forgetScripts(cloud)
		deploy := func() (status string) {
			id := w.DeployTemplate(repo.URL, "machines", map[string]any{"cloud": cloud, "names": names})
			status = w.AwaitEnd(id)
			if status != "SUCCESS" {
				t.Logf("run %d: %s: %s", n, status, w.Message(id))
			}
			return status
		}
		id := w.DeployTemplate(repo.URL, "machines", map[string]any{"cloud": cloud, "names": names})
		victim := victims[n%len(victims)]
		scripts := awaitScript(w, id.String(), cloud)
		if scripts == nil {
			t.Errorf("run %d ended without a script: %s", n, w.Message(id))
		} else {
			<-time.After(rand.N(500 * time.Millisecond)) // anywhere in what it does
			switch victim {
			case "script":
				_ = syscall.Kill(scripts[0], syscall.SIGKILL)
			case "exec":
				_ = syscall.Kill(scripts[1], syscall.SIGKILL)
			case "agent":
				a.Kill()
				a.Start()
			case "database":
				own.Crash(t)
				<-time.After(rand.N(time.Second))
				own.Start(t)
				w.reconnect()
			}
			counted.add("faults while a script makes machines: "+victim, 1)
		}
		w.AwaitEnd(id)
		if got := deploy(); got != "SUCCESS" {
			t.Errorf("the next deploy after the %s was killed = %s, want SUCCESS", victim, got)
		}
		w.countMachines(cloud, len(names))
	}
	if got := w.AwaitEnd(w.DeployTemplate(repo.URL, "machines", map[string]any{"cloud": cloud, "names": []string{}})); got != "SUCCESS" {
		t.Errorf("the last deploy = %s, want SUCCESS", got)
	}
	w.countMachines(cloud, 0)
	a.Terminate()
	w.countLeftovers(a)
	w.countRows()
}

// awaitScript waits until a script is at work, and returns the ids of it and of its parent;
// nil if the run ends without one.
func awaitScript(w *works, run, cloud string) (pids []int) {
	w.T.Helper()
	await(w.T, "a script", func() bool {
		found, err := filepath.Glob(filepath.Join(cloud, "at.*"))
		if err != nil {
			w.T.Fatal(err)
		}
		for _, path := range found {
			text, _ := os.ReadFile(path) // it may have gone
			var at []int
			for _, field := range strings.Fields(string(text)) {
				if pid, err := strconv.Atoi(field); err == nil {
					at = append(at, pid)
				}
			}
			if len(at) == 2 && isScript(at[0]) {
				pids = at
				return true
			}
		}
		status := w.Text(w.T, "SELECT status FROM public.provisions WHERE id = $1", run)
		return status != "QUEUED" && status != "PROCESSING"
	})
	return pids
}

// isScript reports whether a process is a script of the template, and not another of the
// same id.
func isScript(pid int) bool {
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(command), "machine.sh")
}

// forgetScripts removes what killed scripts have left.
func (w *works) forgetScripts(cloud string) {
	w.T.Helper()
	found, err := filepath.Glob(filepath.Join(cloud, "at.*"))
	if err != nil {
		w.T.Fatal(err)
	}
	for _, path := range found {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			w.T.Fatal(err)
		}
	}
}

// countMachines compares what is in the cloud with what is recorded.
func (w *works) countMachines(cloud string, want int) {
	w.T.Helper()
	found, err := filepath.Glob(filepath.Join(cloud, "vm-*"))
	if err != nil {
		w.T.Fatal(err)
	}
	exist := []string{}
	for _, path := range found {
		exist = append(exist, filepath.Base(path))
	}
	recorded := strings.Fields(w.Text(w.T, "SELECT coalesce(string_agg(external_id, ' ' ORDER BY external_id), '') FROM public.resources WHERE type = 'machine'"))
	slices.Sort(recorded)
	listed := strings.Fields(w.Text(w.T, "SELECT coalesce(string_agg(external_id || CASE status WHEN 'running' THEN '' ELSE '=' || status END, ' '), '') FROM public.machines WHERE status <> 'gone'"))
	slices.Sort(listed)
	if !slices.Equal(exist, recorded) || !slices.Equal(exist, listed) || len(exist) != want {
		w.T.Errorf("the cloud has %v, recorded are %v, listed %v, want %d machines in each", exist, recorded, listed, want)
	}
	counted.add("machines of scripts that were counted", len(exist))
}
