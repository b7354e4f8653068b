package queuetest

import (
	"crypto/sha256"
	_ "embed" // of what was recorded
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// What the first agent there was, of contract 1, asked of its database: one run
// that succeeds, one with a wrong variable, and one that it is killed in, with
// the starts between. Recorded from its process, by PostgreSQL; identifiers are
// replaced by ${…}.
//
//go:embed testdata/first_agent.jsonl
var firstAgent string

// Recorded is one call of an agent, as its statement and by the names of its
// function's parameters.
type Recorded struct {
	// Deploy names a workspace on which something is queued now. There is no
	// call then.
	Deploy   string            `json:"deploy"`
	Function string            `json:"function"`
	SQL      string            `json:"sql"`
	Names    []string          `json:"names"`
	Values   []json.RawMessage `json:"values"`
}

// Body is the call as PostgREST takes it.
func (r Recorded) Body(t testing.TB) []byte {
	t.Helper()
	arguments := map[string]json.RawMessage{}
	for i, name := range r.Names {
		arguments[name] = r.Values[i]
	}
	body, err := json.Marshal(arguments)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// Arguments are the values as the agent gave them to its statement.
func (r Recorded) Arguments(t testing.TB) []any {
	t.Helper()
	arguments := make([]any, len(r.Values))
	for i, value := range r.Values {
		var err error
		switch r.Names[i] {
		case "p_agent", "p_chunks", "p_detail":
			arguments[i] = string(value) // it says ::text::jsonb
		case "p_claims":
			arguments[i], err = read[[]uuid.UUID](value)
		case "p_first_chunk":
			arguments[i], err = read[int64](value)
		default:
			arguments[i], err = read[string](value)
		}
		if err != nil {
			t.Fatalf("%s of %s: %v", r.Names[i], r.Function, err)
		}
	}
	return arguments
}

func read[T any](value json.RawMessage) (T, error) {
	var as T
	err := json.Unmarshal(value, &as)
	return as, err
}

// FirstAgent plays the first agent's calls against a world. ask makes one and
// returns the answer as JSON: of setof functions a list, of void ones "" or null.
func FirstAgent(t *testing.T, w *World, ask func(t *testing.T, call Recorded) []byte) {
	t.Helper()
	sum := sha256.Sum256([]byte(w.Token))
	ids := map[string]string{"${hash}": hex.EncodeToString(sum[:])}
	placeholder := regexp.MustCompile(`\$\{[^}]*\}`)
	provisions, said := map[string]uuid.UUID{}, map[string]string{}
	// A database takes an agent's times within a day of its own.
	told := regexp.MustCompile(`"at": "[^"]*"`).ReplaceAllString(firstAgent, `"at": "`+time.Now().UTC().Format(time.RFC3339Nano)+`"`)
	for line := range strings.Lines(told) {
		line = placeholder.ReplaceAllStringFunc(line, func(name string) string {
			if ids[name] == "" {
				ids[name] = uuid.NewString()
			}
			return ids[name]
		})
		var call Recorded
		if err := json.Unmarshal([]byte(line), &call); err != nil {
			t.Fatalf("%.100s: %v", line, err)
		}
		if call.Deploy != "" {
			provisions[call.Deploy] = w.Deploy(t, call.Deploy)
			continue
		}
		answered := answers{call, ids, provisions}
		if err := answered.check(ask(t, call)); err != nil {
			t.Fatalf("%s: %v", call.Body(t), err)
		}
		workspace, text := answered.said()
		said[workspace] += text
	}
	wantFirstAgentsRows(t, w, provisions, said)
}

func wantFirstAgentsRows(t *testing.T, w *World, provisions map[string]uuid.UUID, said map[string]string) {
	t.Helper()
	for workspace, want := range map[string]struct {
		status string
		rows   int
		after  string // what the database itself adds to the log
	}{
		"a": {status: "SUCCESS", rows: 13},
		"b": {status: "FAILED/variables_invalid", rows: 3},
		"c": {"FAILED/agent_restarted", 7, "was restarted during stage apply"},
	} {
		id := provisions[workspace]
		if got := w.Status(t, id); got != want.status {
			t.Errorf("%s = %s, want %s", workspace, got, want.status)
		}
		after, began := strings.CutPrefix(w.Log(t, id), said[workspace])
		if !began || (after == "") != (want.after == "") || !strings.Contains(after, want.after) {
			t.Errorf("the log of %s does not have what the agent sent, once and in order, and then %q:\n%s", workspace, want.after, w.Log(t, id))
		}
		if got := w.Text(t, "SELECT count(*)::text FROM public.provision_logs WHERE provision_id = $1", id); got != fmt.Sprint(want.rows) {
			t.Errorf("%s has %s rows, want %d", workspace, got, want.rows)
		}
	}
	got := w.Text(t, `SELECT concat_ws(' ', length(resolved_commit), engine, plan_summary ->> 'add', outputs -> 'greeting' -> 'value' ->> 'text', outputs -> 'secret' ? 'value')
		FROM public.provisions WHERE id = $1`, provisions["a"])
	if want := "40 terraform 1 hello world f"; got != want {
		t.Errorf("recorded of a = %q, want %q", got, want)
	}
}

// answers is what the first agent made of what it was told.
type answers struct {
	call       Recorded
	ids        map[string]string
	provisions map[string]uuid.UUID
}

func (a answers) check(answer []byte) error {
	switch a.call.Function {
	case "register_agent":
		var r struct {
			ClusterID   uuid.UUID `json:"cluster_id"`
			ClusterName string    `json:"cluster_name"`
			Contract    int       `json:"contract"`
			Heartbeat   float64   `json:"heartbeat_seconds"`
			Lease       float64   `json:"lease_seconds"`
		}
		if err := json.Unmarshal(answer, &r); err != nil {
			return err
		}
		if r.ClusterID == uuid.Nil || r.ClusterName != "prod" || r.Contract < 1 || r.Heartbeat != 10 || r.Lease != 120 {
			return fmt.Errorf("answered %s", answer)
		}
	case "agent_heartbeat":
		var p struct {
			Cancel, Lost []uuid.UUID
			Poll         float64 `json:"poll_seconds"`
			Heartbeat    float64 `json:"heartbeat_seconds"`
		}
		if err := json.Unmarshal(answer, &p); err != nil {
			return err
		}
		if p.Cancel == nil || p.Lost == nil || len(p.Cancel) > 0 || p.Poll <= 0 || p.Heartbeat <= 0 {
			return fmt.Errorf("answered %s", answer)
		}
	case "fetch_next_provision":
		return a.assignment(answer)
	case "insert_provision_log":
		return a.number(answer)
	case "update_provision_status":
		if len(answer) > 0 && string(answer) != "null" && string(answer) != `""` {
			return fmt.Errorf("answered %s, want nothing", answer)
		}
	case "fail_orphaned_provisions":
		return a.orphans(answer)
	default:
		return fmt.Errorf("nobody knows what it should answer")
	}
	return nil
}

// number checks the number of the next chunk.
func (a answers) number(answer []byte) error {
	first, firstErr := read[int64](a.call.Values[2])
	chunks, chunksErr := read[[]json.RawMessage](a.call.Values[3])
	next, err := read[int64](answer)
	if err := errors.Join(firstErr, chunksErr, err); err != nil {
		return err
	}
	// A call without chunks asks which is expected.
	if len(chunks) > 0 && next != first+int64(len(chunks)) || next < first {
		return fmt.Errorf("answered %s, want the next chunk's number", answer)
	}
	return nil
}

// orphans checks that the killed run is ended, by the start after.
func (a answers) orphans(answer []byte) error {
	orphans, err := read[[]uuid.UUID](answer)
	if err != nil {
		return err
	}
	var want []uuid.UUID
	if string(a.call.Values[2]) == `"`+a.ids["${boot 3}"]+`"` {
		want = []uuid.UUID{a.provisions["c"]}
	}
	if !slices.Equal(orphans, want) {
		return fmt.Errorf("answered %s, want %v", answer, want)
	}
	return nil
}

// said is what the call adds to the log of a workspace's run.
func (a answers) said() (workspace, text string) {
	if a.call.Function != "insert_provision_log" {
		return "", ""
	}
	var chunks []struct{ Text string }
	_ = json.Unmarshal(a.call.Values[3], &chunks) // has been read before
	for _, c := range chunks {
		text += c.Text
	}
	for name, id := range a.ids {
		if string(a.call.Values[1]) == `"`+id+`"` {
			workspace = strings.TrimSuffix(strings.TrimPrefix(name, "${claim "), "}")
		}
	}
	return workspace, text
}

// assignment checks a row, or none: a claim that got one is called by its
// workspace.
func (a answers) assignment(answer []byte) error {
	var rows []struct {
		ClaimID        string          `json:"claim_id"`
		ProvisionID    uuid.UUID       `json:"provision_id"`
		Number         int64           `json:"number"`
		WorkspaceID    uuid.UUID       `json:"workspace_id"`
		WorkspaceName  string          `json:"workspace_name"`
		Operation      string          `json:"operation"`
		ConfigSnapshot json.RawMessage `json:"config_snapshot"`
		PinnedCommit   string          `json:"pinned_commit"`
	}
	if err := json.Unmarshal(answer, &rows); err != nil {
		return fmt.Errorf("answered %s: %w", answer, err)
	}
	for workspace, id := range a.provisions {
		claim := a.ids["${claim "+workspace+"}"]
		if string(a.call.Values[3]) != `"`+claim+`"` {
			continue
		}
		if len(rows) != 1 || rows[0].ClaimID != claim || rows[0].ProvisionID != id || rows[0].WorkspaceName != workspace ||
			rows[0].Number < 1 || rows[0].WorkspaceID == uuid.Nil || rows[0].Operation != "apply" || !strings.Contains(string(rows[0].ConfigSnapshot), "git.example") {
			return fmt.Errorf("answered %s, want what is queued on %s", answer, workspace)
		}
		return nil
	}
	if len(rows) != 0 {
		return fmt.Errorf("answered %s, want nothing", answer)
	}
	return nil
}
