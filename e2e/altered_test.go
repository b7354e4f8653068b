package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// altered is a database whose owner alters it while an agent runs, and that agent. Its
// policy: one repository, dev's credentials for dev's workspaces, a person's approval for
// each plan, a hook that refuses what is forbidden, and ada to whom it seals.
type altered struct {
	*rows
	between *between
	// witness has a line for each thing that was applied, consents one for each plan that
	// the hook has let pass.
	witness, consents string
	evil              string            // a repository of somebody else's
	words             *strings.Replacer // what values name in capitals
	columns           []column
	functions         map[string][]argument
	runs              int
	approved          map[string]bool // digests of plans
	hand              *pgx.Conn       // the superuser's who acts between the calls
}

// argument is one of a function.
type argument struct{ name, kind string }

const cloudTemplate = `
variable "word" { type = string }
variable "password" {
  default   = "correct-horse"
  sensitive = true
}
resource "terraform_data" "kept" { input = var.password }
resource "terraform_data" "applied" {
  triggers_replace = { marker = "MARKER ${var.word}" }
  provisioner "local-exec" {
    command     = "echo \"$MARKER: $TEST_CLOUD\" >> WITNESS"
    environment = { MARKER = self.triggers_replace.marker }
  }
}
output "password" {
  value     = var.password
  sensitive = true
}
`

const hookScript = `marker=$(sed -n 's/.*"marker":"\([^"]*\)".*/\1/p')
case $marker in *forbidden*) echo forbidden; exit 1;; esac
echo "$TENDRIL_WORKSPACE: $marker" >> CONSENTS
`

func newAltered(t *testing.T) *altered {
	t.Helper()
	a := &altered{approved: map[string]bool{}}
	a.rows = newRows(t, func(r *rows, agent *site.Agent) {
		gateway, err := rpcgateway.New(t.Context(), rpcgateway.Options{DatabaseURL: r.Login(t, "anon"), Rate: -1, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		a.between = &between{gateway: gateway}
		server := httptest.NewServer(a.between)
		t.Cleanup(func() { server.Close(); gateway.Close() })
		a.witness, a.consents = filepath.Join(r.Keep, "witness"), filepath.Join(r.Keep, "consents")
		for _, file := range []string{a.witness, a.consents} {
			if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o666)); err != nil {
				t.Fatal(err)
			}
		}
		template := func(marker string) gittest.Files {
			return gittest.Text(map[string]string{"main.tf": strings.NewReplacer("MARKER $", marker+" $", "WITNESS", a.witness).Replace(cloudTemplate)})
		}
		good, _ := r.Git.Repo("good", template("good v1"), "v1")
		good.Tag("v2", good.Commit(template("good v2")))
		evil, _ := r.Git.Repo("evil", template("evil v1"), "v1")
		r.repo = good.URL
		a.evil = evil.URL
		r.Exec(t, "UPDATE tendril.settings SET heartbeat = '1 second'")
		agent.AllowState(r.ada)
		for key, value := range map[string]string{
			"QUEUE_URL": server.URL, "QUEUE_POLL_INTERVAL": "100ms", "POLICY_REPOS": good.URL, "POLICY_APPROVAL": "always",
			"POLICY_HOOK": "/bin/sh,-c," + strings.ReplaceAll(hookScript, "CONSENTS", a.consents), "SLOTS": "1",
		} {
			agent.Set("TENDRIL_"+key, value)
		}
		for _, of := range []string{"dev", "prod"} {
			file := filepath.Join(filepath.Dir(agent.Dir), of+".env")
			if err := os.WriteFile(file, []byte("TEST_CLOUD=of-"+of+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			agent.Configure("\n[[credentials]]\nworkspace = \"" + of + "/**\"\nenv_file = \"" + file + "\"\n")
		}
	})
	return a
}

// cell is one alteration before one step of a run.
type cell struct {
	step   string
	column column
	value  string
	// unscoped says that all rows are altered, for none is of the run.
	unscoped bool
	answer   string // what the agent is told because of it
}

func (c cell) String() string { return fmt.Sprintf("%s = %s before %q", c.column, c.value, c.step) }

// rows chooses those that are altered, with what they are altered to.
func (a *altered) rowsOf(c cell, run, workspace uuid.UUID) (value, where string) {
	value = fmt.Sprintf("(%s)::%s", a.words.Replace(c.value), c.column.kind)
	where = "true"
	if c.column.scope != "" && !c.unscoped {
		where = strings.NewReplacer("$1", "'"+run.String()+"'", "$2", "'"+workspace.String()+"'").Replace(c.column.scope)
	}
	return value, fmt.Sprintf("%s AND %s IS DISTINCT FROM %s", where, pgx.Identifier{c.column.name}.Sanitize(), value)
}

func (a *altered) update(c cell, run, workspace uuid.UUID) string {
	value, where := a.rowsOf(c, run, workspace)
	return fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s", c.column.table, pgx.Identifier{c.column.name}.Sanitize(), value, where)
}

// asks is the statement that makes a call as the gateway does.
func (a *altered) asks(c call) string {
	arguments := make([]string, 0, 8)
	for _, argument := range a.functions[c.function] {
		value := fmt.Sprintf("(b ->> '%s')::%s", argument.name, argument.kind)
		switch {
		case argument.kind == "jsonb":
			value = fmt.Sprintf("b -> '%s'", argument.name)
		case strings.HasSuffix(argument.kind, "[]"):
			value = fmt.Sprintf("ARRAY(SELECT jsonb_array_elements_text(b -> '%s'))::%s", argument.name, argument.kind)
		}
		if strings.Contains(string(c.body), `"`+argument.name+`"`) {
			arguments = append(arguments, argument.name+" => "+value)
		}
	}
	return fmt.Sprintf("SELECT coalesce(jsonb_agg(to_jsonb(x) - 'queued_seconds'), '[]') FROM (SELECT '%s'::jsonb AS b) q, public.%s(%s) x",
		strings.ReplaceAll(string(c.body), "'", "''"), c.function, strings.Join(arguments, ", "))
}

// try makes an alteration, makes the calls that an agent makes next, and takes it all
// back. Without rows there was nothing to alter; a value that the table refuses is none.
//
// Guarded columns are altered without triggers. To switch these off and on has the server
// forget all its plans, so it is done for those alone.
func (a *altered) try(ctx context.Context, update string, guarded bool, next []call) (answers []string, rows int64, err error) {
	a.between.alone.Lock()
	defer a.between.alone.Unlock()
	defer func() {
		_, failed := a.hand.Exec(ctx, "ROLLBACK")
		err = errors.Join(err, failed)
	}()
	script := "BEGIN; SELECT 1; " + update + "; SELECT 1; SAVEPOINT altered; "
	if guarded {
		script = "BEGIN; SET LOCAL session_replication_role = replica; " + update + "; SET LOCAL session_replication_role = origin; SAVEPOINT altered; "
	}
	const update3rd, savepoint5th = 2, 5
	for n, c := range next {
		results, err := a.hand.PgConn().Exec(ctx, script+a.asks(c)).ReadAll()
		script = "ROLLBACK TO SAVEPOINT altered; "
		refused, is := errors.AsType[*pgconn.PgError](err)
		switch {
		case is && n == 0 && len(results) < savepoint5th && (strings.HasPrefix(refused.Code, "23") || strings.HasPrefix(refused.Code, "22")):
			return nil, 0, nil
		case err != nil && (!is || n == 0 && len(results) < savepoint5th):
			return nil, 0, err
		case n == 0:
			if rows = results[update3rd].CommandTag.RowsAffected(); rows == 0 {
				return nil, 0, nil
			}
		}
		if is {
			answers = append(answers, c.function+": error "+refused.Code+" "+refused.Detail)
		} else {
			answers = append(answers, c.function+": "+string(results[len(results)-1].Rows[0][0]))
		}
	}
	return answers, rows, nil
}

// tries is how long alterations are tried before one call: an agent that waits longer for
// an answer gives the call up. What is left is for the next run.
const tries = 5 * time.Second

// tryAll tries each value of columns before a step, and answers what the agent would see
// and how many columns it has come to: each of these was altered.
func (a *altered) tryAll(ctx context.Context, step string, c call, columns []column, run, workspace uuid.UUID) (seen []cell, tried int, err error) {
	began := time.Now()
	next := []call{c}
	if c.args.Claim != "" && c.function != "fetch_next_provision" {
		next = append(next, a.heartbeat(c.args.Claim))
	}
	unaltered, _, err := a.try(ctx, "SELECT 1", false, next)
	if err != nil {
		return nil, 0, err
	}
	if again, _, err := a.try(ctx, "SELECT 1", false, next); err != nil || !slices.Equal(again, unaltered) {
		return nil, 0, fmt.Errorf("%s: two answers to the same: %s, %s, %w", step, unaltered, again, err)
	}
	for _, column := range columns {
		altered := false
		for _, value := range column.values(special) {
			one := cell{step: step, column: column, value: value}
			answers, rows, err := a.try(ctx, a.update(one, run, workspace), column.guarded, next)
			if err == nil && rows == 0 && column.scope != "" {
				one.unscoped = true
				answers, rows, err = a.try(ctx, a.update(one, run, workspace), column.guarded, next)
			}
			if err != nil {
				return nil, tried, fmt.Errorf("%s: %w", one, err)
			}
			altered = altered || rows > 0
			for n, answer := range answers {
				if answer != unaltered[n] {
					one.answer = answer
					seen = append(seen, one)
					break
				}
			}
		}
		if tried++; !altered {
			return nil, tried, fmt.Errorf("before %q there is no row of %s, or no value to alter %s to", step, column.table, column)
		}
		if time.Since(began) > tries {
			break
		}
	}
	return seen, tried, nil
}

var (
	advice  = regexp.MustCompile(`^agent_heartbeat: \[\{"lost": \[\], "cancel": \[\], `)
	someID  = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	failure = regexp.MustCompile(`^(\w+): error (\w+)`)
)

// alike names what alterations have in common of which an agent is told the same, so that
// one of them is enough. Before which step that is matters for what a call answers, and
// for a heartbeat which says that the claim is lost or to be cancelled. It does not within
// a half of the run for a heartbeat's advice and refusals, and for what counts as an
// outage: an unknown token, and errors that are neither the contract's nor about the
// call's content.
func (c cell) alike() string {
	half, _, _ := strings.Cut(c.step, ":")
	failed := failure.FindStringSubmatch(c.answer)
	switch {
	case failed == nil && !strings.HasPrefix(c.answer, "agent_heartbeat"):
		return c.step + c.answer
	case failed == nil && advice.MatchString(c.answer):
		return half + c.answer
	case failed == nil:
		return c.step + someID.ReplaceAllString(c.answer, "")
	case failed[1] == "agent_heartbeat", failed[2] == "PT401", !strings.HasPrefix(failed[2], "PT") && !strings.HasPrefix(failed[2], "23"):
		return half + failed[0]
	case !strings.HasPrefix(failed[2], "PT"):
		return c.step + failed[0]
	}
	return c.step + someID.ReplaceAllString(c.answer, "")
}

// heartbeat is the one that the agent would send now.
func (a *altered) heartbeat(claim string) call {
	c := a.between.lastBeat()
	var body map[string]any
	if json.Unmarshal(c.body, &body) == nil {
		body["p_claims"] = []string{claim}
		c.body, _ = json.Marshal(body) // of what was read a moment ago
	}
	return c
}

// outcome is how a run ended that was altered.
type outcome struct {
	id, workspace uuid.UUID
	name          string
	calls         []call // since it began
	altered       bool
	restored      bool // the alteration was taken back, for the agent waited
	restarted     bool
	applied       []string // lines of the witness
	said          string   // what the agent has logged
}

// carry has a run carried out: before is called before each of its steps, and has altered
// something when it answers true; restore takes that back.
//
// A sealed value keeps a run from another workspace, repository or cluster by itself, so
// the other checks are seen in runs that have none.
func (a *altered) carry(sealed bool, before func(o *outcome, step string, c call) bool, restore func() error) (o *outcome, err error) {
	a.runs++
	o = &outcome{name: fmt.Sprintf("dev/%d", a.runs)}
	witnessed, err := os.ReadFile(a.witness)
	if err != nil {
		return o, err
	}
	said := a.agent.Out.String()
	from := 0 // of the calls: those since the alteration, or the approval
	var mu sync.Mutex
	mark := func() { mu.Lock(); from = len(a.between.since(0)); mu.Unlock() }
	act := func(step string, c call) {
		if before(o, step, c) {
			mu.Lock()
			o.altered = true
			mu.Unlock()
			mark()
		}
	}
	a.between.watch(act)
	err = a.between.begin("plan", func() error {
		values := map[string]any{"password": "correct-horse"}
		if !sealed {
			values = nil
		}
		o.id = deploySealed(a.Site, a.key, a.repo, o.name, map[string]any{"terraform_vars": map[string]any{"word": o.name}, "requester_key": a.ada.Recipient()}, values)
		mark() // that there was no work before says nothing
		return a.Conn.QueryRow(context.Background(), "SELECT workspace_id FROM public.provisions WHERE id = $1", o.id).Scan(&o.workspace)
	})
	asked := map[string]bool{}
	limit := patience.Begin(3 * site.Patience) // between its calls all else happens
	for err == nil {
		mu.Lock()
		altered, since := o.altered, from
		mu.Unlock()
		calls := a.between.since(since)
		over := idle(calls) >= 2
		var id, digest string
		err = a.Conn.QueryRow(context.Background(), "SELECT id::text, plan_digest FROM public.provisions WHERE status = 'AWAITING_APPROVAL' AND plan_digest IS NOT NULL LIMIT 1").Scan(&id, &digest)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			err = nil
		case err == nil && !asked[id+digest]:
			asked[id+digest], over = true, false
			err = a.between.begin("apply", func() error {
				body, err := json.Marshal(map[string]string{"p_provision": id, "p_plan_digest": digest})
				if err != nil {
					return err
				}
				act("approval: approve_provision", call{function: "approve_provision", body: body})
				if _, err := a.Conn.Exec(context.Background(), "SELECT public.approve_provision($1, $2)", id, digest); err == nil {
					a.approved[digest] = true // else it is refused, which is as good
				}
				return nil
			})
			mark()
		}
		select {
		case <-a.agent.Done:
			// It has said why, and whoever runs it starts it again.
			o.restarted = true
			err = errors.Join(err, restore())
			o.restored = true
			said, o.said = "", o.said+a.agent.Out.String()
			a.agent.Start()
			mark()
		default:
		}
		if altered && !o.restored && failing(calls) >= 4 {
			o.restored = true
			err = errors.Join(err, restore())
		}
		if err != nil || over {
			break
		}
		if limit.Over() {
			err = fmt.Errorf("the agent does not come to rest; its calls:\n%s", told(calls))
			break
		}
		limit.Pause()
	}
	o.calls = a.between.since(0)
	a.between.watch(nil)
	if !o.restored {
		err = errors.Join(err, restore())
	}
	o.said += strings.TrimPrefix(a.agent.Out.String(), said)
	now, failed := os.ReadFile(a.witness)
	o.applied = strings.Split(strings.TrimSpace(strings.TrimPrefix(string(now), string(witnessed))), "\n")
	return o, errors.Join(err, failed)
}

// told are the last of an agent's calls, with their answers.
func told(calls []call) string {
	var b strings.Builder
	for _, c := range calls[max(0, len(calls)-12):] {
		fmt.Fprintf(&b, "%s %.300s: %d %.300s\n", c.function, c.body, c.status, c.answer)
	}
	return b.String()
}

// alter makes an alteration that stays, and keeps what it takes to undo it.
func (a *altered) alter(c cell, o *outcome) error {
	a.between.alone.Lock()
	defer a.between.alone.Unlock()
	ctx := context.Background()
	value, where := a.rowsOf(c, o.id, o.workspace)
	_, err := a.hand.Exec(ctx, "BEGIN; SET LOCAL session_replication_role = replica; DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT *, "+value+" AS altered FROM "+c.column.table+" WHERE "+where)
	if err == nil {
		var tag pgconn.CommandTag
		if tag, err = a.hand.Exec(ctx, a.update(c, o.id, o.workspace)); err == nil && tag.RowsAffected() == 0 {
			err = errors.New("there is nothing to alter")
		}
	}
	_, failed := a.hand.Exec(ctx, "COMMIT") // which rolls back what has failed
	return errors.Join(err, failed)
}

// restore undoes it, whatever else has become of the rows.
func (a *altered) restore(c cell) error {
	a.between.alone.Lock()
	defer a.between.alone.Unlock()
	var same []string
	for _, key := range c.column.key {
		was := pgx.Identifier{"kept", key}.Sanitize()
		if key == c.column.name {
			was = "kept.altered"
		}
		same = append(same, pgx.Identifier{"t", key}.Sanitize()+" = "+was)
	}
	name, where := pgx.Identifier{c.column.name}.Sanitize(), strings.Join(same, " AND ")
	undo := func(statement string) error {
		_, err := a.Conn.Exec(context.Background(), "BEGIN; SET LOCAL session_replication_role = replica; "+statement)
		_, failed := a.Conn.Exec(context.Background(), "COMMIT") // which rolls back what has failed
		return errors.Join(err, failed)
	}
	err := undo(fmt.Sprintf("UPDATE %s t SET %s = kept.%s FROM kept WHERE %s", c.column.table, name, name, where))
	if refused, is := errors.AsType[*pgconn.PgError](err); is && refused.Code == "23505" {
		err = undo(fmt.Sprintf("DELETE FROM %s t USING kept WHERE %s", c.column.table, where)) // the agent has made the row again
	}
	return err
}

// sweep ends what a run has left in the rows, so that nobody takes it for work.
func (a *altered) sweep() error {
	_, err := a.Conn.Exec(context.Background(), `BEGIN; SET LOCAL session_replication_role = replica;
		UPDATE public.provisions SET status = 'CANCELLED' WHERE status NOT IN ('SUCCESS', 'FAILED', 'CANCELLED');
		UPDATE tendril.claims SET state = 'ended', ended_at = now() WHERE state <> 'ended';
		UPDATE public.workspaces SET head_id = NULL, head_number = NULL, head_priority = NULL, running_claim = NULL, held_by_claim = NULL, reserved_by = NULL, due_at = NULL;
		COMMIT`)
	return err
}

var witnessed = regexp.MustCompile(`^(good v\d dev/\d+\w*): of-dev$`)

// judge holds what an agent did against its policy.
func (a *altered) judge(o *outcome) (did string, problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	begun, claimed, ended := map[string]bool{}, "", ""
	for _, c := range o.calls {
		switch {
		case c.assigned():
			claimed, ended = c.args.Claim, ""
		case c.function == "update_provision_status" && c.status < 300 && c.args.Detail.Stage == "apply":
			if begun[c.args.Detail.PlanDigest] = true; !a.approved[c.args.Detail.PlanDigest] {
				wrong("an apply began of plan %q, which nobody has approved", c.args.Detail.PlanDigest)
			}
		case c.function == "update_provision_status" && c.args.Status != "PROCESSING" && c.args.Status != "AWAITING_APPROVAL":
			if ended = c.args.Status; ended != "SUCCESS" {
				if ended += "/" + c.args.Detail.Code; c.args.Detail.Code == "" || c.args.Detail.Message == "" {
					wrong("it ended without a reason: %s", c.body)
				}
			}
		}
		if strings.Contains(string(c.body), "correct-horse") {
			wrong("the sealed value leaves the agent: %s", c.body)
		}
		for _, output := range c.args.Detail.Outputs {
			if _, err := a.mallory.Open([]byte(output.Sealed), 1<<20); output.Sealed != "" && err == nil {
				wrong("mallory can open what the agent sent: %s", c.body)
			}
			if _, err := a.ada.Open([]byte(output.Sealed), 1<<20); output.Sealed != "" && err != nil {
				wrong("ada cannot open what the agent sealed, %v: %s", err, c.body)
			}
		}
	}
	consents, err := os.ReadFile(a.consents)
	if err != nil {
		wrong("%v", err)
	}
	lines := 0
	for _, line := range o.applied {
		if line == "" {
			continue
		}
		lines++
		match := witnessed.FindStringSubmatch(line)
		if match == nil || strings.Contains(line, "forbidden") {
			wrong("%q was applied", line)
			continue
		}
		if times := strings.Count(string(consents), o.name+": "+match[1]+"\n"); times < 2 {
			wrong("%q was applied, and the hook has consented %d times, want before and after the approval", line, times)
		}
	}
	if lines > len(begun) {
		wrong("%d things were applied in %d applies: %q", lines, len(begun), o.applied)
	}
	switch {
	case claimed == "":
		did = "not claimed"
	case ended != "":
		did = ended
	case over(o.said, claimed):
		did = "given up"
	case o.restarted:
		did = "ended itself"
	default:
		did = "silent"
		wrong("the agent took claim %s, and says nothing of its end", claimed)
	}
	if strings.Contains(o.said, "panic:") {
		wrong("a program panics")
	}
	if ended == "SUCCESS" && len(begun) > 0 && lines == 0 {
		wrong("it reports a success, and nothing was applied")
	}
	return did, problems
}

// everyCell says that each column is altered.
var everyCell = os.Getenv("TENDRIL_TEST_FAULTS") == "all"

// drawn says whether a column is altered where not all are.
func (c column) drawn(salt uint32) bool {
	watched := slices.ContainsFunc(seenAltered, func(cell string) bool { return strings.HasSuffix(cell, " | "+c.String()) })
	drawn := crc32.ChecksumIEEE([]byte(c.String())) ^ salt
	return watched || special[c.String()] != nil && drawn%16 == 0 || drawn%64 == 0
}

// carried says whether what an agent sees has a run of its own where not all that it sees has.
func (c cell) carried(salt uint32) bool {
	return slices.Contains(seenAltered, c.step+" | "+c.column.String()) || (crc32.ChecksumIEEE([]byte(c.alike()))^salt)%32 == 0
}

// alterations are what all worlds of the suite share.
type alterations struct {
	*testing.T
	mu sync.Mutex
	// tried counts, by step, the columns that were altered and taken back.
	tried map[string]int
	known map[string]bool // of what an agent is told
	seen  map[string]bool // a column before a step
	cells []cell          // to be carried out
	salt  uint32          // of what is drawn
	did   map[string]int  // how runs ended
}

// over says whether an agent's log tells what became of a claim.
func over(said, claim string) bool {
	for line := range strings.Lines(said) {
		if strings.Contains(line, claim) && !strings.Contains(line, "msg=started") && !strings.Contains(line, `msg="stored the plan`) {
			return true
		}
	}
	return false
}

// Whoever owns the database alters each column of each table that an agent reads, between
// each two steps of a run, and the agent refuses, or does what its policy allows. It is a
// function of what it is told: so each alteration is made and taken back while the agent
// waits for an answer, and one that changes the answer is made once more, to stay, in a
// run of its own. With TENDRIL_TEST_FAULTS=all that is every column; else it is those
// that seenAltered names, a sixteenth of the others that would serve somebody and a sixty-fourth of
// the rest, drawn at random; and of what an agent then sees one in thirty-two has a run of its own, and
// each of seenAltered.
func TestEveryColumnAltered(t *testing.T) {
	t.Parallel()
	worlds := 2
	if everyCell {
		worlds = 4
	}
	s := &alterations{T: t, tried: map[string]int{}, known: map[string]bool{}, seen: map[string]bool{}, did: map[string]int{}, salt: rand.Uint32()}
	var running, trying sync.WaitGroup
	trying.Add(worlds)
	columns, began := 0, time.Now()
	for n := range worlds {
		a := newAltered(t)
		a.prepare(t)
		if columns = len(a.columns); columns < 300 {
			t.Errorf("agents read %d columns, want the 330 of when this was written, or about as many", columns)
		}
		for _, c := range a.columns {
			if len(c.values(special)) == 0 {
				t.Errorf("there is no value to alter %s to, which is %s", c, c.kind)
			}
		}
		if !everyCell {
			a.columns = slices.DeleteFunc(a.columns, func(c column) bool { return !c.drawn(s.salt) })
			columns = len(a.columns)
		}
		running.Go(func() {
			tried := sync.OnceFunc(trying.Done)
			defer tried()
			if !s.try(a, n, worlds) {
				return
			}
			tried()
			trying.Wait()
			t.Logf("tried after %s", time.Since(began))
			for one := s.next(); one != nil; one = s.next() {
				s.carry(a, *one, true)
				if strings.HasPrefix(one.answer, "fetch_next_provision") {
					s.carry(a, *one, false)
				}
			}
			s.afterwards(a)
		})
	}
	running.Wait()
	if len(s.tried) != len(stepsOfARun) {
		t.Errorf("steps of a run = %q, want %q", slices.Sorted(maps.Keys(s.tried)), stepsOfARun)
	}
	for _, step := range stepsOfARun {
		if s.tried[step] != columns {
			t.Errorf("before %q %d columns were altered, want all %d", step, s.tried[step], columns)
		}
	}
	for _, want := range seenAltered {
		if !s.seen[want] {
			t.Errorf("an agent does not see %s altered", want)
		}
	}
	t.Logf("%d cells of a column and a step were altered and taken back, of which agents see %d; runs with one: %v", len(stepsOfARun)*columns, len(s.seen), s.did)
	if !everyCell {
		return
	}
	for _, want := range []string{"SUCCESS", "FAILED/workspace_changed", "FAILED/plan_invalid", "FAILED/policy_refused", "FAILED/tag_moved", "CANCELLED/cancelled", "not claimed", "given up"} {
		if s.did[want] == 0 {
			t.Errorf("no run with something altered ended as %q", want)
		}
	}
}

// seenAltered are columns, before a step, whose alteration an agent sees.
var seenAltered = []string{
	"plan: fetch_next_provision | public.provisions.config_snapshot", "plan: fetch_next_provision | public.workspaces.name", "plan: fetch_next_provision | public.clusters.paused_at",
	"plan: get_blob state | public.workspaces.state_version", "plan: PROCESSING checkout | public.cluster_pins.commit", "plan: PROCESSING plan | tendril.claims.cancel_requested_at",
	"plan: AWAITING_APPROVAL | tendril.blobs.digest", "approval: approve_provision | public.provisions.plan_digest",
	"apply: fetch_next_provision | public.provisions.plan_digest", "apply: get_blob plan | tendril.blobs.meta", "apply: get_blob plan | tendril.blob_parts.data",
	"apply: PROCESSING apply | tendril.claims.lease_until", "apply: put_blob state | tendril.claims.state", "apply: SUCCESS done | tendril.claims.state",
}

var stepsOfARun = []string{
	"plan: fetch_next_provision", "plan: get_blob state", "plan: insert_provision_log", "plan: PROCESSING checkout", "plan: PROCESSING validate",
	"plan: PROCESSING engine", "plan: PROCESSING init", "plan: PROCESSING plan", "plan: PROCESSING", "plan: put_blob plan", "plan: AWAITING_APPROVAL",
	"approval: approve_provision",
	"apply: fetch_next_provision", "apply: get_blob plan", "apply: get_blob state", "apply: insert_provision_log", "apply: PROCESSING checkout",
	"apply: PROCESSING validate", "apply: PROCESSING engine", "apply: PROCESSING init", "apply: PROCESSING apply", "apply: PROCESSING",
	"apply: put_blob state", "apply: PROCESSING outputs", "apply: SUCCESS done",
}

// try alters a world's share of the columns before each step of runs, and takes it back.
func (s *alterations) try(a *altered, n, worlds int) bool {
	var share []column
	for i, column := range a.columns {
		if i%worlds == n {
			share = append(share, column)
		}
	}
	come := map[string]int{} // how far, by step
	for left := true; left; {
		left = false
		o, err := a.carry(true, func(o *outcome, step string, c call) bool {
			if come[step] == len(share) {
				return false
			}
			found, count, err := a.tryAll(context.Background(), step, c, share[come[step]:], o.id, o.workspace)
			if err != nil {
				s.Error(err)
			}
			come[step] += count
			left = left || come[step] < len(share) && err == nil
			s.mu.Lock()
			defer s.mu.Unlock()
			s.tried[step] += count
			for _, one := range found {
				s.seen[one.step+" | "+one.column.String()] = true
				if !s.known[one.alike()] && (everyCell || one.carried(s.salt)) {
					s.known[one.alike()] = true
					s.cells = append(s.cells, one)
				}
			}
			return false
		}, func() error { return nil })
		ended, problems := a.judge(o)
		if err != nil || ended != "SUCCESS" || len(problems) > 0 {
			s.Errorf("with nothing altered: %s, %q, %v\n%s", ended, problems, err, o.said)
			return false
		}
	}
	return true
}

func (s *alterations) next() *cell {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cells) == 0 {
		return nil
	}
	one := s.cells[0]
	s.cells = s.cells[1:]
	return &one
}

// carry has a run carried out with something altered.
func (s *alterations) carry(a *altered, one cell, sealed bool) {
	began := time.Now()
	o, err := a.carry(sealed, func(o *outcome, step string, _ call) bool {
		if step != one.step || o.altered {
			return false
		}
		if err := a.alter(one, o); err != nil {
			s.Errorf("%s: %v", one, err)
		}
		return true
	}, func() error { return a.restore(one) })
	ended, problems := a.judge(o)
	if err != nil || !o.altered {
		s.Errorf("%s: %s, altered %v: %v", one, ended, o.altered, err)
	}
	for _, problem := range problems {
		s.Errorf("%s: %s: %s\nthe agent's log:\n%s", one, ended, problem, o.said)
	}
	if err := a.sweep(); err != nil {
		s.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did[ended]++
	s.Logf("%s: told %.300s: %s in %s", one, one.answer, ended, time.Since(began))
}

// afterwards looks at what is left: prod as it was, the agent at work, and nothing that
// mallory can open.
func (s *alterations) afterwards(a *altered) {
	ctx := context.Background()
	again := a.deploy("prod/db", "prod/db-again", nil)
	a.Await("the plan of prod", "SELECT status NOT IN ('QUEUED', 'PROCESSING') FROM public.provisions WHERE id = $1", again)
	a.Exec(s, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE id = $1 AND status = 'AWAITING_APPROVAL'", again)
	if got := a.AwaitEnd(again); got != "SUCCESS" {
		s.Errorf("prod afterwards: %s: %s", got, a.Message(again))
	}
	lines, err := os.ReadFile(a.witness)
	var ofProd []string
	for line := range strings.Lines(string(lines)) {
		if strings.Contains(line, "prod") {
			ofProd = append(ofProd, line)
		}
	}
	if want := []string{"good v1 prod/db: of-prod\n", "good v1 prod/db-again: of-prod\n"}; err != nil || !slices.Equal(ofProd, want) {
		s.Errorf("what was applied in prod = %q, %v, want %q", ofProd, err, want)
	}
	rows, err := a.Conn.Query(ctx, "SELECT data FROM tendril.blob_parts")
	if err != nil {
		s.Error(err)
		return
	}
	blobs, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil || len(blobs) == 0 {
		s.Errorf("blobs = %d, %v", len(blobs), err)
	}
	for _, blob := range blobs {
		if _, err := a.mallory.Open(blob, 1<<20); err == nil {
			s.Error("mallory can open what is stored")
		}
	}
}

// prepare makes what an agent's functions may read: a workspace of prod's, and a row of
// each table.
func (a *altered) prepare(t *testing.T) {
	ctx := context.Background()
	var err error
	if a.hand, err = pgx.Connect(ctx, a.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.hand.Close(ctx) })
	tables, err := readByAgents(ctx, a.Conn)
	if err == nil {
		a.columns, err = columns(ctx, a.Conn, tables)
	}
	if err != nil {
		t.Fatal(err)
	}
	// As a superuser can, for the sake of values that a constraint refuses.
	freed, err := names(ctx, a.Conn, `SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) FROM pg_constraint
		WHERE contype = 'c' AND conrelid::regclass = ANY ($1::text[]::regclass[])
		UNION ALL SELECT format('ALTER TABLE %s ALTER COLUMN %I SET GENERATED BY DEFAULT', attrelid::regclass, attname) FROM pg_attribute
		WHERE attidentity = 'a' AND attrelid::regclass = ANY ($1::text[]::regclass[])`, tables)
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range freed {
		a.Exec(t, statement)
	}
	rows, err := a.Conn.Query(ctx, `SELECT proname, unnest(proargnames[1:pronargs]), format_type(unnest(proargtypes), NULL) FROM pg_proc
		WHERE pronamespace = 'public'::regnamespace AND (has_function_privilege('tendril_agent', oid, 'EXECUTE') OR proname = 'approve_provision')`)
	if err != nil {
		t.Fatal(err)
	}
	a.functions = map[string][]argument{}
	var function string
	var one argument
	if _, err := pgx.ForEachRow(rows, []any{&function, &one.name, &one.kind}, func() error {
		a.functions[function] = append(a.functions[function], one)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	other, _ := a.NewCluster(t, "other")
	a.Exec(t, `INSERT INTO tendril.persons (user_id, name, email, email_verified) VALUES ($1, 'x', 'x@example.com', true) ON CONFLICT DO NOTHING`, instance.LocalUser)
	a.Exec(t, `INSERT INTO tendril.credentials (kind, user_id, digest, label, powers, audience, client, expires_at, last_used_at) VALUES ('api_token', $1, sha256('x'), 'x', '{"change": "propose"}', 'https://trellis.example/mcp', 'x', now() + interval '1 day', now())`, instance.LocalUser)
	a.Exec(t, `INSERT INTO tendril.nonces (public_key, nonce, until) VALUES (sha256('key'), repeat('n', 16), now() + interval '1 day')`)
	a.Exec(t, `WITH k AS (INSERT INTO tendril.agent_keys (cluster_id, public_key, name, parent, created_by, expires_at, last_used_at, last_address)
			VALUES ($1, sha256('key'), 'by key', gen_random_uuid(), gen_random_uuid(), now() + interval '1 day', now(), '127.0.0.1') RETURNING id)
		INSERT INTO tendril.identity_shares (key_id, shared_by, sealed, expires_at) SELECT id, gen_random_uuid(), 'x', now() + interval '1 day' FROM k`, a.Cluster)
	a.Exec(t, `INSERT INTO tendril.trusted_issuers (cluster_id, issuer, audience, subjects, keys, created_by, expires_at, last_used_at)
		VALUES ($1, 'https://x', 'x', '{x}', '{}', gen_random_uuid(), now() + interval '1 day', now())`, a.Cluster)
	a.Exec(t, `INSERT INTO tendril.key_accounts (key_id, issuer, subject, pod, pod_uid, token_digest) SELECT id, 'x', 'x', 'x', 'x', sha256('x') FROM tendril.agent_keys WHERE name = 'by key'`)
	a.Exec(t, `INSERT INTO public.people (org_id, user_id, name, email) VALUES ($1, $2, 'x', 'x@example.com') ON CONFLICT DO NOTHING`, a.Org, instance.LocalUser)
	a.Exec(t, `INSERT INTO public.webhooks (id, org_id, name, kind, host, events) VALUES (gen_random_uuid(), $1, 'hook', 'generic', 'example.com', '{success}')`, a.Org)
	a.Exec(t, `INSERT INTO public.webhook_deliveries (id, org_id, webhook_id, event, payload, status) SELECT gen_random_uuid(), org_id, id, 'success', '{}', 'delivered' FROM public.webhooks`)
	a.Exec(t, `INSERT INTO public.templates (org_id, name, repo, path, version, approval) VALUES ($1, 'good', $2, '', 'v1', 'always')`, a.Org, a.repo)
	a.Exec(t, `SELECT tendril.record_tags($1, $2, '[{"tag": "v1", "commit": "x"}]')`, a.Org, a.repo)
	a.Exec(t, `INSERT INTO public.template_inspections (org_id, repo, version, path, address, status) VALUES ($1, $2, 'v1', '', $2, 'done')`, a.Org, a.repo)
	a.Exec(t, `INSERT INTO tendril.cluster_usage (cluster_id, org_id, measured_at, agents, blob_bytes, pins, inspections) VALUES ($1, $2, now(), 1, 1, 1, 1) ON CONFLICT DO NOTHING`, a.Cluster, a.Org)
	victim := a.deploy("prod/db", "prod/db", nil)
	a.Await("the plan of prod", "SELECT status = 'AWAITING_APPROVAL' FROM public.provisions WHERE id = $1", victim)
	a.Exec(t, "INSERT INTO tendril.runners (claim_id, digest) SELECT id, sha256('x') FROM tendril.claims LIMIT 1")
	a.Exec(t, "INSERT INTO tendril.runners (claim_id, public_key) SELECT id, sha256('y') FROM tendril.claims WHERE id NOT IN (SELECT claim_id FROM tendril.runners) LIMIT 1")
	a.Exec(t, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE id = $1", victim)
	if got := a.AwaitEnd(victim); got != "SUCCESS" {
		t.Fatalf("prod: %s: %s", got, a.Message(victim))
	}
	a.Exec(t, `INSERT INTO tendril.watched (provision_id, until) VALUES ($1, now() + interval '1 day')`, victim)
	a.Exec(t, `INSERT INTO public.machines (org_id, workspace_id, name, status, provision_id) SELECT org_id, workspace_id, 'm', 'running', id FROM public.provisions WHERE id = $1`, victim)
	a.Exec(t, `INSERT INTO public.provision_inputs (provision_id, org_id, request, expires_at, reminded_at, assigned_to, answer, answered_at, answered_by)
		SELECT id, org_id, '{"instructions": "x", "outputs": [], "machines": []}', now(), now(), gen_random_uuid(), '{"done": true}', now(), gen_random_uuid() FROM public.provisions WHERE id = $1`, victim)
	a.Exec(t, `INSERT INTO tendril.machine_checks (machine_id, workspace_id, cluster_id, due_at, doubt_at, spec, leased_by) SELECT id, workspace_id, $1, now() + interval '1 day', now() + interval '1 day', '{"interval": 30, "timeout": 5, "healthy_after": 1, "unhealthy_after": 1}', gen_random_uuid() FROM public.machines`, a.Cluster)
	a.Exec(t, `INSERT INTO public.pools (org_id, cluster_id, name, kind, problem, reported_by, reported_at) VALUES ($1, $2, 'lab', 'static', 'away', gen_random_uuid(), now())`, a.Org, a.Cluster)
	a.Exec(t, `INSERT INTO public.pool_nodes (pool_id, org_id, name, online, cores, memory_mib, measured_at) SELECT id, org_id, 'n', true, 8, 8192, now() FROM public.pools`)
	a.Exec(t, `INSERT INTO public.reservations (org_id, pool_id, workspace_id, name, node, cores, memory_mib, spread, together, vm_id, address, why, provision_id)
		SELECT m.org_id, p.id, m.workspace_id, m.name, 'n', 1, 1024, 's', 't', 100, '10.0.0.1', 'the only one', m.provision_id FROM public.machines m, public.pools p`)
	a.Exec(t, `INSERT INTO public.pool_quotas (org_id, pool_id, machines, cores, memory_mib, set_by) SELECT org_id, id, 1, 1, 1024, gen_random_uuid() FROM public.pools`)
	a.Exec(t, `INSERT INTO public.pool_images (org_id, pool_id, image, name) SELECT org_id, id, 'debian', 'debian-12' FROM public.pools`)
	a.Exec(t, `INSERT INTO public.template_pins (org_id, repo, version, commit, pinned_by) SELECT org_id, repo, version, commit, 'admin' FROM public.cluster_pins ON CONFLICT DO NOTHING`)
	for _, table := range tables { // whichever columns are drawn
		if a.Text(t, "SELECT count(*)::text FROM "+table) == "0" {
			t.Fatalf("there is no row of %s to alter: make one above", table)
		}
	}
	a.words = strings.NewReplacer("OTHER", other.String(), "VICTIM", victim.String(), "EVIL", a.evil, "MALLORY", a.mallory.Recipient(),
		"PROD", a.Text(t, "SELECT workspace_id::text FROM public.provisions WHERE id = $1", victim))
}

// special are values that would serve somebody who owns the database.
var special = func() map[string][]string {
	snapshot := func(path, value string) string {
		return "jsonb_set(config_snapshot, '{" + path + "}', '" + value + "')"
	}
	prods := func(what string) string {
		return "(SELECT " + what + " FROM tendril.blobs b JOIN tendril.blob_parts p ON p.blob_id = b.id WHERE b.kind = 'state' AND b.workspace_id = 'PROD' LIMIT 1)"
	}
	return map[string][]string{
		"public.provisions.config_snapshot": {
			snapshot("template_source,repo", `"EVIL"`), snapshot("template_source,version", `"v2"`), snapshot("template_source,path", `"elsewhere"`),
			snapshot("terraform_vars,word", `"dev/forbidden"`), snapshot("terraform_vars,word", `"dev/0other"`), snapshot("workspace", `"prod/db"`),
			snapshot("requester_key", `"MALLORY"`), snapshot("approval", `"never"`), snapshot("terraform", `{"engine": "terraform", "version": "0.11.0"}`),
			snapshot("state", `{"command": "pull"}`), snapshot("sealed_vars", "null"),
		},
		"public.provisions.workspace_id": {"'PROD'"}, "tendril.claims.workspace_id": {"'PROD'"}, "tendril.blobs.workspace_id": {"'PROD'"},
		"public.provisions.cluster_id": {"'OTHER'"}, "public.workspaces.cluster_id": {"'OTHER'"}, "tendril.claims.cluster_id": {"'OTHER'"},
		"tendril.cluster_tokens.cluster_id": {"'OTHER'"}, "tendril.blobs.cluster_id": {"'OTHER'"},
		"public.workspaces.name": {"'prod/other'"}, "public.workspaces.head_id": {"'VICTIM'"},
		"tendril.claims.provision_id": {"'VICTIM'"}, "tendril.blobs.provision_id": {"'VICTIM'"},
		"public.clusters.age_public_key": {"'MALLORY'"},
		"tendril.blob_parts.data":        {prods("p.data")}, "tendril.blobs.meta": {prods("b.meta")}, "tendril.blobs.digest": {prods("b.digest")},
	}
}()
