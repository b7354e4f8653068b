package chaos

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// turn is one claim of a workspace: what ran until the next one began there.
type turn struct {
	Number           int64
	Operation, Ended string // STATUS/code
	Command          string // of a state operation
	Version          int64  // that a rollback goes to
	Began            bool   // apply
	From, Until      time.Time
	Before, After    int64 // the newest version of the state
}

// turns are what ran in a workspace, in order.
func (l *lives) turns(one *life) []turn {
	l.T.Helper()
	rows, err := l.Conn.Query(l.T.Context(), `
		WITH turns AS (
			SELECT c.*, lead(c.created_at, 1, 'infinity') OVER (ORDER BY c.number) AS until
			FROM tendril.claims c JOIN public.workspaces w ON w.id = c.workspace_id WHERE w.name = $1)
		SELECT p.number, p.operation, p.status || coalesce('/' || p.error_code, ''), coalesce(p.config_snapshot -> 'state' ->> 'command', ''),
		       coalesce((p.config_snapshot -> 'state' ->> 'version')::bigint, 0), t.apply_begun_at IS NOT NULL, t.created_at, least(t.until, now()),
		       coalesce((SELECT max(b.number) FROM tendril.blobs b WHERE b.workspace_id = t.workspace_id AND b.complete_at < t.created_at), 0),
		       coalesce((SELECT max(b.number) FROM tendril.blobs b WHERE b.workspace_id = t.workspace_id AND b.complete_at < t.until), 0)
		FROM turns t JOIN public.provisions p ON p.id = t.provision_id ORDER BY t.number`, one.workspace)
	if err != nil {
		l.T.Fatal(err)
	}
	turns, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t turn, err error) {
		err = row.Scan(&t.Number, &t.Operation, &t.Ended, &t.Command, &t.Version, &t.Began, &t.From, &t.Until, &t.Before, &t.After)
		return t, err
	})
	if err != nil {
		l.T.Fatal(err)
	}
	return turns
}

// written is a line of a life's journal.
type written struct {
	key  string
	made bool // else taken away
	at   time.Time
}

func (l *lives) writings(one *life) (all []written) {
	l.T.Helper()
	text, err := os.ReadFile(one.journal)
	if err != nil && !os.IsNotExist(err) {
		l.T.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		what, stamp, _ := strings.Cut(strings.TrimSpace(line), " ")
		nanos, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil || len(what) < 2 {
			l.T.Fatalf("journal of life %d: %q", one.n, line)
		}
		all = append(all, written{key: what[1:], made: what[0] == '+', at: time.Unix(0, nanos)})
	}
	return all
}

// listed is what a version of the state lists, 0 being the newest; false is
// tainted.
func (l *lives) listed(one *life, version int64) map[string]bool {
	l.T.Helper()
	whole := map[string]bool{}
	for key, instance := range l.StateVersion(l.T, one.workspace, version, l.identity) {
		whole[key] = !instance.Tainted
	}
	delete(whole, "") // not one of the set
	return whole
}

// compareAll holds each life's states to what its template wrote down outside,
// turn by turn, and the database's list of resources to the newest.
func (l *lives) compareAll() {
	l.T.Helper()
	for _, one := range l.all {
		turns, lines := l.turns(one), l.writings(one)
		for _, line := range lines {
			if !slices.ContainsFunc(turns, func(t turn) bool { return t.Began && t.has(line.at) }) {
				l.T.Errorf("life %d: %s was made or taken away at %s, while no apply was allowed", one.n, line.key, line.at.UTC().Format(time.RFC3339Nano))
			}
		}
		for _, t := range turns {
			l.compareTurn(one, t, slices.DeleteFunc(slices.Clone(lines), func(w written) bool { return !t.has(w.at) }))
		}
		if len(turns) > 0 {
			l.compareResources(one, turns)
		}
		counted.add("lives: turns compared with what was written down", len(turns))
	}
}

func (t turn) has(at time.Time) bool { return !at.Before(t.From) && at.Before(t.Until) }

// killed says that the run's process was killed: what it had made since it last
// stored a state is in none.
func (l *lives) killed(one *life, t turn) bool {
	l.T.Helper()
	id := l.Text(l.T, "SELECT id::text FROM public.workspaces WHERE name = $1", one.workspace)
	return slices.ContainsFunc(l.torn[id], t.has)
}

// version is what a version lists; that of none is nothing.
func (l *lives) version(one *life, number int64) map[string]bool {
	l.T.Helper()
	if number == 0 {
		return nil
	}
	return l.listed(one, number)
}

func (l *lives) compareTurn(one *life, t turn, lines []written) {
	l.T.Helper()
	fail := func(format string, args ...any) {
		l.T.Errorf("life %d, provision %d (%s %s, %s), states %d to %d: %s", one.n, t.Number, t.Operation, t.Command, t.Ended, t.Before, t.After, fmt.Sprintf(format, args...))
	}
	if t.Began && l.killed(one, t) {
		return
	}
	before, after := l.version(one, t.Before), l.version(one, t.After)
	if !t.Began {
		// An engine that is interrupted stores its state, which is as it was.
		if !sameKeys(before, after) {
			fail("the state has %v, and had %v; nothing was to be applied", after, before)
		}
		return
	}
	if t.Operation == "state" {
		changed := maps.Clone(before)
		switch t.Command {
		case "rm":
			delete(changed, "r0")
		case "rollback":
			changed = l.version(one, t.Version)
		}
		if !sameKeys(after, changed) && (t.Ended == "SUCCESS" || !sameKeys(after, before)) {
			fail("the state has %v, want %v, or %v if it failed", after, changed, before)
		}
		return
	}
	last := map[string]bool{}
	for _, line := range lines {
		last[line.key] = line.made
	}
	for key, made := range last {
		if _, there := after[key]; made && !there {
			fail("%s was made, and the state does not list it", key)
		} else if !made && there && t.Ended == "SUCCESS" {
			fail("%s was taken away, and the state still lists it", key)
		}
	}
	for key, whole := range before {
		_, touched := last[key]
		// What was half made goes without a word.
		if _, there := after[key]; !there && !touched && whole {
			fail("%s is not in the state any more, and was not taken away", key)
		}
	}
	for key, whole := range after {
		_, touched := last[key]
		// What was about to be made when its engine was interrupted is tainted.
		if _, there := before[key]; !there && !touched && whole {
			fail("%s is in the state, and was not made", key)
		}
	}
}

// compareResources holds the database's list to the newest state, unless the last
// run that changed something could not tell of it any more.
func (l *lives) compareResources(one *life, turns []turn) {
	l.T.Helper()
	for _, t := range slices.Backward(turns) {
		if !t.Began {
			continue
		}
		if slices.Contains([]string{"FAILED/agent_lost", "FAILED/agent_restarted", "FAILED/agent_drained", "FAILED/exec_died"}, t.Ended) {
			return
		}
		break
	}
	listed := map[string]bool{}
	for _, address := range strings.Fields(l.Text(l.T, `SELECT coalesce(string_agg(split_part(r.address, '"', 2), ' '), '') FROM public.resources r
		JOIN public.workspaces w ON w.id = r.workspace_id WHERE w.name = $1 AND r.address LIKE 'terraform_data.each%'`, one.workspace)) {
		listed[address] = true
	}
	if state := l.listed(one, 0); !sameKeys(listed, state) {
		l.T.Errorf("life %d: the database lists the resources %v, the state %v", one.n, listed, state)
	}
	counted.add("lives: resources compared with the state", 1)
}

func sameKeys(a, b map[string]bool) bool {
	return slices.Equal(slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b)))
}

func joined(approved map[string]string) string {
	return strings.Join(slices.Sorted(maps.Keys(approved)), ",")
}
