package sql_test

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// contractState is what the tables hold: the model's idea of it, or as it was
// read. Ids are uuid.Nil where the table has null; numbers count from 1 in
// their order.
type contractState struct {
	Workspaces map[uuid.UUID]*workspaceRow `json:"workspaces"`
	Provisions map[uuid.UUID]*provisionRow `json:"provisions"`
	Claims     map[uuid.UUID]*claimRow     `json:"claims"`
	Logs       map[uuid.UUID][]logRow      `json:"logs"`
}

type workspaceRow struct {
	Cluster  uuid.UUID `json:"cluster"`
	Running  uuid.UUID `json:"running"`
	Held     uuid.UUID `json:"held"`
	Reserved uuid.UUID `json:"reserved"`
	Head     uuid.UUID `json:"head"`
	Unsaved  uuid.UUID `json:"unsaved"`
	Locked   string    `json:"locked"` // a person's reason
	Due      bool      `json:"due"`    // what it is reserved for has a time
}

type provisionRow struct {
	Workspace uuid.UUID `json:"workspace"`
	Number    int       `json:"number"`
	Priority  int       `json:"priority"`
	Status    string    `json:"status"`
	Code      string    `json:"code"`
	Approved  bool      `json:"approved"`
	RetryOf   uuid.UUID `json:"retry_of"`
	Operation string    `json:"operation"`
	Approval  string    `json:"approval"` // what its snapshot says
	Most      int       `json:"most"`     // attempts
	Attempt   int       `json:"attempt"`
	Plan      string    `json:"plan"`     // "", "calm" or "destroys"
	Stored    bool      `json:"stored"`   // the plan's bundle
	SetDown   bool      `json:"set_down"` // once at least
}

type claimRow struct {
	Number     int       `json:"number"`
	Provision  uuid.UUID `json:"provision"`
	Workspace  uuid.UUID `json:"workspace"`
	Instance   uuid.UUID `json:"instance"`
	Boot       uuid.UUID `json:"boot"`
	Host       string    `json:"host"`
	State      string    `json:"state"`
	ApplyBegun bool      `json:"apply_begun"`
	Cancel     bool      `json:"cancel"`
	Expired    bool      `json:"expired"` // running, and its lease has run out
	NextChunk  int       `json:"next_chunk"`
	LastReport int       `json:"last_report"`
	Detachable bool      `json:"detachable"` // its work goes on by itself
	SetDown    bool      `json:"set_down"`
	InVain     bool      `json:"in_vain"` // it could not take up what was set down
}

// logRow is a row of a provision's log. Of a SYSTEM line the model knows a few
// words only.
type logRow struct {
	Seq    int    `json:"seq"`
	Stream string `json:"stream"`
	Text   string `json:"text"`
}

func newContractState() *contractState {
	return &contractState{
		Workspaces: map[uuid.UUID]*workspaceRow{}, Provisions: map[uuid.UUID]*provisionRow{},
		Claims: map[uuid.UUID]*claimRow{}, Logs: map[uuid.UUID][]logRow{},
	}
}

const readState = `SELECT jsonb_build_object(
	'workspaces', (SELECT jsonb_object_agg(id, jsonb_build_object('cluster', cluster_id, 'running', running_claim, 'held', held_by_claim,
		'reserved', reserved_by, 'due', due_at IS NOT NULL, 'head', head_id, 'unsaved', unsaved_state_on, 'locked', coalesce(lock_reason, ''))) FROM public.workspaces),
	'provisions', (SELECT jsonb_object_agg(id, jsonb_build_object('workspace', workspace_id, 'number', rank, 'priority', priority,
		'status', status, 'code', coalesce(error_code, ''), 'approved', approved_plan IS NOT NULL, 'retry_of', retry_of,
		'operation', operation, 'approval', config_snapshot ->> 'approval', 'most', config_snapshot -> 'max_attempts', 'attempt', attempt,
		'plan', CASE plan_summary ->> 'destroy' WHEN '0' THEN 'calm' WHEN '1' THEN 'destroys' ELSE '' END,
		'stored', EXISTS (SELECT FROM tendril.blobs b WHERE b.provision_id = p.id AND b.kind = 'plan'),
		'set_down', EXISTS (SELECT FROM tendril.claims c WHERE c.provision_id = p.id AND c.set_down_at IS NOT NULL))) FROM (SELECT *, row_number() OVER (ORDER BY number) AS rank FROM public.provisions) p),
	'claims', (SELECT jsonb_object_agg(id, jsonb_build_object('number', rank, 'provision', provision_id, 'workspace', workspace_id,
		'instance', instance_id, 'boot', boot_id, 'host', concat_ws(':', host, directory), 'state', state, 'apply_begun', apply_begun_at IS NOT NULL,
		'cancel', cancel_requested_at IS NOT NULL, 'expired', state = 'running' AND lease_until < clock_timestamp(),
		'next_chunk', next_chunk, 'last_report', last_report, 'detachable', plan_digest IS NOT NULL,
		'set_down', set_down_at IS NOT NULL, 'in_vain', take_up_failure IS NOT NULL)) FROM (SELECT *, row_number() OVER (ORDER BY number) AS rank FROM tendril.claims) c),
	'logs', (SELECT jsonb_object_agg(provision_id, rows) FROM (
		SELECT provision_id, jsonb_agg(jsonb_build_object('seq', seq, 'stream', stream_type, 'text', log_chunk) ORDER BY seq) AS rows
		FROM public.provision_logs GROUP BY provision_id) l))`

func readContractState(ctx context.Context, conn *pgx.Conn) (*contractState, error) {
	state := newContractState()
	var data []byte
	if err := conn.QueryRow(ctx, readState).Scan(&data); err != nil {
		return nil, err
	}
	return state, json.Unmarshal(data, state)
}

// compare reads the tables and holds them to the rules and to the model.
func (m *model) compare(rt *rapid.T) {
	now, err := readContractState(m.ctx, m.conn)
	if err != nil {
		rt.Fatalf("read the tables: %v", err)
	}
	for _, broken := range m.brokenRules(now) {
		rt.Errorf("rule broken: %s", broken)
	}
	m.stageRules(rt)
	for id, rows := range now.Logs {
		m.recogniseSystemLines(id, rows)
	}
	differ(rt, "workspace", now.Workspaces, m.state.Workspaces)
	differ(rt, "provision", now.Provisions, m.state.Provisions)
	differ(rt, "claim", now.Claims, m.state.Claims)
	differ(rt, "log of", now.Logs, m.state.Logs)
	m.before = now
}

// recogniseSystemLines leaves of each SYSTEM line the words that the model
// wants to see in it.
func (m *model) recogniseSystemLines(provision uuid.UUID, rows []logRow) {
	for i, want := range m.state.Logs[provision] {
		if i < len(rows) && want.Stream == "SYSTEM" && strings.Contains(rows[i].Text, want.Text) {
			rows[i].Text = want.Text
		}
	}
}

func differ[T any](rt *rapid.T, what string, got, want map[uuid.UUID]T) {
	rt.Helper()
	for id := range got {
		if _, known := want[id]; !known {
			rt.Errorf("%s %s = %+v, want none", what, id, got[id])
		}
	}
	for id := range want {
		if !reflect.DeepEqual(got[id], want[id]) {
			rt.Errorf("%s %s = %s, want %s", what, id, encoded(got[id]), encoded(want[id]))
		}
	}
}

func encoded(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// systemLine is a line that the database should have written.
func (m *model) systemLine(provision uuid.UUID, words string) { m.addLine(provision, "SYSTEM", words) }

func (m *model) addLine(provision uuid.UUID, stream, text string) {
	rows := m.state.Logs[provision]
	m.state.Logs[provision] = append(rows, logRow{len(rows) + 1, stream, text})
}

// head is what a workspace should run next: of what is queued, and may run, the
// most urgent, then the oldest.
func (s *contractState) head(workspace uuid.UUID) (head uuid.UUID) {
	reserved := s.Workspaces[workspace].Reserved
	if reserved != uuid.Nil && s.Workspaces[workspace].Due {
		return uuid.Nil
	}
	for id, p := range s.Provisions {
		if p.Workspace != workspace || p.Status != "QUEUED" || reserved != uuid.Nil && reserved != id {
			continue
		}
		if head == uuid.Nil || before(p, s.Provisions[head]) {
			head = id
		}
	}
	return head
}

// before is the order of the queue.
func before(a, b *provisionRow) bool {
	if a.Priority != b.Priority {
		return a.Priority > b.Priority
	}
	return a.Number < b.Number
}

// newest reports whether no later claim has begun on the claim's workspace.
func (s *contractState) newest(claim uuid.UUID) bool {
	for _, c := range s.Claims {
		if c.Workspace == s.Claims[claim].Workspace && c.Number > s.Claims[claim].Number {
			return false
		}
	}
	return true
}

// claimsOf are a workspace's claims, oldest first.
func (s *contractState) claimsOf(workspace uuid.UUID) (claims []uuid.UUID) {
	for id, c := range s.Claims {
		if c.Workspace == workspace {
			claims = append(claims, id)
		}
	}
	slices.SortFunc(claims, func(a, b uuid.UUID) int { return s.Claims[a].Number - s.Claims[b].Number })
	return claims
}
