package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

const hello = `
variable "name" { type = string }
variable "secret" {
  type      = string
  default   = "a-default-s3cret"
  sensitive = true
}
resource "terraform_data" "hello" {
  input = var.name
  provisioner "local-exec" {
    command     = "for i in 1 2 3 4; do echo \"hello $NAME $i $SECRET\"; sleep 0.1; done"
    environment = { NAME = var.name, SECRET = nonsensitive(var.secret) }
  }
}
output "greeting" { value = { text = "hello ${var.name}", times = 4 } }
output "secret" {
  value     = "out-${var.secret}"
  sensitive = true
}
`

// A row inserted by hand is a whole deploy.
func TestInsertIsAWholeDeploy(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	repo := s.Template("hello", map[string]string{"main.tf": hello})
	s.NewAgent("one", 2, "").Start()
	ids := map[string]uuid.UUID{}
	for _, engine := range []string{"terraform", "tofu"} { // at once
		snapshot := site.SnapshotOf(repo, "acme/"+engine, map[string]any{"name": "world"})
		ids[engine] = s.DeploySnapshot(t, fmt.Sprintf(`{"terraform": {"engine": %q}, %s`, engine, snapshot[1:]))
	}
	for engine, id := range ids {
		wantWholeDeploy(t, s, id, engine)
	}
	if dump := dump(s); strings.Contains(dump, "s3cret") {
		t.Error("the database holds the secret somewhere")
	}
}

func wantWholeDeploy(t *testing.T, s *site.Site, id uuid.UUID, engine string) {
	t.Helper()
	if got := s.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("provision = %s: %s", got, s.Message(id))
	}

	log := s.Log(t, id) // also checks that rows are numbered 1…n
	for i := range 4 {
		if want := fmt.Sprintf("hello world %d ***", i+1); runlog.Count(log, want) != 1 {
			t.Errorf("log has %q %d times, want once", want, runlog.Count(log, want))
		}
	}
	if strings.Contains(log, "s3cret") {
		t.Error("log holds the secret")
	}
	if !strings.HasSuffix(log, "Done.\n") {
		t.Errorf("log ends with %q, want the last line to say that it is done", log[max(0, len(log)-60):])
	}
	got := s.Text(t, `SELECT concat_ws(' ', length(resolved_commit), engine, plan_summary ->> 'add', outputs -> 'greeting' -> 'value' ->> 'text',
		outputs -> 'greeting' -> 'value' ->> 'times', outputs -> 'secret' ->> 'sensitive', outputs -> 'secret' ? 'value') FROM public.provisions WHERE id = $1`, id)
	if want := "40 " + engine + " 1 hello world 4 true f"; got != want {
		t.Errorf("recorded = %q, want %q", got, want)
	}
	got = s.Text(t, `SELECT concat_ws(' ', r.type, r.status, r.external_id <> '', g.percent, g.running, jsonb_array_length(p.plan_summary -> 'resources' -> 0 -> 'attributes') > 0)
		FROM public.provisions p JOIN public.resources r USING (workspace_id) JOIN public.provision_progress g ON g.provision_id = p.id WHERE p.id = $1`, id)
	if want := "terraform_data created t 100 t"; got != want && got != "terraform_data created t 100 [] t" {
		t.Errorf("resource and progress = %q, want %q", got, want)
	}
}

// dump is every row of every table of ours as text.
func dump(s *site.Site) string {
	s.T.Helper()
	var all strings.Builder
	rows, err := s.Conn.Query(s.T.Context(), "SELECT format('SELECT coalesce(string_agg(x::text, E''\\n''), '''') FROM %s x', c.oid::regclass) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname IN ('public', 'tendril') AND c.relkind = 'r'")
	if err != nil {
		s.T.Fatal(err)
	}
	var queries []string
	for rows.Next() {
		var q string
		if err := rows.Scan(&q); err != nil {
			s.T.Fatal(err)
		}
		queries = append(queries, q)
	}
	if err := rows.Err(); err != nil {
		s.T.Fatal(err)
	}
	for _, q := range queries {
		all.WriteString(s.Text(s.T, q))
	}
	return all.String()
}

// The first line comes at once, none later than 600 ms after it was printed.
// The template writes down itself when it prints, until somebody has seen enough:
// lines are looked at until nine in a row were as they are where nothing else runs.
func TestLinesComeWhileTerraformRuns(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	meeting := site.Meeting(t)
	repo := s.Template("ticker", map[string]string{"main.tf": fmt.Sprintf(`resource "terraform_data" "a" {
  provisioner "local-exec" {
    command = "i=0; while [ ! -e %[1]s/enough ]; do i=$((i+1)); date +\"%%s.%%N\" >> %[1]s/printed; echo \"tick $i.\"; sleep 0.4; done"
  }
}
`, meeting)})
	s.NewAgent("one", 1, "").Start()
	id := s.DeployTemplate(repo, "ticker", nil)
	s.AwaitLine(id, "tick 1.")
	if got := s.Status(t, id); got != "PROCESSING" {
		t.Errorf("status when the first line is here = %s, want PROCESSING", got)
	}
	const inARow = 9
	var lateness []float64
	for limit := patience.Begin(site.Patience); ; {
		n := len(lateness) + 1
		s.AwaitLine(id, fmt.Sprintf("tick %d.", n))
		times, err := os.ReadFile(filepath.Join(meeting, "printed"))
		if err != nil {
			t.Fatal(err)
		}
		var late float64
		if err := s.Conn.QueryRow(t.Context(), `SELECT extract(epoch FROM min(created_at)) - $3::numeric FROM public.provision_logs WHERE provision_id = $1 AND log_chunk LIKE '%' || $2 || '%'`,
			id, fmt.Sprintf("tick %d.", n), strings.Fields(string(times))[n-1]).Scan(&late); err != nil {
			t.Fatal(err)
		}
		lateness = append(lateness, late)
		last := slices.Sorted(slices.Values(lateness[max(0, n-inARow):]))
		if n >= inARow && last[inARow/2] <= 0.6 && last[inARow-1] <= 1.2 { // the worst is given a hiccup
			break
		}
		if limit.Over() {
			t.Errorf("lines came %.2f s after they were printed, want %d in a row after at most 0.6 in the median and 1.2 at worst", lateness, inARow)
			break
		}
	}
	t.Logf("seconds from printed to stored: %.2f", lateness)
	if err := os.WriteFile(filepath.Join(meeting, "enough"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := s.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("provision = %s: %s", got, s.Message(id))
	}
}

// Two agents of four slots, 30 provisions on 10 workspaces: each runs once, never two at
// once on a workspace, none left over. With TENDRIL_TEST_FAULTS=all they are 100 on 20.
func TestTwoAgentsShareAQueue(t *testing.T) {
	t.Parallel()
	provisions, workspaces := 30, 10
	if everyCell {
		provisions, workspaces = 100, 20
	}
	s := site.New(t)
	journal := filepath.Join(site.Meeting(t), "journal")
	repo := s.Template("fleet", map[string]string{"main.tf": fmt.Sprintf(`variable "n" { type = number }
variable "workspace" { type = string }
resource "terraform_data" "a" {
  triggers_replace = var.n
  provisioner "local-exec" {
    command = "echo \"begin $W $N\" >> %[1]s; sleep 0.05; echo \"end $W $N\" >> %[1]s"
    environment = { W = var.workspace, N = var.n }
  }
}
`, journal)})
	for i := range provisions {
		workspace := fmt.Sprintf("w%d", i%workspaces)
		s.DeployTemplate(repo, workspace, map[string]any{"n": i, "workspace": workspace})
	}
	for _, name := range []string{"one", "two"} {
		s.NewAgent(name, 4, s.SharedState()).Start()
	}
	limit := patience.Begin(3 * time.Minute)
	for left := -1; left != 0; {
		if err := s.Conn.QueryRow(t.Context(), "SELECT count(*) FROM public.provisions WHERE status IN ('QUEUED', 'PROCESSING')").Scan(&left); err != nil {
			t.Fatal(err)
		}
		if limit.Over() {
			t.Fatalf("%d provisions are not over", left)
		}
		limit.Pause()
	}
	if got := s.Text(t, "SELECT string_agg(DISTINCT status || coalesce('/' || error_code, '') || coalesce(': ' || error_message, ''), ', ') FROM public.provisions"); got != "SUCCESS" {
		t.Fatalf("provisions ended as %s, want SUCCESS", got)
	}
	text, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	busy, ran := map[string]string{}, map[string]int{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var what, workspace, n string
		if _, err := fmt.Sscan(line, &what, &workspace, &n); err != nil {
			t.Fatalf("journal line %q: %v", line, err)
		}
		if what == "begin" {
			if other := busy[workspace]; other != "" {
				t.Errorf("%s began in workspace %s while %s ran there", n, workspace, other)
			}
			busy[workspace] = n
			ran[n]++
		} else {
			busy[workspace] = ""
		}
	}
	if len(ran) != provisions {
		t.Errorf("%d provisions ran, want %d", len(ran), provisions)
	}
	for n, times := range ran {
		if times != 1 {
			t.Errorf("provision %s ran %d times, want once", n, times)
		}
	}
	if got := s.Text(t, "SELECT count(DISTINCT instance_id)::text || ' ' || count(*) FROM tendril.claims"); got != fmt.Sprintf("2 %d", provisions) {
		t.Errorf("agents and claims = %s, want both agents and %d claims", got, provisions)
	}
	if got := s.Text(t, "SELECT count(*)::text FROM (SELECT provision_id FROM public.provision_logs GROUP BY 1 HAVING count(*) <> max(seq) OR min(seq) <> 1) gaps"); got != "0" {
		t.Errorf("%s provisions have a gap in their log", got)
	}
}

// slowApply prints, then waits for a file.
func slowApply(dir string) string {
	quoted, err := json.Marshal("echo \"applying $$.\"; while [ ! -e " + dir + "/go ]; do sleep 0.1; done; echo released")
	if err != nil {
		panic(err) // strings always encode
	}
	return `resource "terraform_data" "before" {}
resource "terraform_data" "slow" {
  depends_on = [terraform_data.before]
  provisioner "local-exec" {
    command = ` + string(quoted) + `
  }
}
`
}

func release(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// kill -9 of the agent mid-apply, then a start.
func TestKilledAgentComesBack(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	gate, siblingGate := site.Meeting(t), site.Meeting(t)
	repo := s.Template("slow", map[string]string{"main.tf": slowApply(gate)})
	siblingRepo := s.Template("sibling", map[string]string{"main.tf": slowApply(siblingGate)})

	victim := s.NewAgent("victim", 1, "").Start()
	id := s.DeployTemplate(repo, "a", nil)
	s.AwaitLine(id, "applying")
	s.NewAgent("sibling", 1, "").Start()
	other := s.DeployTemplate(siblingRepo, "b", nil)
	s.AwaitLine(other, "applying")

	victim.Kill()
	victim.Start()
	if got := s.AwaitEnd(id); got != "FAILED/agent_restarted" {
		t.Errorf("provision = %s, want FAILED/agent_restarted", got)
	}
	log := s.Log(t, id)
	// A second interrupt makes Terraform say "Two interrupts received".
	if n := strings.Count(log, "Interrupt received"); n != 1 || strings.Contains(log, "Two interrupts") {
		t.Errorf("terraform says %d times that it was interrupted, or was so twice; want one interrupt", n)
	}
	lines := strings.Split(strings.TrimSpace(log), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, "Apply had begun") {
		t.Errorf("last line = %q, want it to say that apply had begun", last)
	}
	if got := s.Text(t, "SELECT stream_type FROM public.provision_logs WHERE provision_id = $1 ORDER BY seq DESC LIMIT 1", id); got != "SYSTEM" {
		t.Errorf("last line is of %s, want SYSTEM", got)
	}
	if spools := victim.Spools(); len(spools) != 0 {
		t.Errorf("spools left after the delivery: %v", spools)
	}

	if got := s.Status(t, other); got != "PROCESSING" {
		t.Errorf("the sibling's provision = %s, want it to go on undisturbed", got)
	}
	release(t, siblingGate)
	if got := s.AwaitEnd(other); got != "SUCCESS" {
		t.Errorf("the sibling's provision = %s, want SUCCESS", got)
	}
	// The workspace is free and its state was written: the next run finishes.
	release(t, gate)
	again := s.DeployTemplate(repo, "a", nil)
	if got := s.AwaitEnd(again); got != "SUCCESS" {
		t.Errorf("the next run = %s: %s", got, s.Message(again))
	}
	if got := s.Text(t, "SELECT plan_summary ->> 'add' || ' ' || (plan_summary ->> 'replace') FROM public.provisions WHERE id = $1", again); got != "0 1" {
		t.Errorf("the next run adds and replaces %s, want 0 1: the first resource was in the state, the interrupted one tainted", got)
	}
}

func TestCancelMidApply(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	gate := site.Meeting(t)
	repo := s.Template("slow", map[string]string{"main.tf": slowApply(gate)})
	s.NewAgent("one", 1, s.SharedState()).Start()
	id := s.DeployTemplate(repo, "a", nil)
	s.AwaitLine(id, "applying")
	asked := time.Now()
	s.Exec(t, "SELECT public.cancel_provision($1)", id)
	if got := s.AwaitEnd(id); got != "CANCELLED/cancelled" {
		t.Errorf("provision = %s, want CANCELLED/cancelled", got)
	}
	t.Logf("the cancel took %s", time.Since(asked))
	log := s.Log(t, id)
	for _, want := range []string{"Cancel requested.", "Interrupt received", "Cancelled."} {
		if n := strings.Count(log, want); n == 0 || want == "Interrupt received" && n != 1 {
			t.Errorf("log has %q %d times", want, n)
		}
	}
	if strings.Contains(log, "Two interrupts") {
		t.Error("terraform was interrupted twice")
	}
	workspace := s.Text(t, "SELECT workspace_id::text FROM public.provisions WHERE id = $1", id)
	state, err := os.ReadFile(s.StatePath(workspace))
	if err != nil || !strings.Contains(string(state), `"before"`) {
		t.Errorf("state has %d bytes, %v, want the resource made before the cancel in it", len(state), err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(s.StatePath(workspace)), ".terraform.tfstate.lock.info")); err == nil {
		t.Error("the state's lock is still there")
	}
	release(t, gate)
	again := s.DeployTemplate(repo, "a", nil)
	if got := s.AwaitEnd(again); got != "SUCCESS" {
		t.Errorf("the run after the cancel = %s: %s", got, s.Message(again))
	}
}

// SIGTERM lets running work finish.
func TestDrainLetsWorkFinish(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	gate := site.Meeting(t)
	repo := s.Template("slow", map[string]string{"main.tf": slowApply(gate)})
	a := s.NewAgent("one", 2, "").Start()
	id := s.DeployTemplate(repo, "a", nil)
	s.AwaitLine(id, "applying")
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Terminate()
	}()
	a.AwaitOutput("nothing more is claimed")
	late := s.DeployTemplate(repo, "b", nil)
	release(t, gate)
	<-done
	if got := s.Status(t, id); got != "SUCCESS" {
		t.Errorf("the running provision = %s, want SUCCESS", got)
	}
	if got := s.Status(t, late); got != "QUEUED" {
		t.Errorf("the one queued during the drain = %s, want QUEUED", got)
	}
	if code := a.Cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the agent's exit code = %d, want 0", code)
	}
}
