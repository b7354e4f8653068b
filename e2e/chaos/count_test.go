package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

// onItsWay is how long a line may be on its way from the script that printed it
// through the engine to its parent. What was printed so shortly before a
// SIGKILL may have been in a pipe between the dead.
const onItsWay = 3 * time.Second

// count ends every test of this package: the agent must have ended, and nothing
// may be lost, doubled or left over. ends are what provisions may have ended as.
func (w *works) count(a *site.Agent, ends ...string) {
	w.T.Helper()
	for _, r := range w.runs {
		if got := w.Status(w.T, r.id); !slices.Contains(ends, got) {
			w.T.Errorf("run %d in %s ended as %s (%s), want one of %v", r.n, r.workspace, got, w.Message(r.id), ends)
		}
		w.countLines(r)
	}
	if text, err := os.ReadFile(filepath.Join(w.journal, "violations")); err == nil {
		w.T.Errorf("applies overlapped:\n%s", text)
	}
	w.countRows()
	w.countState()
	w.countLeftovers(a)
}

// lineOf is one line that a run's script printed, in what runlog.Printed answers.
var lineOf = regexp.MustCompile(`n=(\d+)line(\d+)\.`)

// wholeLine is one that the engine did not cut.
var wholeLine = regexp.MustCompile(`(?m)\(local-exec\): n=\d+ line \d+\.$`)

// countLines compares a run's log with what it printed.
func (w *works) countLines(r *workRun) {
	w.T.Helper()
	printed := w.printed(r)
	log := w.Log(w.T, r.id)
	logged := 0
	for _, match := range lineOf.FindAllStringSubmatch(runlog.Printed(log), -1) {
		logged++
		if match[1] != strconv.Itoa(r.n) || match[2] != strconv.Itoa(logged) {
			w.T.Errorf("log of run %d: line %d is %q, want the lines in order, each once:\n%s", r.n, logged, match[0], log)
			return
		}
	}
	counted.add("lines that the engine cut", logged-len(wholeLine.FindAllString(log, -1)))
	counted.add("lines compared", logged)
	if logged > len(printed) {
		w.T.Errorf("log of run %d has %d lines, it printed %d", r.n, logged, len(printed))
	}
	lines := r.lines
	if r.told {
		lines = len(printed)
	}
	if w.Status(w.T, r.id) == "SUCCESS" && logged != lines && (!r.again || logged != 0) {
		w.T.Errorf("log of run %d, which succeeded, has %d of its %d lines", r.n, logged, lines)
	}
	w.countUnrepeated(r)
	safe := len(printed)
	if !r.killed.IsZero() {
		safe = slices.IndexFunc(append(printed, r.killed), func(at time.Time) bool { return !at.Before(r.killed.Add(-onItsWay)) })
	}
	if logged < safe {
		w.T.Errorf("log of run %d ends with line %d, it had printed %d long enough before", r.n, logged, safe)
	}
}

// once are lines that the agent, the engine and the database write once in a
// run, whichever way it goes: doubled chunks without a line of the template's
// show by them.
var once = []string{
	"Checking out ", "Checked out commit ", "Using terraform ", "Initializing the backend", "has been successfully initialized",
	"Terraform will perform the following actions", "Plan: ", "terraform_data.first: Creation complete", "Apply complete!", "Done.\n",
	"was restarted during stage", "is lost: its lease ran out", "reported after all",
}

// countUnrepeated looks for lines that a run's log has twice.
func (w *works) countUnrepeated(r *workRun) {
	w.T.Helper()
	log := w.Log(w.T, r.id)
	for _, text := range once {
		if n := strings.Count(log, text); n > 1 {
			w.T.Errorf("log of run %d says %q %d times, want once", r.n, text, n)
		}
	}
}

// countRows looks at what the database holds as a whole.
func (w *works) countRows() {
	w.T.Helper()
	for what, query := range map[string]string{
		"logs with a gap":            `SELECT count(*)::text FROM (SELECT FROM public.provision_logs GROUP BY provision_id HAVING count(*) <> max(seq) OR min(seq) <> 1) gaps`,
		"claims that have not ended": `SELECT count(*)::text FROM tendril.claims WHERE state <> 'ended'`,
		"provisions claimed twice":   `SELECT count(*)::text FROM (SELECT FROM tendril.claims WHERE set_down_at IS NULL GROUP BY provision_id HAVING count(*) > 1) again`,
		"workspaces that are not free": `SELECT count(*)::text FROM public.workspaces
			WHERE running_claim IS NOT NULL OR held_by_claim IS NOT NULL OR reserved_by IS NOT NULL OR head_id IS NOT NULL`,
		"provisions that ended without saying why": `SELECT count(*)::text FROM public.provisions
			WHERE finished_at IS NULL OR status <> 'SUCCESS' AND (error_code IS NULL OR coalesce(error_message, '') = '')`,
	} {
		if got := w.Text(w.T, query); got != "0" {
			w.T.Errorf("%s %s, want none", got, what)
		}
	}
}

// countState compares each workspace's state with what its runs reported: it is
// that of the last success, or of one that failed during its apply since.
func (w *works) countState() {
	w.T.Helper()
	may := map[string][]int{}
	success := map[string]bool{}
	for _, r := range w.byClaim() {
		switch status := w.Status(w.T, r.id); {
		case status == "SUCCESS":
			may[r.workspace], success[r.workspace] = []int{r.n}, true
			if got := w.Text(w.T, "SELECT coalesce(outputs -> 'n' ->> 'value', 'none') FROM public.provisions WHERE id = $1", r.id); got != strconv.Itoa(r.n) {
				w.T.Errorf("run %d reported the output %s", r.n, got)
			}
		case w.applied(r):
			may[r.workspace] = append(may[r.workspace], r.n)
		}
	}
	for workspace, want := range may {
		got, err := w.stateOf(workspace)
		if err != nil {
			w.T.Errorf("state of %s: %v", workspace, err)
			continue
		}
		if got == 0 && !success[workspace] {
			continue // nothing had been done yet
		}
		if !slices.Contains(want, got) {
			w.T.Errorf("state of %s is that of run %d, want one of %v", workspace, got, want)
		}
		counted.add("states compared", 1)
	}
}

// byClaim lists the runs that were claimed, in that order.
func (w *works) byClaim() []*workRun {
	w.T.Helper()
	var order []*workRun
	for _, id := range strings.Fields(w.Text(w.T, "SELECT coalesce(string_agg(provision_id::text, ' ' ORDER BY number), '') FROM tendril.claims")) {
		i := slices.IndexFunc(w.runs, func(r *workRun) bool { return r.id.String() == id })
		if i >= 0 {
			order = append(order, w.runs[i])
		}
	}
	return order
}

func (w *works) applied(r *workRun) bool {
	w.T.Helper()
	return w.Text(w.T, "SELECT bool_or(apply_begun_at IS NOT NULL)::text FROM tendril.claims WHERE provision_id = $1", r.id) == "true"
}

// stateOf reads which run a workspace's state is of: 0 for none.
func (w *works) stateOf(workspace string) (int, error) {
	id := w.Text(w.T, "SELECT id::text FROM public.workspaces WHERE name = $1", workspace)
	paths, err := filepath.Glob(w.statePath(id))
	if err != nil || len(paths) == 0 {
		return 0, err
	}
	text, err := os.ReadFile(paths[0])
	if err != nil {
		return 0, err
	}
	var state struct {
		Resources []struct {
			Name      string
			Instances []struct {
				Attributes struct{ Input struct{ Value int } }
			}
		}
	}
	if len(text) == 0 {
		return 0, nil
	}
	if err := json.Unmarshal(text, &state); err != nil {
		return 0, fmt.Errorf("%s: %w", paths[0], err)
	}
	for _, resource := range state.Resources {
		if resource.Name == "first" && len(resource.Instances) > 0 {
			return resource.Instances[0].Attributes.Input.Value, nil
		}
	}
	return 0, nil
}

// countLeftovers looks for what an agent that has ended left behind.
func (w *works) countLeftovers(a *site.Agent) {
	w.T.Helper()
	if spools := a.Spools(); len(spools) > 0 {
		w.T.Errorf("agent %s left spools: %v", a.Name, spools)
	}
	for _, pattern := range []string{"rejected/*", "work/*/secrets", "work/*/source", "work/*/tmp", "state/*/errored*"} {
		found, err := filepath.Glob(filepath.Join(a.Dir, pattern))
		if err != nil {
			w.T.Fatal(err)
		}
		if len(found) > 0 {
			w.T.Errorf("agent %s left %v", a.Name, found)
		}
	}
	w.countLocks()
	ctx, cancel := patience.Context(w.T.Context(), time.Minute)
	defer cancel()
	left, err := process.KillByEnvironment(ctx, "TF_DATA_DIR="+filepath.Join(a.Dir, "work")+string(filepath.Separator))
	if err != nil {
		w.T.Errorf("look for processes that agent %s left: %v", a.Name, err)
	}
	for _, p := range left {
		w.T.Errorf("agent %s left process %d (%s) running", a.Name, p.PID, p.Name)
	}
	for _, pid := range workingIn(a.Dir) {
		w.T.Errorf("agent %s left process %s running in its directory", a.Name, pid)
	}
}

// countLocks looks for states that something holds the lock of. The file beside
// a state that says who had its lock is no lock: a killed Terraform leaves it.
func (w *works) countLocks() {
	w.T.Helper()
	states, err := filepath.Glob(w.statePath("*"))
	if err != nil {
		w.T.Fatal(err)
	}
	for _, path := range states {
		file, err := os.Open(path)
		if err != nil {
			w.T.Error(err)
			continue
		}
		held := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(file.Fd(), unix.F_GETLK, &held); err != nil || held.Type != unix.F_UNLCK {
			w.T.Errorf("state %s is locked by process %d, %v", path, held.Pid, err)
		}
		_ = file.Close() // only read
	}
}

// workingIn lists the processes whose working directory is in dir: a run's
// process and its engine.
func workingIn(dir string) (pids []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is well formed
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, dir+string(filepath.Separator)) {
			pids = append(pids, strings.Split(link, "/")[2])
		}
	}
	return pids
}
