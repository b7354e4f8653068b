package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/once"
	"github.com/tendril-run/tendril/internal/protocol"
	"github.com/tendril-run/tendril/internal/timelimit"
	"github.com/tendril-run/tendril/provisioner"
)

// onceCases are the cases of the form once.
var onceCases = []aCase{
	{"provision", "", func(t *trial) {
		t.provision(t.contract())
		t.count(1)
		t.endContracts()
	}},
	{"provision twice makes one machine", "idempotent", func(t *trial) {
		c := t.contract()
		first, second := t.provision(c), t.provision(c)
		if a, b := first.Instance.ExternalID, second.Instance.ExternalID; a != b {
			t.fail(fmt.Sprintf("contract %s has the machines %s and %s", c.ContractID, a, b), "the machine that was made first", "look for the contract_id before you create")
		}
		t.count(1)
		t.endContracts()
	}},
	{"killed while it provisions", "idempotent", func(t *trial) {
		for i, after := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 80 * time.Millisecond} {
			c := t.contract()
			t.askOnce(c, after, true)
			first, second := t.provision(c), t.provision(c)
			if a, b := first.Instance.ExternalID, second.Instance.ExternalID; a != b {
				t.fail(fmt.Sprintf("contract %s has the machines %s and %s", c.ContractID, a, b), "the machine that was made first", "look for the contract_id before you create")
			}
			t.count(i + 1)
		}
		t.endContracts()
	}},
	{"two contracts have a machine each", "", func(t *trial) {
		a, b := t.provision(t.contract()), t.provision(t.contract())
		if a.Instance.ExternalID == b.Instance.ExternalID {
			t.fail("both contracts have the machine "+a.Instance.ExternalID, "a machine each", "make a machine for each contract_id")
		}
		t.count(2)
		t.endContracts()
	}},
	{"terminate", "", func(t *trial) {
		c := t.contract()
		t.terminate(c.ContractID, t.provision(c).Instance.ExternalID)
		t.count(0)
	}},
	{"terminate twice", "", func(t *trial) {
		c := t.contract()
		id := t.provision(c).Instance.ExternalID
		t.terminate(c.ContractID, id)
		t.terminate(c.ContractID, id)
		t.count(0)
	}},
	{"terminate without an external id", "idempotent", func(t *trial) {
		c := t.contract()
		t.provision(c)
		t.terminate(c.ContractID, "")
		t.count(0)
	}},
	{"health_check of a machine that runs", "", func(t *trial) {
		c := t.contract()
		i := t.provision(c).Instance
		r := t.askOnce(once.Request{Action: once.HealthCheck, ContractID: c.ContractID, ExternalID: i.ExternalID, IPAddress: i.IPAddress, SSHPort: i.SSHPort}, 0, false)
		if r.HealthOf() != provisioner.Healthy {
			t.fail(fmt.Sprintf("the machine is %s", r.HealthOf()), `"success": true`, "check the machine of the contract_id")
		}
		t.endContracts()
	}},
	{"health_check of a machine that is gone", "", func(t *trial) {
		c := t.contract()
		id := t.provision(c).Instance.ExternalID
		t.terminate(c.ContractID, id)
		if r := t.askOnce(once.Request{Action: once.HealthCheck, ContractID: c.ContractID, ExternalID: id}, 0, false); r.HealthOf() == provisioner.Healthy {
			t.fail("a machine that was terminated is healthy", `"success": false`, "check the machine of the contract_id")
		}
	}},
	{"an unknown action fails", "", func(t *trial) {
		if r := t.askOnce(once.Request{Action: "levitate", ContractID: uuid.NewString()}, 0, false); r.Success {
			t.fail("the response is a success", `"success": false and an error`, "refuse actions that you don't know")
		}
		t.count(0)
	}},
	{"UTF-8 and values that are never commands", "", func(t *trial) {
		for _, trap := range traps {
			c := t.contract()
			c.InstanceConfig, _ = json.Marshal(map[string]string{"note": "groß ✓" + trap})
			c.RequesterSSHPubkey = "ssh-ed25519 AAAA " + trap
			t.provision(c)
		}
		t.untrapped()
		t.endContracts()
	}},
}

// contract is a request to provision a new machine.
func (t *trial) contract() once.Request {
	m := t.o.Machine
	m.ID = uuid.NewString()
	return once.ProvisionOf(m)
}

func (t *trial) provision(c once.Request) once.Response {
	r := t.askOnce(c, 0, false)
	if !r.Success {
		t.fail("the response is a failure: "+r.Error, `"success": true and an instance`, "see the error and stderr")
	}
	t.workspace.intents = append(t.workspace.intents, provisioner.Intent{Machine: c.ContractID, ExternalID: r.Instance.ExternalID})
	return r
}

func (t *trial) terminate(contract, external string) {
	if r := t.askOnce(once.Request{Action: once.Terminate, ContractID: contract, ExternalID: external}, 0, false); !r.Success {
		t.fail("the response is a failure: "+r.Error, `"success": true, also for a machine that isn't there any more`, "see the error and stderr")
	}
}

// endContracts terminates what the case has provisioned.
func (t *trial) endContracts() {
	for _, i := range t.workspace.intents {
		t.terminate(i.Machine, i.ExternalID)
	}
}

// askOnce starts the program and sends one document. Where it may be killed, that happens
// after this time.
func (t *trial) askOnce(request once.Request, after time.Duration, killed bool) once.Response {
	sent, _ := json.Marshal(request)
	t.last = reply{sent: string(sent)}
	p, err := begin(t.command, t.dir)
	if err != nil {
		t.err = err
		panic(stopped{&Problem{Wrong: err.Error()}})
	}
	if killed {
		time.AfterFunc(after, p.kill)
	}
	ctx, cancel := timelimit.Context(t.ctx, t.o.Timeout)
	defer cancel()
	var secrets []string
	answer, asked := once.Ask(ctx, p.streams(), request, func(more []string) { secrets = more })
	err = answer.Check(p.end(asked))
	t.last.came, t.last.stderr = masked(p.out.text(), secrets), masked(p.stderr.String(), secrets)
	var v *protocol.ViolationError
	switch {
	case t.ctx.Err() != nil:
		t.err = fmt.Errorf("test the provisioner: %w", t.ctx.Err())
		panic(stopped{&Problem{Wrong: t.ctx.Err().Error()}})
	case killed:
	case errors.As(err, &v):
		t.fail(located(v), "an answer that keeps the rules of docs/PROVISIONERS.md", v.Action)
	case errors.Is(err, context.DeadlineExceeded):
		t.fail(fmt.Sprintf("there was no response within %s", t.o.Timeout), "a response in time", "answer faster, or give a longer --timeout")
	case err != nil:
		t.fail(err.Error(), "an answer that keeps the rules of docs/PROVISIONERS.md", "see stderr")
	}
	return answer.Response
}
