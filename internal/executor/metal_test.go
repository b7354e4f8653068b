//go:build metal

package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	machinestate "github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/ironic"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/provisioner"
)

// metalLab is a lab whose pool is a real Ironic, which takes a while for each deployment.
type metalLab struct {
	*lab
	*ironic.Ironic
	ctx  context.Context
	node string // the server that the database chooses
}

func newMetalLab(t *testing.T, nodes ...string) *metalLab {
	t.Helper()
	ctx, cancel := patience.Context(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	l := &metalLab{lab: newLab(t), ctx: ctx, node: nodes[0], Ironic: ironic.Start(t, ironic.Options{Fake: "deploy_delay = 2"})}
	if err := l.Enroll(ctx, nodes...); err != nil {
		t.Fatal(err)
	}
	l.job.Pools = []pool.Config{{
		Name: "lab", Kind: "ironic", URL: l.URL, Timeout: deadline,
		Images: []pool.ImageSource{{Name: "debian", Source: "http://127.0.0.1/debian.raw", Checksum: "d41d8cd98f00b204e9800998ecf8427e"}},
	}}
	l.places = func(wants []provision.PlaceWanted) (placed []provision.Place) {
		l.asked = append(l.asked, wants)
		for _, w := range wants {
			placed = append(placed, provision.Place{Name: w.Name, Pool: w.Pool, Node: l.node, Why: l.node + " is free"})
		}
		return placed
	}
	variables := "variable \"names\" { type = set(string) }\nvariable \"memory\" { type = number }\n"
	for name, usual := range map[string]string{"image": `"debian"`, "node": "null"} {
		variables += fmt.Sprintf("variable %q {\n  type = string\n  default = %s\n}\n", name, usual)
	}
	l.url = l.template(map[string]string{
		"variables.tf": variables,
		"tendril.hcl":  strings.Replace(poolTemplate, "pool     = \"lab\"", "pool     = \"lab\"\n    image    = var.image", 1) + "placement {\n  node = var.node\n}\n",
	}, nil).URL
	return l
}

func (l *metalLab) server(name string) ironic.Node {
	l.t.Helper()
	n, err := l.Node(l.ctx, name)
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// begins starts a run, and waits until the server is being deployed for it.
func (l *metalLab) begins(server string, names ...string) *child {
	l.t.Helper()
	l.ask(l.url, "v1", "", map[string]any{"names": names, "memory": 1024})
	l.job.Assignment.Operation, l.job.MaySetDown = provision.OperationApply, true
	l.job.Assignment.ClaimID, l.job.Assignment.ProvisionID, l.job.Assignment.ApprovedPlan = uuid.New(), uuid.New(), ""
	run := l.start()
	l.deploys(run, server)
	return run
}

// deploys waits until a server is being deployed for a run.
func (l *metalLab) deploys(run *child, server string) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	waiting := make(chan error, 1)
	go func() { waiting <- l.Await(ctx, server, "deploying") }()
	select {
	case err := <-waiting:
		if err != nil {
			l.t.Fatalf("%v\n%s", err, run.text())
		}
	case <-run.over:
		cancel()
		l.t.Fatalf("the run ended before %s was deployed (%v):\n%s", server, <-waiting, run.text())
	}
}

// setsDown ends a run that was asked to, and hands its plan to the next.
func (l *metalLab) setsDown(run *child) {
	l.t.Helper()
	wantEnd(l.t, run.end(), provision.SetDown, "")
	l.store(run)
	content, err := os.ReadFile(l.bundle)
	if err != nil {
		l.t.Fatal(err)
	}
	l.job.Assignment.ApprovedPlan = planbundle.Digest(content)
}

// A deployment outlives its agent: the run is set down, and the next agent takes the same server
// up, also where Ironic has chosen another one than the database.
func TestBareMetalDetaches(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]func(*child){
		"asked to":          func(c *child) { c.tell(job.Control{Detach: true}) },
		"the agent is gone": func(c *child) { _ = c.control.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newMetalLab(t, "n0", "n1")
			taken := []map[string]any{{"op": "add", "path": "/instance_uuid", "value": uuid.NewString()}}
			if err := l.Patch(l.ctx, "n0", taken...); err != nil { // by others, since the last report
				t.Fatal(err)
			}
			run := l.begins("n1", "ann")
			how(run)
			l.setsDown(run)
			listed := run.machines()
			if len(listed) != 1 || listed[0].Node != "n1" || listed[0].Status != provision.MachineCreating {
				t.Errorf("the machines are %+v, want one that is being made on n1", listed)
			}
			if found := run.told("machine_found"); found < 1 {
				t.Errorf("no machine was told to be one that another agent would find")
			}
			l.node = "n1" // the place has followed
			before := l.server("n1")
			got, run := l.run()
			wantEnd(t, got, provision.Success, "")
			l.store(run)
			after := l.server("n1")
			if after.ProvisionState != "active" || after.InstanceUUID != before.InstanceUUID || after.InstanceUUID == "" {
				t.Errorf("the server is %+v, was %+v", after, before)
			}
			if listed := run.machines(); len(listed) != 1 || listed[0].Status != provision.MachineRunning || listed[0].ExternalID != after.UUID {
				t.Errorf("the machines are %+v", listed)
			}
			l.job.Assignment.ApprovedPlan, l.job.Assignment.ProvisionID = "", uuid.New()
			if got, run = l.apply(provision.OperationDestroy, 1024, "ann"); got.Status != provision.Success {
				t.Errorf("destroy = %s (%s)\n%s", got.Status, got.Detail.ErrorMessage, run.text())
			}
			if n := l.server("n1"); n.ProvisionState != "available" || n.InstanceUUID != "" {
				t.Errorf("the server is %+v", n)
			}
		})
	}
}

// A machine that is replaced stays on its server and is deployed once more, also by two agents.
func TestBareMetalIsReplaced(t *testing.T) {
	t.Parallel()
	l := newMetalLab(t, "n0")
	got, run := l.apply(provision.OperationApply, 1024, "ann")
	if got.Status != provision.Success {
		t.Fatalf("run = %s (%s)\n%s", got.Status, got.Detail.ErrorMessage, run.text())
	}
	before := l.server("n0")
	snapshot := strings.Replace(string(l.job.Assignment.Snapshot), "{", `{"replace": ["machine.ann"], `, 1)
	l.job.Assignment.Snapshot, l.job.MaySetDown = json.RawMessage(snapshot), true
	l.job.Assignment.ClaimID, l.job.Assignment.ProvisionID = uuid.New(), uuid.New()
	run = l.start()
	l.deploys(run, "n0")
	run.tell(job.Control{Detach: true})
	l.setsDown(run)
	if text := run.text(); strings.Contains(text, "Undeploying") || !strings.Contains(text, "the server n0 is kept for it") {
		t.Errorf("the machine did not stay on its server:\n%s", text)
	}
	got, run = l.run()
	wantEnd(t, got, provision.Success, "")
	l.store(run)
	if strings.Contains(run.text(), "Undeploying") || strings.Contains(run.text(), "written again") {
		t.Errorf("the next agent began once more what the first one had begun:\n%s", run.text())
	}
	if after := l.server("n0"); after.ProvisionState != "active" || after.InstanceUUID != before.InstanceUUID || after.AllocationUUID != before.AllocationUUID || after.Extra["tendril_rebuild"] != nil {
		t.Errorf("the server is %+v, was %+v", after, before)
	}
}

// What keeps a machine from being made is the run's code, by which programs know it.
func TestCodesOfBareMetal(t *testing.T) {
	t.Parallel()
	l := newMetalLab(t, "n0")
	id := l.server("n0").UUID
	try := func(image, node string, code provision.Code, says string) {
		t.Helper()
		l.ask(l.url, "v1", "", map[string]any{"names": []string{"ann"}, "memory": 1024, "image": image, "node": node})
		if node == "" {
			l.ask(l.url, "v1", "", map[string]any{"names": []string{"ann"}, "memory": 1024, "image": image})
		}
		l.job.Assignment.Operation = provision.OperationApply
		got, run := l.run()
		l.store(run)
		if got.Detail.ErrorCode != code || !strings.Contains(got.Detail.ErrorMessage, says) {
			t.Errorf("run = %s %s (%s), want %s with %q\n%s", got.Status, got.Detail.ErrorCode, got.Detail.ErrorMessage, code, says, run.text())
		}
		if code != provision.CodeNoServer && run.told("machine_intent") > 0 {
			t.Errorf("%s: something was begun", code)
		}
	}
	try("debain", "", provision.CodeImageNotFound, "Image debain not found")
	try("debian", "n9", provision.CodeServerNotFound, "Server n9 not found")
	if err := l.Patch(l.ctx, "n0", map[string]any{"op": "add", "path": "/instance_uuid", "value": uuid.NewString()}); err != nil {
		t.Fatal(err)
	}
	try("debian", id, provision.CodeServerNotAvailable, "Server n0 is not available for provisioning")
	try("debian", "", provision.CodeNoServer, "No available servers matching criteria")
}

// A machine boots a rescue system, whose password is in the sealed state alone, gets another password,
// and leaves it.
func TestBareMetalIsRescued(t *testing.T) {
	t.Parallel()
	l := newMetalLab(t, "n0")
	got, run := l.apply(provision.OperationApply, 1024, "ann")
	wantEnd(t, got, provision.Success, "")
	does := func(do string) (*child, string) {
		t.Helper()
		snapshot := map[string]any{}
		if err := json.Unmarshal(l.job.Assignment.Snapshot, &snapshot); err != nil {
			t.Fatal(err)
		}
		snapshot["targets"], snapshot["power"] = []string{"machine.ann"}, do
		text, err := json.Marshal(snapshot)
		if err != nil {
			t.Fatal(err)
		}
		l.job.Assignment.Snapshot, l.job.Assignment.Operation, l.job.Assignment.ApprovedPlan = text, provision.OperationPower, ""
		l.job.Assignment.ClaimID, l.job.Assignment.ProvisionID = uuid.New(), uuid.New()
		got, run := l.run()
		if got.Status != provision.Success {
			t.Fatalf("%s = %s (%s)\n%s", do, got.Status, got.Detail.ErrorMessage, run.text())
		}
		l.store(run)
		state, err := machinestate.Read(l.managed.state)
		if err != nil {
			t.Fatal(err)
		}
		return run, state.Named("ann").Credentials[provisioner.RescuePassword]
	}
	if actions := run.machines()[0].Actions; !slices.Contains(actions, provision.MachineRescues) || !slices.Contains(actions, provision.MachineRebuilds) || slices.Contains(actions, provision.MachineUnrescues) {
		t.Errorf("a machine on a server can %v", actions)
	}
	var passwords []string
	for range 2 {
		run, password := does("rescue")
		if l.server("n0").ProvisionState != "rescue" || len(password) < 20 || slices.Contains(passwords, password) {
			t.Errorf("the server is %s by the password %q, after %q", l.server("n0").ProvisionState, password, passwords)
		}
		passwords = append(passwords, password)
		if strings.Contains(run.text(), password) {
			t.Errorf("the log has the password:\n%s", run.text())
		}
		actions := run.machines()[0].Actions
		if !slices.Contains(actions, provision.MachineUnrescues) || !slices.Contains(actions, provision.MachineReveals) {
			t.Errorf("in rescue it can %v", actions)
		}
	}
	run, password := does("unrescue")
	if l.server("n0").ProvisionState != "active" || password != "" || slices.Contains(run.machines()[0].Actions, provision.MachineUnrescues) {
		t.Errorf("afterwards the server is %s, the password %q, and it can %v", l.server("n0").ProvisionState, password, run.machines()[0].Actions)
	}
}
