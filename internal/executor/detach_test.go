package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// slow is how long the cloud takes to make a machine, in seconds.
func (c *cloud) slow(seconds int) {
	c.env = append(c.env, fmt.Sprintf("FAKE_CLOUD_SECONDS=%d", seconds))
}

func (c *child) tell(m job.Control) {
	c.t.Helper()
	if err := job.Write(c.control, m); err != nil {
		c.t.Fatal(err)
	}
}

// begins starts a run of the operation for machines, which the cloud begins to make.
func (c *cloud) begins(names ...string) *child {
	c.t.Helper()
	c.ask(c.repo.URL, "v1", "", map[string]any{"cloud": c.dir, "names": names, "memory": 2048})
	c.job.Assignment.Operation = provision.OperationApply
	c.job.Assignment.ClaimID, c.job.Assignment.ProvisionID, c.job.Assignment.ApprovedPlan = uuid.New(), uuid.New(), ""
	run := c.start()
	c.makes(run, func() bool { return c.machinesThere() > 0 })
	return run
}

// makes waits until the cloud is at work.
func (c *cloud) makes(run *child, is func() bool) {
	c.t.Helper()
	limit := patience.After(deadline)
	for !is() {
		select {
		case <-run.over:
			c.t.Fatalf("the run ended before the cloud was at work:\n%s", run.text())
		case <-limit:
			c.t.Fatal("timed out waiting for the cloud to be at work")
		case <-time.After(10 * time.Millisecond): // between two looks
		}
	}
}

// ready is from when a machine is there.
func (c *cloud) ready(name string) int64 {
	c.t.Helper()
	var vm struct {
		ReadyAt float64 `json:"ready_at"`
	}
	if err := json.Unmarshal([]byte(c.file(name)), &vm); err != nil {
		c.t.Fatal(err)
	}
	return int64(vm.ReadyAt)
}

// setsDown ends a run that was asked to, and hands the plan to the next.
func (c *cloud) setsDown(run *child) {
	c.t.Helper()
	wantEnd(c.t, run.end(), provision.SetDown, "")
	c.store(run)
	digest := ""
	for _, r := range run.reports {
		if r.Detail.Detachable {
			digest = r.Detail.PlanDigest
		}
	}
	content, err := os.ReadFile(c.bundle)
	if err != nil {
		c.t.Fatal(err)
	}
	if digest == "" || planbundle.Digest(content) != digest {
		c.t.Errorf("the apply began with the plan %q, and %s is stored", digest, planbundle.Digest(content))
	}
	c.job.Assignment.ApprovedPlan = digest
}

// told is how often something was reported of resources, such as "resource_failed".
func (c *child) told(kind string) (times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		for _, e := range r.Detail.Events {
			if e.Kind == kind {
				times++
			}
		}
	}
	return times
}

// A run is set down when its agent asks for that or is gone, and the next one goes on.
func TestDetach(t *testing.T) {
	t.Parallel()
	asked := func(c *child) { c.tell(job.Control{Detach: true}) }
	for name, tt := range map[string]struct {
		path, from string
		how        func(*child)
	}{
		"asked to":          {"python/fake_cloud.py", `"ready_at": `, asked},
		"asked to in bash":  {"bash/fake-cloud", `"ready_at":`, asked},
		"the agent is gone": {"python/fake_cloud.py", `"ready_at": `, func(c *child) { _ = c.control.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newLines(t, example(t, tt.path))
			c.job.MaySetDown = true
			c.slow(86400)
			run := c.begins("a", "b")
			tt.how(run)
			c.setsDown(run)
			if failed := run.told("resource_failed") + run.told("step_failed"); failed > 0 {
				t.Errorf("%d machines or steps are said to have failed", failed)
			}
			if intended, found := run.told("machine_intent"), run.told("machine_found"); intended != 1 || found != 1 {
				t.Errorf("%d machines were intended and %d found, want one that another agent would find", intended, found)
			}
			state := c.recorded()
			if m := state.Named("m-a"); m == nil || m.Intent == nil || m.ExternalID == "" || m.Status != "creating" {
				t.Errorf("m-a is recorded as %+v, want one that is being made", m)
			}
			c.alter("m-a", tt.from, tt.from+"-")
			c.slow(0)
			got, run := c.run()
			wantEnd(t, got, provision.Success, "")
			c.store(run)
			if there := c.machinesThere(); there != 2 {
				t.Errorf("%d machines exist, want 2", there)
			}
			if started, finished := run.told("resource_started"), run.told("resource_finished"); started != 2 || finished != 2 {
				t.Errorf("%d machines were begun and %d finished, want 2", started, finished)
			}
			for _, m := range c.recorded().Machines {
				if m.Intent != nil || m.Status != "running" {
					t.Errorf("%s is recorded as %+v", m.Wanted.Name, m)
				}
			}
			// The plan is used up: another run may not carry it out.
			c.job.Assignment.ProvisionID = uuid.New()
			got, run = c.run()
			wantEnd(t, got, provision.Failed, provision.CodePlanInvalid)
			c.store(run)
		})
	}
}

// A rebuild is set down too, and the machine is made again once.
func TestRebuildDetaches(t *testing.T) {
	t.Parallel()
	c := newLines(t, example(t, "python/fake_cloud.py"))
	c.job.MaySetDown = true
	got, _ := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	c.slow(86400)
	c.job.Assignment.Snapshot = []byte(strings.Replace(string(c.job.Assignment.Snapshot), "{", `{"replace": ["machine.m-a"], `, 1))
	c.job.Assignment.ClaimID, c.job.Assignment.ProvisionID = uuid.New(), uuid.New()
	run := c.start()
	c.makes(run, func() bool { return c.ready("m-a") > time.Now().Unix()+3600 })
	run.tell(job.Control{Detach: true})
	c.setsDown(run)
	c.alter("m-a", `"ready_at": 1`, `"ready_at": -1`)
	got, run = c.run()
	wantEnd(t, got, provision.Success, "")
	c.store(run)
	if !strings.Contains(run.text(), "0 of 1 machines are done") || c.machinesThere() != 1 {
		t.Errorf("%d machines exist, want the one that is taken up", c.machinesThere())
	}
}

// Who is not to detach goes on, and a cancel is a cancel.
func TestCancelledAndNotDetached(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		declares string
		may      bool
	}{
		"the database knows nothing of it":    {`"detachable": True`, false},
		"the provisioner does not declare it": {`"detachable": False`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newLines(t, strings.Replace(example(t, "python/fake_cloud.py"), `"detachable": True`, tt.declares, 1))
			c.job.MaySetDown = tt.may
			c.slow(86400)
			run := c.begins("a", "b")
			run.tell(job.Control{Detach: true})
			run.tell(job.Control{Stop: job.StopCancelled})
			wantEnd(t, run.end(), provision.Cancelled, provision.CodeCancelled)
			if last(run, func(d provision.Detail) bool { return d.Detachable }) {
				t.Error("the run says that it may be set down")
			}
		})
	}
}
