package sql_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// The next program says its data directory with its host. It is the same agent
// all the same: registered at once, and it ends what the one before left.
func TestUpgradeInPlace(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		w := newContract(t)
		agent := w.newAgent(t, "one")
		w.deploy(t, w.operator, snapshot("a"))
		claim, id := agent.mustClaim(t)
		agent.mustReport(t, claim, "PROCESSING", applying)
		agent.host, agent.boot = agent.host+":/var/lib/tendril", uuid.New()
		if err := agent.register(t); err != nil {
			t.Fatalf("register after the upgrade: %v", err)
		}
		status, swept := "FAILED/agent_restarted", []uuid.UUID{id}
		if lost {
			w.expire(t, claim)
			w.reap(t)
			status, swept = "FAILED/agent_lost", []uuid.UUID{}
		}
		if got := agent.sweep(t); !slices.Equal(got, swept) || w.statusAndCode(t, id) != status {
			t.Errorf("lost %t: sweep = %v, status %s, want %v, %s", lost, got, w.statusAndCode(t, id), swept, status)
		}
		if got := one[uuid.NullUUID](t, w.conn, "SELECT coalesce(running_claim, held_by_claim) FROM public.workspaces"); got.Valid {
			t.Errorf("lost %t: the workspace is taken by claim %s still", lost, got.UUID)
		}
	}
}

// And back, should the upgrade be no good.
func TestDowngradeInPlace(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "one", host: "one.example:/var/lib/tendril"}
	for _, host := range []string{agent.host, "one.example", agent.host} {
		agent.host, agent.boot = host, uuid.New()
		if err := agent.register(t); err != nil {
			t.Fatalf("register on %s: %v", host, err)
		}
	}
}

// A copy of the data directory on the same host is told where the original is,
// and ends nothing of its.
func TestCopyOnTheSameHost(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "one", host: "one.example:/srv/a"}
	if err := agent.register(t); err != nil {
		t.Fatal(err)
	}
	w.deploy(t, w.operator, snapshot("a"))
	_, id := agent.mustClaim(t)
	agent.host, agent.boot = "one.example:/srv/b", uuid.New()
	if got := wantRefusal(t, agent.register(t), "PT409", "agent_instance_elsewhere"); !strings.Contains(got, "in use on one.example:/srv/a,") {
		t.Errorf("error = %q, want it to name the original's directory", got)
	}
	mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = clock_timestamp() - interval '1 minute'")
	if err := agent.register(t); err != nil {
		t.Fatal(err)
	}
	if swept := agent.sweep(t); len(swept) != 0 || w.status(t, id) != "PROCESSING" {
		t.Errorf("sweep = %v, status %s, want the original's run left to its lease", swept, w.status(t, id))
	}
}

// People are told the host; where its data lies tells them nothing.
func TestPeopleAreToldTheHost(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "one", host: "one.example:/srv/a"}
	if err := agent.register(t); err != nil {
		t.Fatal(err)
	}
	old := *agent
	w.deploy(t, w.operator, snapshot("lost"))
	w.deploy(t, w.operator, snapshot("restarted"))
	claim, lost := agent.mustClaim(t)
	_, restarted := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", applying)
	w.expire(t, claim)
	w.reap(t)
	agent.boot = uuid.New()
	if err := agent.register(t); err != nil {
		t.Fatal(err)
	}
	_, superseded := old.heartbeat(t)
	taken := *agent
	taken.instance, taken.boot = uuid.New(), uuid.New()
	agent.sweepBut(t, claim)
	told := []string{
		one[string](t, w.conn, "SELECT error_message FROM public.provisions WHERE id = $1", lost), w.log(t, lost),
		one[string](t, w.conn, "SELECT error_message FROM public.provisions WHERE id = $1", restarted), w.log(t, restarted),
		wantRefusal(t, superseded, "PT409", "agent_superseded"), wantRefusal(t, taken.register(t), "PT409", "agent_name_taken"),
	}
	agent.mustReport(t, claim, "FAILED", `{"error_code": "state_unsaved", "state_unsaved": true}`)
	told = append(told, w.log(t, lost))
	w.mustRelease(t, one[uuid.UUID](t, w.conn, "SELECT id FROM public.workspaces WHERE unsaved_state_on = $1", agent.instance))
	told = append(told, w.log(t, lost))
	for _, text := range told {
		if !strings.Contains(text, "on one.example") || strings.Contains(text, "/srv") {
			t.Errorf("%q, want the host named without its directory", text)
		}
	}
}
