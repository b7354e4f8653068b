package e2e

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/testkit/pages"
)

// A class is deployed by one line as MACHINES.md says it, asked for its progress, listed with
// roles, ids, nodes and addresses, and its credentials are handed out; the same by REST finds
// nothing to do.
func TestClassCommands(t *testing.T) {
	t.Parallel()
	var me typist
	p := newProxmox(t, func(a *site.Agent) {
		s := a.Site
		s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, instance.LocalUser)
		people := s.People()
		me = newTypist(t, people...).with("PASSWORD==correct-horse")
		for _, setting := range people {
			if name, value, _ := strings.Cut(setting, "="); name == "TRELLIS_CA_FILE" {
				me = me.with("CURL_CA_BUNDLE=" + value)
			}
		}
		var keys struct{ Recipient string }
		if err := json.Unmarshal([]byte(me.run("trellis keys -o json 2>/dev/null")), &keys); err != nil {
			t.Fatal(err)
		}
		a.ManageState(s.IdentityFile())
		a.Set("TENDRIL_POLICY_OPERATIONS", "plan,apply,destroy,refresh,inspect,power,state")
		a.Set("TENDRIL_POLICY_REQUESTER_KEYS", keys.Recipient)
	})
	out := me.run(pages.Block(t, "docs/MACHINES.md", "run=$(trellis deploy", "https://git.example/class", p.repo, "debian-13", "debian", "student_count=20", "student_count=3", "student_count: 20", "student_count: 3"))
	var rows []string
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 6 && strings.HasPrefix(fields[1], "cs101-") {
			rows = append(rows, strings.Join(fields, " "))
		}
	}
	slices.Sort(rows)
	want := []string{
		"student cs101-student-01 200 pve2 10.0.0.50 running", "student cs101-student-02 202 pve2 10.0.0.51 running",
		"student cs101-student-03 203 pve2 10.0.0.52 running", "teacher cs101-teacher 204 pve2 10.0.0.53 running",
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the machines are %q, want %q", rows, want)
	}
	cells, err := csv.NewReader(strings.NewReader(readFile(t, filepath.Join(me.dir, "cs101.csv")))).ReadAll()
	if err != nil || len(cells) != 5 {
		t.Fatalf("cs101.csv has %q, %v, want a heading and four machines", cells, err)
	}
	for i, address := range []string{"10.0.0.50", "10.0.0.51", "10.0.0.52", "10.0.0.53"} {
		name := strings.Fields(want[i])[1]
		if got, want := strings.Join(cells[i+1], "|"), fmt.Sprintf("%s|%s|22|student|'=correct-horse|ssh student@%s", name, address, address); got != want {
			t.Errorf("cs101.csv has %s, want %s", got, want)
		}
	}
	// All are stopped by one run, at once.
	me.run(pages.Code(t, "docs/MACHINES.md", "trellis machines stop --all --workspace class/cs101") + " --follow")
	if got := p.Text(t, `SELECT string_agg(e.kind, ' ' ORDER BY e.id) || ', ' || (SELECT string_agg(DISTINCT m.status, ' ') FROM public.machines m)
		FROM public.provision_events e JOIN public.provisions p ON p.id = e.provision_id WHERE p.operation = 'power' AND e.kind LIKE 'resource%'`); got != strings.Repeat("resource_started ", 4)+strings.Repeat("resource_finished ", 3)+"resource_finished, stopped" {
		t.Errorf("the stop of all machines: %s, want all begun before one is done, and stopped", got)
	}
	// One run has revealed all, and neither the database nor a log has the password.
	if got := p.Text(t, "SELECT count(*)::text FROM public.audit_events WHERE action = 'state_reveal'"); got != "1" {
		t.Errorf("%s reveals are in the audit, want 1", got)
	}
	if got := p.Text(t, "SELECT (SELECT count(*) FROM public.provisions p WHERE p::text LIKE '%correct-horse%') + (SELECT count(*) FROM public.provision_logs l WHERE l::text LIKE '%correct-horse%')"); got != "0" {
		t.Errorf("%s rows have the password", got)
	}
	lines := strings.Fields(out)
	again := p.Text(t, "SELECT id::text FROM public.provisions WHERE operation = 'apply' ORDER BY number DESC LIMIT 1")
	if lines[len(lines)-1] != again {
		t.Errorf("REST answers with %s, want the run's id %s", lines[len(lines)-1], again)
	}
	me.run("trellis logs " + again + " --follow")
	if log := p.Log(t, uuid.MustParse(again)); !strings.Contains(log, "No changes") {
		t.Errorf("the same by REST says\n%s\nwant no changes", log)
	}
}
