package sql_test

import (
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
	mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = clock_timestamp() - interval '31 seconds'")
	if err := second.register(t); err != nil {
		t.Errorf("register the name of an agent long gone: %v", err)
	}
}
