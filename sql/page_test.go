package sql_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// page is testdata/page.mjs at work.
type page struct {
	in  *json.Encoder
	out *bufio.Scanner
}

// said is one answer of the page's.
type said struct {
	Rows []struct {
		Seq      int
		LogChunk string `json:"log_chunk"`
	}
	Ended, Error, Approved string
	Plan                   *struct {
		Digest  string
		Summary struct{ Destroy int }
	}
	Deployed struct {
		ID     uuid.UUID
		Number int
		Status string
	}
	Refused struct {
		Message, Reason string
		Retry           bool
	}
}

// newPage runs the files that docs/SUPABASE.md holds.
func newPage(t *testing.T, s *rest) *page {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"deploy":     pages.Block(t, "docs/SUPABASE.md", "// deploy.js"),
		"approve":    pages.Block(t, "docs/SUPABASE.md", "// approve.js"),
		"follow-log": pages.Block(t, "docs/SUPABASE.md", "// follow-log.js"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".mjs"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("testdata/page.mjs")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "page.mjs"), script, 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	cmd := exec.CommandContext(t.Context(), "node", filepath.Join(dir, "page.mjs"), filepath.Dir(pgtest.Tool(t, "postgrest-js/node_modules")), server.URL)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("running node: %v; make deps installs it", err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // what it did has been looked at
	})
	return &page{json.NewEncoder(in), bufio.NewScanner(out)}
}

func (p *page) do(t *testing.T, command ...any) {
	t.Helper()
	if err := p.in.Encode(command); err != nil {
		t.Fatal(err)
	}
}

// next is the page's next answer.
func (p *page) next(t *testing.T) (s said) {
	t.Helper()
	if !p.out.Scan() {
		t.Fatalf("the page has ended: %v", p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), &s); err != nil {
		t.Fatalf("%s: %v", p.out.Text(), err)
	}
	return s
}

func newRest(t *testing.T) (*world, *rest) {
	t.Helper()
	db := pgtest.New(t, migrated)
	w := newWorld(t, db.Conn(t))
	return w, &rest{pool: db.Pool(t), user: w.operator, maxRows: 2}
}

func TestDeployButton(t *testing.T) {
	t.Parallel()
	w, s := newRest(t)
	p := newPage(t, s)
	id := uuid.New()
	for range 2 { // the second time after a lost reply
		p.do(t, "deploy", w.cluster, json.RawMessage(snapshot("a")), id)
		if got := p.next(t); got.Deployed.ID != id || got.Deployed.Number != 1 || got.Deployed.Status != "QUEUED" {
			t.Errorf("deploy() = %+v, want run 1 %s, QUEUED", got, id)
		}
	}
	p.do(t, "deploy", w.cluster, map[string]any{"template_source": map[string]string{"repo": "https://git.example/a"}, "workspace": "b"})
	if got := p.next(t).Refused; got.Reason != "bad_snapshot" || !strings.HasPrefix(got.Message, "config_snapshot.template_source.version: missing") || got.Retry {
		t.Errorf("deploy(no version) = %+v, want bad_snapshot with the path", got)
	}
	p.do(t, "deploy", uuid.New(), json.RawMessage(snapshot("a")))
	if got := p.next(t).Refused; got.Reason != "cluster_not_found" || !strings.Contains(got.Message, "\ncheck the id") || got.Retry {
		t.Errorf("deploy(no such cluster) = %+v, want cluster_not_found with the hint", got)
	}
	s.failing.Store(true)
	p.do(t, "deploy", w.cluster, json.RawMessage(snapshot("a")))
	if got := p.next(t).Refused; !got.Retry {
		t.Errorf("deploy(not reached) = %+v, want it to be tried again", got)
	}
}

// The plan that the page has shown is approved, and no other.
func TestApproveButton(t *testing.T) {
	t.Parallel()
	w, s := newRest(t)
	agent := w.newAgent(t, "one")
	p := newPage(t, s)
	id := w.deploy(t, w.operator, snapshot("a"))
	p.do(t, "plan", id)
	if got := p.next(t); got.Plan != nil || got.Error != "" {
		t.Errorf("plan() of what is queued = %+v, want none", got)
	}
	agent.awaits(t)
	p.do(t, "plan", id)
	got := p.next(t)
	if got.Plan == nil || got.Plan.Digest != aPlan || got.Plan.Summary.Destroy != 1 {
		t.Fatalf("plan() = %+v, want the digest and what is destroyed", got)
	}
	p.do(t, "approve", id, strings.Repeat("e", 64))
	if got := p.next(t).Refused; got.Reason != "plan_changed" || !strings.Contains(got.Message, "\nread the plan again") || got.Retry {
		t.Errorf("approve(another plan) = %+v, want plan_changed with the hint", got)
	}
	s.failing.Store(true)
	p.do(t, "approve", id, got.Plan.Digest)
	if got := p.next(t).Refused; !got.Retry {
		t.Errorf("approve(not reached) = %+v, want it to be tried again", got)
	}
	for range 2 {
		p.do(t, "approve", id, got.Plan.Digest)
		if got := p.next(t); got.Approved != "QUEUED" {
			t.Errorf("approve() = %+v, want QUEUED", got)
		}
	}
}

// A viewer whose events are lost, late, or too many shows each row once.
func TestLogViewer(t *testing.T) {
	t.Parallel()
	w, s := newRest(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	written := int64(0)
	write := func(n int) {
		t.Helper()
		for range n {
			if _, err := agent.lines(t, claim, written+1, "line\n"); err != nil {
				t.Fatal(err)
			}
			written++
		}
	}
	p := newPage(t, s)
	shown := 0
	until := func(what string, enough func(said) bool) {
		t.Helper()
		for {
			answer := p.next(t)
			for _, row := range answer.Rows {
				if shown++; row.Seq != shown {
					t.Fatalf("%s: row %d was handed over as no. %d", what, row.Seq, shown)
				}
			}
			if enough(answer) {
				return
			}
		}
	}
	all := func(said) bool { return shown == int(written) }

	write(5) // more than one answer holds, before anybody looks
	p.do(t, "follow", id, 3_600_000)
	until("what was there", all)
	write(3)
	p.do(t, "events", 1) // one for three
	until("an event", all)
	write(1)
	p.do(t, "events", 50)
	mustExec(t, w.conn, "SELECT tendril.archive_part(id, org_id) FROM public.provisions WHERE id = $1", id) // beside what the page may just be reading
	write(4)
	p.do(t, "events", 50) // late, and many
	until("a storm of events", all)
	s.failing.Store(true)
	p.do(t, "events", 1)
	until("a request that failed", func(answer said) bool { return answer.Error != "" })
	write(1)
	p.do(t, "events", 1)
	until("the one after it", all)
	agent.mustReport(t, claim, "FAILED", `{"error_code": "apply_failed"}`)
	p.do(t, "events", 2)
	until("the end", func(answer said) bool { return answer.Ended == "FAILED" })

	// Without any event the clock is enough, and what is there already is read
	// before the end is told.
	shown = 0
	w.age(t, id, "8 days")
	w.archive(t, "")
	p.do(t, "follow", id, 5)
	until("an ended run", func(answer said) bool { return answer.Ended == "FAILED" })
	if !all(said{}) {
		t.Errorf("rows shown of an ended run = %d, want %d", shown, written)
	}
}

// A tick is enough where no event comes.
func TestLogViewerWithoutEvents(t *testing.T) {
	t.Parallel()
	w, s := newRest(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	p := newPage(t, s)
	p.do(t, "follow", id, 10)
	for n := int64(1); n <= 3; n++ {
		if _, err := agent.lines(t, claim, n, "line\n"); err != nil {
			t.Fatal(err)
		}
		if got := p.next(t); len(got.Rows) != 1 || got.Rows[0].Seq != int(n) {
			t.Errorf("the page says %+v, want row %d", got, n)
		}
	}
}
