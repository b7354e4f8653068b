package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

const classTemplate = `
provisioner "script" {
  speak   = "lines"
  command = ["./provisioner"]
  machine {
    for_each = var.names
    name     = "m-${each.key}"
    image    = "debian"
  }
}
step "create" { label = "Creating the machine" }
`

// slowCloud is a cloud that makes machines by itself, as the shipped example in Python has
// it: a directory of files, each with the time from when the machine is there.
type slowCloud struct {
	*site.Site
	dir, repo, identity string
}

func newSlowCloud(t *testing.T) *slowCloud {
	t.Helper()
	s := &slowCloud{Site: site.New(t)}
	s.dir, s.identity = filepath.Join(s.Keep, "cloud"), s.IdentityFile()
	example, err := os.ReadFile("../examples/provisioners/python/fake_cloud.py")
	if err != nil {
		t.Fatal(err)
	}
	files := gittest.Text(map[string]string{
		"variables.tf": "variable \"names\" { type = set(string) }\n", "tendril.hcl": classTemplate, "fake_cloud.py": string(example),
	})
	files["provisioner"] = gittest.Executable("#!/bin/sh\numask 0\nFAKE_CLOUD=$TEST_CLOUD FAKE_CLOUD_SECONDS=$TEST_SECONDS exec python3 fake_cloud.py\n")
	repo, _ := s.Git.Repo("class", files, "v1")
	s.repo = repo.URL
	return s
}

// agent is one in whose time the cloud takes so many seconds to make a machine.
func (s *slowCloud) agent(name, seconds string) *site.Agent {
	a := s.NewAgent(name, 1, managed)
	a.Set("TENDRIL_IDENTITY_FILE", s.identity)
	a.Set("TEST_CLOUD", s.dir)
	a.Set("TEST_SECONDS", seconds)
	return a
}

// deploy asks for machines, and approves their plan once the agent has made it.
func (s *slowCloud) deploy(approved bool, names ...string) uuid.UUID {
	s.T.Helper()
	var snapshot map[string]any
	if err := json.Unmarshal([]byte(site.SnapshotOf(s.repo, "acme/class", map[string]any{"names": names})), &snapshot); err != nil {
		s.T.Fatal(err)
	}
	if approved {
		snapshot["approval"] = "always"
	}
	text, err := json.Marshal(snapshot)
	if err != nil {
		s.T.Fatal(err)
	}
	id := s.DeploySnapshot(s.T, string(text))
	if approved {
		s.Await("the plan", "SELECT status NOT IN ('QUEUED', 'PROCESSING') FROM public.provisions WHERE id = $1", id)
		s.Exec(s.T, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE id = $1", id)
	}
	return id
}

// machines are the files of the machines that there are.
func (s *slowCloud) machines() []string {
	s.T.Helper()
	found, err := filepath.Glob(filepath.Join(s.dir, "vm-*"))
	if err != nil {
		s.T.Fatal(err)
	}
	return found
}

// finishes has the cloud be done with what it makes.
func (s *slowCloud) finishes() {
	s.T.Helper()
	for _, file := range s.machines() {
		var machine map[string]any
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &machine)
		}
		machine["ready_at"] = 0
		if err == nil {
			text, err = json.Marshal(machine)
		}
		if err == nil {
			err = os.WriteFile(file, text, 0o666)
		}
		if err != nil {
			s.T.Fatal(err)
		}
	}
}

// wantDone wants each machine to be made once, and the log to have these lines once each.
func (s *slowCloud) wantDone(id uuid.UUID, machines int, lines ...string) {
	s.T.Helper()
	if got := s.AwaitEnd(id); got != "SUCCESS" {
		s.T.Fatalf("provision = %s: %s\n%s", got, s.Message(id), s.Log(s.T, id))
	}
	if made := s.machines(); len(made) != machines {
		s.T.Errorf("the cloud has the machines %v, want %d", made, machines)
	}
	if got := s.Text(s.T, "SELECT string_agg(DISTINCT status, ',') || count(DISTINCT external_id) FROM public.machines"); got != "running"+string(rune('0'+machines)) {
		s.T.Errorf("the machines are %s, want %d that run", got, machines)
	}
	log := s.Log(s.T, id)
	for _, line := range lines {
		if strings.Count(log, line) != 1 {
			s.T.Errorf("the log says %q %d times, want once:\n%s", line, strings.Count(log, line), log)
		}
	}
	if got := s.Text(s.T, "SELECT count(*) || ' ' || max(attempt) FROM public.provisions"); got != "1 1" {
		s.T.Errorf("provisions and attempts = %s, want one", got)
	}
}

// An agent that drains sets down what its cloud goes on with by itself, and another takes that
// up: each machine is made once, and nobody is asked a second time.
func TestDrainSetsDownWhatContinuesByItself(t *testing.T) {
	t.Parallel()
	for name, approved := range map[string]bool{"without an approval": false, "with an approval": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSlowCloud(t)
			one, two := s.agent("one", "86400"), s.agent("two", "0")
			one.Start()
			id := s.deploy(approved, "a", "b")
			s.Await("the first machine", "SELECT EXISTS (SELECT FROM public.machines WHERE status = 'creating')")
			one.Await("the cloud's work", func() bool { return len(s.machines()) == 1 })
			one.Terminate()
			if got := s.Status(t, id); got != "QUEUED" {
				t.Fatalf("status = %s, want QUEUED:\n%s", got, s.Log(t, id))
			}
			if got := s.Text(t, "SELECT string_agg(reason, ' ') FROM public.why_waiting($1)", id); !strings.HasPrefix(got, "set_down") {
				t.Errorf("it waits because of %q", got)
			}
			if got := s.Text(t, "SELECT string_agg(status, ',') FROM public.machines"); got != "creating" {
				t.Errorf("the machines are %s, want one that is being made", got)
			}
			s.finishes()
			two.Start()
			s.wantDone(id, 2, "Set down by agent one on ", "Taken up by agent two on ", "The provisioner has detached", "0 of 2 machines are done")
			if approvals := s.Text(t, "SELECT count(*)::text FROM public.audit_events WHERE action = 'approve_provision'"); approved != (approvals == "1") {
				t.Errorf("the plan was approved %s times", approvals)
			}
		})
	}
}

// What is done stays done, and what had not begun is begun, however often the run is set down.
func TestRunIsSetDownTwice(t *testing.T) {
	t.Parallel()
	s := newSlowCloud(t)
	one := s.agent("one", "86400")
	one.Start()
	id := s.deploy(false, "a", "b", "c")
	one.Await("the cloud's work", func() bool { return len(s.machines()) == 1 })
	one.Terminate()
	s.finishes()
	two := s.agent("two", "86400") // it finishes a, and begins b
	two.Start()
	two.Await("the cloud's work", func() bool { return len(s.machines()) == 2 })
	two.Terminate()
	s.finishes()
	s.agent("three", "0").Start()
	s.wantDone(id, 3, "Set down by agent one on ", "Set down by agent two on ", "Taken up by agent three on ", "0 of 3 machines are done", "1 of 3 machines are done")
	if got := s.Text(t, "SELECT count(*)::text FROM public.provision_events WHERE kind = 'step_finished' AND detail ->> 'address' = 'machine.m-a'"); got != "1" {
		t.Errorf("m-a was completed %s times", got)
	}
}

// An agent, or all of it, is killed: its next start goes on with what the cloud does.
func TestKilledAgentGoesOnWithWhatContinuesByItself(t *testing.T) {
	t.Parallel()
	for name, all := range map[string]bool{"the agent alone": false, "with its runs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSlowCloud(t)
			one := s.agent("one", "86400")
			one.Start()
			id := s.deploy(false, "a", "b")
			one.Await("the cloud's work", func() bool { return len(s.machines()) == 1 })
			if all { // its runs first, so that none can tell its end, and nobody of it
				if err := one.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				family, err := process.Descendants(one.Cmd.Process.Pid)
				if err != nil {
					t.Fatal(err)
				}
				for _, child := range family {
					_ = syscall.Kill(child.PID, syscall.SIGKILL) // a program dies with what has started it
				}
			}
			one.Kill()
			s.finishes()
			one.Set("TEST_SECONDS", "0")
			one.Start()
			line := "Set down by agent one on "
			if all {
				line = "was restarted. What this run began continues"
			}
			s.wantDone(id, 2, line, "Taken up by agent one on ")
		})
	}
}

// An agent that can't take up what was set down leaves it to another, after a while, and the
// machine that is being made is made once.
func TestTakeUpFailsElsewhere(t *testing.T) {
	t.Parallel()
	s := newSlowCloud(t)
	s.Exec(t, "UPDATE tendril.settings SET retry_after = '1 second'")
	one, without := s.agent("one", "86400"), s.agent("without", "0")
	without.Set("TENDRIL_POLICY_REPOS", "https://elsewhere.example/**")
	one.Start()
	id := s.deploy(false, "a")
	one.Await("the cloud's work", func() bool { return len(s.machines()) == 1 })
	one.Terminate()
	s.finishes()
	without.Start()
	s.Await("a second failure to take it up", "SELECT count(*) = 2 FROM tendril.claims WHERE provision_id = $1 AND take_up_failure LIKE 'repo_refused: %'", id)
	without.Terminate()
	if got := s.Text(t, "SELECT string_agg(status, ',') FROM public.machines"); got != "creating" {
		t.Errorf("the machines are %s, want one that is being made", got)
	}
	s.agent("two", "0").Start()
	s.wantDone(id, 1, "Set down by agent one on ", "Taken up by agent two on ")
	if log := s.Log(t, id); strings.Count(log, "Agent without on ") < 2 || !strings.Contains(log, "could not take it up (repo_refused: ") {
		t.Errorf("the log does not say why it was not taken up:\n%s", log)
	}
}

// An agent that is gone for good is followed by another one when its lease has run out, once the
// machine that it was at work on would be found.
func TestLostAgentIsFollowed(t *testing.T) {
	t.Parallel()
	s := newSlowCloud(t)
	s.Exec(t, "UPDATE tendril.settings SET heartbeat = '1 second'")
	one := s.agent("one", "86400")
	one.Start()
	id := s.deploy(false, "a", "b")
	one.Await("the cloud's work", func() bool { return len(s.machines()) == 1 })
	s.Await("that the machine is found", "SELECT EXISTS (SELECT FROM public.provision_events WHERE provision_id = $1 AND kind = 'machine_found')", id)
	one.Kill()
	s.finishes()
	s.agent("two", "0").Start()
	s.leaseEnds()
	s.wantDone(id, 2, "is lost: its lease ran out. What this run began continues", "Taken up by agent two on ", "0 of 2 machines are done")
}

// cutOff starts an agent that loses its connection while the cloud makes a machine, and returns
// the run and what cuts it off.
func (s *slowCloud) cutOff(one *site.Agent) (uuid.UUID, *wiretest.Proxy) {
	s.T.Helper()
	wire := one.Wire()
	one.Start()
	id := s.deploy(false, "a")
	one.Await("the cloud's work", func() bool { return len(s.machines()) == 1 })
	s.Await("that the machine is found", "SELECT EXISTS (SELECT FROM public.provision_events WHERE provision_id = $1 AND kind = 'machine_found')", id)
	wire.Refuse()
	return id, wire
}

// leaseEnds has the lease of what runs be over.
func (s *slowCloud) leaseEnds() {
	s.T.Helper()
	s.Exec(s.T, "UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second' WHERE state = 'running'")
}

// awaitNoProgram waits until nothing runs that an agent has started.
func awaitNoProgram(one *site.Agent) {
	one.Site.T.Helper()
	one.Await("to have nothing at work", func() bool {
		family, err := process.Descendants(one.Cmd.Process.Pid)
		return err == nil && len(family) == 0
	})
}

// An agent that was only cut off comes back after its lease has ended and another agent has taken
// its run up. It detaches its program, settles nothing, and its slot is free, whether the other
// one is still at work or done.
func TestCutOffAgentIsBack(t *testing.T) {
	t.Parallel()
	const lost = "is lost: its lease ran out. What this run began continues"
	// follow has the lease end, and another agent take the run up.
	follow := func(s *slowCloud, id uuid.UUID, two *site.Agent) {
		two.Start()
		s.leaseEnds()
		s.Await("that another agent carries it on", "SELECT count(*) = 2 AND bool_and(apply_begun_at IS NOT NULL) FROM tendril.claims WHERE provision_id = $1", id)
	}
	// back has the connection work again, and wants the agent to end what it has of the run.
	back := func(s *slowCloud, one *site.Agent, wire *wiretest.Proxy) {
		if family, err := process.Descendants(one.Cmd.Process.Pid); err != nil || len(family) == 0 {
			s.T.Fatalf("the agent that is cut off has nothing at work (%v), so there is nothing to detach", err)
		}
		wire.Pass()
		awaitNoProgram(one)
		one.AwaitNoSpools()
		// The log is the other agent's now.
		kept, err := filepath.Glob(filepath.Join(one.Dir, "rejected", "*.ndjson"))
		if err != nil || len(kept) != 1 {
			s.T.Fatalf("the agent has kept %v of its run (%v), want what it has written since", kept, err)
		}
		if text, err := os.ReadFile(kept[0]); err != nil || !strings.Contains(string(text), "The provisioner has detached: what it began continues.") {
			s.T.Errorf("its program was not detached (%v):\n%s", err, text)
		}
	}
	t.Run("while the other is at work", func(t *testing.T) {
		t.Parallel()
		s := newSlowCloud(t)
		s.Exec(t, "UPDATE tendril.settings SET heartbeat = '1 second', lease = '1 hour'")
		one, two := s.agent("one", "86400"), s.agent("two", "86400")
		id, wire := s.cutOff(one)
		follow(s, id, two)
		back(s, one, wire)
		if got := s.Text(t, "SELECT status || ' ' || count(*) FILTER (WHERE c.state = 'running') FROM public.provisions p JOIN tendril.claims c ON c.provision_id = p.id WHERE p.id = $1 GROUP BY status", id); got != "PROCESSING 1" {
			t.Fatalf("the run that another agent has taken up is %s, want PROCESSING 1", got)
		}
		two.Terminate() // its slot is free: the first takes the run up
		s.finishes()
		s.wantDone(id, 1, lost, "Taken up by agent two on ", "Set down by agent two on ", "Taken up by agent one on ")
	})
	t.Run("when the other is done", func(t *testing.T) {
		t.Parallel()
		s := newSlowCloud(t)
		s.Exec(t, "UPDATE tendril.settings SET heartbeat = '1 second', lease = '1 hour'")
		one, two := s.agent("one", "86400"), s.agent("two", "0")
		id, wire := s.cutOff(one)
		s.finishes()
		follow(s, id, two)
		s.AwaitEnd(id)
		two.Terminate()
		back(s, one, wire)
		s.wantDone(id, 1, lost, "Taken up by agent two on ")
		if got := s.AwaitEnd(s.deploy(false, "a")); got != "SUCCESS" { // its slot is free
			t.Errorf("the next run of the agent that is back = %s, want SUCCESS", got)
		}
	})
}

// An agent that is cut off detaches its program before its lease ends: the next agent doesn't find
// it at work. One that is back in time sets the run down by itself.
func TestCutOffAgentDetachesBeforeItsLeaseEnds(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{true, false} {
		t.Run(fmt.Sprintf("back in time %t", back), func(t *testing.T) {
			t.Parallel()
			s := newSlowCloud(t)
			s.Exec(t, "UPDATE tendril.settings SET heartbeat = '1 second', lease = '12 seconds'")
			one := s.agent("one", "86400")
			id, wire := s.cutOff(one)
			// The agent has heard of 12 seconds. What follows takes as long as it may.
			s.Exec(t, "UPDATE tendril.settings SET lease = '1 hour'")
			s.Exec(t, "UPDATE tendril.claims SET lease_until = clock_timestamp() + interval '1 hour'")
			awaitNoProgram(one)
			if got := s.Text(t, "SELECT state FROM tendril.claims WHERE provision_id = $1", id); got != "running" {
				t.Fatalf("the claim is %s when the program has ended, want it to run still", got)
			}
			s.finishes()
			if back {
				wire.Pass()
				s.wantDone(id, 1, "The provisioner has detached", "Set down by agent one on ", "Taken up by agent one on ")
				return
			}
			s.agent("two", "0").Start()
			s.leaseEnds()
			s.wantDone(id, 1, "is lost: its lease ran out. What this run began continues", "Taken up by agent two on ")
			wire.Pass()
			one.AwaitNoSpools()
			s.wantDone(id, 1, "Taken up by agent two on ")
		})
	}
}
