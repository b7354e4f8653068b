package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// worker is a template whose apply writes down each line before it prints it,
// and holds a lock of its workspace that no second apply can have.
const worker = `
variable "n" { type = number }
variable "workspace" { type = string }
variable "lines" { type = number }
variable "pause" { type = string }
variable "stall" {
  type    = string
  default = ""
}
resource "terraform_data" "first" { input = var.n }
resource "terraform_data" "work" {
  depends_on       = [terraform_data.first]
  input            = var.n
  triggers_replace = var.n
  provisioner "local-exec" {
    command     = "exec bash ${path.module}/work.sh"
    environment = { N = var.n, W = var.workspace, LINES_WANTED = var.lines, PAUSE = var.pause, STALL = var.stall }
  }
}
output "n" { value = var.n }
`

// The clock and the pause are the shell's own: a process for each of them would
// take more of the machine than all that is tested.
const workScript = `
umask 0 # each workspace may have a uid of its own
exec 9>>"$TEST_JOURNAL/lock.$W"
flock -n 9 || echo "$N began in $W while another apply was at work" >> "$TEST_JOURNAL/violations"
exec 8<> <(:) # nothing ever comes of it
i=1
while [ "$i" -le "$LINES_WANTED" ] && [ ! -e "$TEST_JOURNAL/$N.enough" ]; do
  echo "${EPOCHREALTIME/[.,]/}000 $i" >> "$TEST_JOURNAL/$N"
  if [ -n "$STALL" ]; then
    printf 'n=%s ' "$N"
    read -r -t "$STALL" -u 8
    printf 'line '
    read -r -t "$STALL" -u 8
    printf '%s' "$i"
    read -r -t "$STALL" -u 8
    echo .
  else
    echo "n=$N line $i."
  fi
  i=$((i + 1))
  read -r -t "$PAUSE" -u 8
done
echo finished >> "$TEST_JOURNAL/$N.finished"
`

// works is a site with the worker template, and all that was deployed of it.
type works struct {
	*site.Site
	journal string
	repo    string
	runs    []*workRun
	// forgotten is how many runs a restored database has never heard of.
	forgotten int
	// home is where the only agent keeps all state; "" where agents share it.
	home string
}

// workRun is one provision of the worker template.
type workRun struct {
	id        uuid.UUID
	n         int
	workspace string
	lines     int
	// told says that it was told that it has printed enough.
	told bool
	// again says that a restored database has had it carried out a second time: it
	// may have found nothing left to do.
	again bool
	// killed is when something was killed that this run may have lost its last
	// lines to; zero if nothing was.
	killed time.Time
}

func newWorks(s *site.Site) *works {
	s.T.Helper()
	w := &works{Site: s, journal: site.Meeting(s.T)}
	w.repo = s.Template("worker", map[string]string{"main.tf": worker, "work.sh": workScript})
	return w
}

// agent configures an agent that knows the journal.
func (w *works) agent(name string, slots int, extra string) *site.Agent {
	w.T.Helper()
	a := w.NewAgent(name, slots, extra)
	a.Set("TEST_JOURNAL", w.journal)
	return a
}

// alone configures the only agent, which keeps the state itself. So its runs have
// uids of their own where it is root.
func (w *works) alone(name string, slots int) *site.Agent {
	w.T.Helper()
	a := w.agent(name, slots, "")
	w.home = a.Dir
	return a
}

// statePath is where a workspace's state is.
func (w *works) statePath(workspaceID string) string {
	if w.home != "" {
		return filepath.Join(w.home, "state", workspaceID, "terraform.tfstate")
	}
	return w.StatePath(workspaceID)
}

// deploy queues a run that prints lines with a pause between two.
func (w *works) deploy(workspace string, lines int, pause time.Duration) *workRun {
	w.T.Helper()
	return w.deployStalling(workspace, lines, pause, 0)
}

// deployStalling queues a run that also stops within each line for a time, after each
// of its words.
func (w *works) deployStalling(workspace string, lines int, pause, stall time.Duration) *workRun {
	w.T.Helper()
	r := &workRun{n: len(w.runs) + w.forgotten + 1, workspace: workspace, lines: lines}
	vars := map[string]any{"n": r.n, "workspace": workspace, "lines": lines, "pause": fmt.Sprintf("%.3f", pause.Seconds())}
	if stall > 0 {
		vars["stall"] = fmt.Sprintf("%.3f", stall.Seconds())
	}
	r.id = w.DeployTemplate(w.repo, workspace, vars)
	w.runs = append(w.runs, r)
	counted.add("provisions run", 1)
	return r
}

// endless is how many lines a run prints that goes on until somebody ends it, or
// has enough. So it is not over before a slow test has come to what it is for.
const endless = 100_000

// enough has a run print no more, and so come to its end.
func (w *works) enough(r *workRun) {
	w.T.Helper()
	r.told = true
	if err := os.WriteFile(filepath.Join(w.journal, strconv.Itoa(r.n)+".enough"), nil, 0o644); err != nil {
		w.T.Fatal(err)
	}
}

// printed is what a run has written down: when it printed each line.
func (w *works) printed(r *workRun) []time.Time {
	w.T.Helper()
	text, err := os.ReadFile(filepath.Join(w.journal, strconv.Itoa(r.n)))
	if os.IsNotExist(err) || err == nil && len(text) == 0 {
		return nil // a script makes the file before it writes to it
	}
	if err != nil {
		w.T.Fatal(err)
	}
	var at []time.Time
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		stamp, number, _ := strings.Cut(line, " ")
		nanos, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil || number != strconv.Itoa(i+1) {
			w.T.Fatalf("journal of run %d, line %d: %q", r.n, i+1, line)
		}
		at = append(at, time.Unix(0, nanos))
	}
	return at
}

// awaitPrinted waits until a run has printed that many lines.
func (w *works) awaitPrinted(r *workRun, lines int) {
	w.T.Helper()
	await(w.T, fmt.Sprintf("line %d of run %d", lines, r.n), func() bool { return len(w.printed(r)) >= lines })
}

// finished says that a run's script has come to its end.
func (w *works) finished(r *workRun) bool {
	_, err := os.Stat(filepath.Join(w.journal, strconv.Itoa(r.n)+".finished"))
	return err == nil
}

func (w *works) awaitFinished(r *workRun) {
	w.T.Helper()
	await(w.T, fmt.Sprintf("the end of the script of run %d", r.n), func() bool { return w.finished(r) })
}

// awaitMore waits until a run has printed so many lines more: it goes on.
func (w *works) awaitMore(r *workRun, lines int) {
	w.T.Helper()
	w.awaitPrinted(r, len(w.printed(r))+lines)
}

// awaitAll waits until all that was deployed has ended.
func (w *works) awaitAll() {
	w.T.Helper()
	limit := patience.Begin(5 * time.Minute)
	await := func() string {
		return w.Text(w.T, `SELECT coalesce(string_agg(format('%s in %s', p.status, w.name), ', '), '') FROM public.provisions p
			JOIN public.workspaces w ON w.id = p.workspace_id WHERE p.status IN ('QUEUED', 'PROCESSING')`)
	}
	for left := await(); left != ""; left = await() {
		if limit.Over() {
			w.T.Fatalf("provisions are stuck: %s", left)
		}
		limit.Pause()
	}
}

// await waits until a condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	limit := patience.Begin(site.Patience)
	for !holds() {
		if limit.Over() {
			t.Fatalf("timed out waiting for %s", what)
		}
		limit.Pause()
	}
}
