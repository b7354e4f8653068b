package sql_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestRegisterRefusesTheSameTwice(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	first := w.newAgent(t, "one")
	second := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "one", host: "elsewhere.example"}
	wantRefusal(t, second.register(t), "PT409", "agent_name_taken")
	copied := &agent{w: w, instance: first.instance, boot: uuid.New(), name: "copy", host: "elsewhere.example"}
	if got := wantRefusal(t, copied.register(t), "PT409", "agent_instance_elsewhere"); !strings.Contains(got, "one.example") {
		t.Errorf("error = %q, want it to name the host", got)
	}
	mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = clock_timestamp() - interval '46 seconds'")
	if err := second.register(t); err != nil {
		t.Errorf("register the name of an agent long gone: %v", err)
	}
}

// Who takes over the name of an agent that is proven dead need not wait until it is
// forgotten: nobody else can have had the lock of that directory, or that host's kernel.
func TestNameOfTheDeadIsFree(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	const host = "pod-0:/var/lib/tendril"
	register := func(host, kernel string, uptime any) error {
		about, err := json.Marshal(map[string]any{
			"instance_id": uuid.New(), "boot_id": uuid.New(), "name": "one", "host": host, "kernel": kernel, "uptime_seconds": uptime,
			"version": "test", "contract": 1, "slots": 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.conn.Exec(t.Context(), "SELECT public.register_agent($1, $2)", w.tokenHash, string(about))
		return err
	}
	for _, c := range []struct {
		name, host, kernel string
		uptime             any
		free               bool
	}{
		{"the same directory of the same host and kernel", host, "k1", 1e6, true},
		{"another directory there", "pod-0:/other", "k1", 1e6, false},
		{"another host with that kernel: another pod of the machine", "pod-1:/var/lib/tendril", "k1", 1e6, false},
		{"the host has booted since", host, "k2", 1, true},
		{"a kernel that ran before the last heartbeat: two machines of one name", host, "k2", 1e6, false},
		{"an agent that does not say its kernel", host, "", nil, false},
	} {
		mustExec(t, w.conn, "DELETE FROM public.agents")
		if err := register(host, "k1", 1e6); err != nil {
			t.Fatal(err)
		}
		mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = clock_timestamp() - interval '10 seconds'")
		if err := register(c.host, c.kernel, c.uptime); (err == nil) != c.free {
			t.Errorf("%s: register = %v, want it %s", c.name, err, map[bool]string{true: "accepted", false: "refused"}[c.free])
		}
	}
	mustExec(t, w.conn, "DELETE FROM public.agents")
	for _, uptime := range []any{-1, 1e300, "soon"} {
		wantRefusal(t, register(host, "k1", uptime), "PT422", "bad_agent")
	}
}
