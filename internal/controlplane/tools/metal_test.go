package tools_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

const servers = `[{"name": "metal", "kind": "ironic", "nodes": [
	{"name": "bm-1", "online": true, "cores": 8, "memory_mib": 8192, "images": ["debian-13"], "labels": {"resource_class": "gold"}, "server": {"id": "1be26c0b-03f2-4d2e-ae87-c02d7f33c123", "provision_state": "available", "reason": "It is free.", "available": true}},
	{"name": "bm-2", "online": false, "cores": 8, "memory_mib": 8192, "images": ["debian-13"], "labels": {"resource_class": "gold"}, "server": {"id": "2be26c0b-03f2-4d2e-ae87-c02d7f33c123", "provision_state": "active", "reason": "It is in use.", "available": false}}]}]`

// metal has an agent report servers, and a template deploy them.
func (w *world) metal(t *testing.T) {
	t.Helper()
	about := queuetest.NewAgent("metal")
	sum := sha256.Sum256([]byte(w.Token))
	hash := hex.EncodeToString(sum[:])
	text, err := json.Marshal(map[string]any{"instance_id": about.Instance, "boot_id": about.Boot, "name": about.Name, "host": about.Host, "version": "test", "contract": queue.Contract, "slots": 1})
	if err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "SELECT public.register_agent($1, $2)", hash, string(text))
	w.Exec(t, "SELECT public.report_pools($1, $2, $3, $4)", hash, about.Instance, about.Boot, servers)
	w.template(t, "bare-metal", "https://git.example/metal", "Servers.", "[]")
	w.Exec(t, "UPDATE public.pools SET template_id = (SELECT id FROM public.templates WHERE name = 'bare-metal')")
}

// A server is provisioned by an image, with the names and shapes of the document that asks for
// these tools; by default its plan waits for a person.
func TestServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.metal(t)
	w.startAgent(t)
	for way, connect := range w.transports() {
		s := connect(t, w.token, "", nil)
		for _, c := range []struct {
			arguments map[string]any
			wants     []string
		}{
			{map[string]any{"image_id": "debian-13", "server_id": "nine"}, []string{"Server nine not found"}},
			{map[string]any{"image_id": "debian-13", "server_id": "bm-2"}, []string{"Server bm-2 is not available for provisioning"}},
			{map[string]any{"image_id": "debian-13", "resource_class": "lead"}, []string{"No available servers matching criteria"}},
			{map[string]any{"image_id": "plan9"}, []string{"Image plan9 not found"}},
			{map[string]any{"image_id": ""}, []string{"image_id is missing", "pools"}},
			{map[string]any{"server_id": "bm-1"}, []string{"image_id"}},
		} {
			refused(t, s, "provision_server", c.arguments, c.wants...)
		}
		refused(t, s, "check_provision_status", map[string]any{"operation_id": "nine"}, "Server nine not found")
		if got := ok(t, s, "check_provision_status", map[string]any{"operation_id": "bm-2"}); got.word("status") != "completed" || got.word("provision_state") != "active" {
			t.Errorf("%s: the status of a server that others provision = %s", way, got.text)
		}
	}
	s := w.overHTTP(t, w.token, "", nil)
	made := ok(t, s, "provision_server", map[string]any{"image_id": "debian-13", "resource_class": "gold"})
	operation := made.word("operation_id")
	for _, field := range []string{"operation_id", "server_id", "server_name", "status", "message", "started_at"} {
		if _, there := made.fields[field]; !there {
			t.Errorf("provision_server = %s, want %s in it", made.text, field)
		}
	}
	if !strings.Contains(made.word("next"), "waits for a person") || made.word("url") != w.server.URL+"/provisions/"+operation {
		t.Errorf("provision_server = %s, want the page where a person says yes", made.text)
	}
	if got := w.Text(t, "SELECT status FROM public.provisions WHERE id = $1", operation); got != "AWAITING_APPROVAL" && got != "QUEUED" && got != "PROCESSING" {
		t.Errorf("the run is %s, want its plan to wait", got)
	}
	w.awaitStatus(t, 1, "AWAITING_APPROVAL")
	status := ok(t, s, "check_provision_status", map[string]any{"operation_id": operation})
	for _, field := range []string{"operation_id", "server_id", "status", "provision_state", "progress_percent", "message", "started_at", "completed_at"} {
		if _, there := status.fields[field]; !there {
			t.Errorf("check_provision_status = %s, want %s in it", status.text, field)
		}
	}
	if status.word("status") != "in_progress" || !strings.Contains(status.word("next"), "person's yes at "+w.server.URL) {
		t.Errorf("check_provision_status = %s, want it in progress, and who must say yes", status.text)
	}
	refused(t, w.overHTTP(t, w.newToken(t, w.operator, &person.Powers{Change: "nothing"}), "", nil), "provision_server", map[string]any{"image_id": "debian-13"}, "may only read")
}
