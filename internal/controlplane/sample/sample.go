package sample

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/queue"
)

// The clusters, by how they look.
const (
	online  = "sample-prod-eu"
	stale   = "sample-staging"
	offline = "sample-edge"
)

// every is how often Keep is to be called: less than an agent may be silent.
const every = 10 * time.Second

// ErrUsed says that an organisation has runs or webhooks of its own: what is made up
// could never be taken out again, and would be told to who must not believe it.
var ErrUsed = errors.New("somebody works here already, and what is made up could not be removed again: choose a new data directory for it")

// Fill fills the organisation, unless that has been done, and reports whether it
// did. Owner is who looks at it.
func Fill(ctx context.Context, db *pgxpool.Pool, org, owner uuid.UUID) (filled bool, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT FROM tendril.locks WHERE name = 'sample' FOR UPDATE"); err != nil {
			return err
		}
		there, err := Filled(ctx, tx, org)
		if err != nil || there {
			return err
		}
		var used bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM public.provisions WHERE org_id = $1 AND operation <> 'inspect')
			OR EXISTS (SELECT FROM public.webhooks WHERE org_id = $1)`, org).Scan(&used); err != nil {
			return err
		}
		if used {
			return ErrUsed
		}
		filled = true
		t := &teller{ctx: ctx, tx: tx, org: org, owner: owner, now: time.Now(), clusters: map[string]*cluster{}}
		return t.tell()
	})
	if err != nil { // nothing of it is there
		return false, fmt.Errorf("fill in sample data: %w", err)
	}
	return filled, nil
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// Filled reports whether an organisation has the sample data.
func Filled(ctx context.Context, db querier, org uuid.UUID) (there bool, err error) {
	err = db.QueryRow(ctx, "SELECT EXISTS (SELECT FROM public.clusters WHERE org_id = $1 AND name = $2)", org, online).Scan(&there)
	return there, err
}

// Keep has the sample look alive until the context ends: nobody else sends the
// heartbeats of agents that are none, and without them what runs would be given
// up.
func Keep(ctx context.Context, db *pgxpool.Pool, org uuid.UUID) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		beat(ctx, db, org)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// beat is one heartbeat of all. One that fails is made up for by the next.
func beat(ctx context.Context, db *pgxpool.Pool, org uuid.UUID) {
	for _, c := range []struct {
		name string
		age  time.Duration
	}{{online, 0}, {stale, 90 * time.Second}} {
		_, _ = db.Exec(ctx, `
			WITH c AS (UPDATE public.clusters SET last_seen_at = clock_timestamp() - make_interval(secs => $3) WHERE org_id = $1 AND name = $2 RETURNING id),
			a AS (UPDATE public.agents a SET last_heartbeat_at = clock_timestamp() - make_interval(secs => $3) FROM c WHERE a.cluster_id = c.id),
			p AS (UPDATE public.pools p SET reported_at = clock_timestamp() - make_interval(secs => $3) FROM c WHERE p.cluster_id = c.id)
			UPDATE tendril.claims l SET lease_until = clock_timestamp() + s.lease FROM c, tendril.settings s WHERE l.cluster_id = c.id AND l.state = 'running'`,
			org, c.name, c.age.Seconds())
	}
}

// teller makes the story come about.
type teller struct {
	ctx        context.Context
	tx         pgx.Tx
	org, owner uuid.UUID
	now        time.Time
	clusters   map[string]*cluster
	people     map[string]uuid.UUID
}

// cluster is one that has been made, with its agent.
type cluster struct {
	id             uuid.UUID
	hash           string // of the token
	instance, boot uuid.UUID
}

func (t *teller) exec(query string, args ...any) error {
	if _, err := t.tx.Exec(t.ctx, query, args...); err != nil {
		return fmt.Errorf("%.60s: %w", query, err)
	}
	return nil
}

// as has what follows be asked for by somebody.
func (t *teller) as(name string) error {
	who := t.owner
	if id, ok := t.people[name]; ok {
		who = id
	}
	return t.exec("SELECT set_config('request.jwt.claims', jsonb_build_object('sub', $1::uuid)::text, true)", who)
}

// addCluster makes a cluster and registers its agent.
func (t *teller) addCluster(name, agent, host string, slots int) error {
	c := &cluster{instance: uuid.New(), boot: uuid.New()}
	var token string
	if err := t.tx.QueryRow(t.ctx, "SELECT cluster_id, token FROM public.create_cluster($1, $2, $3)", name, t.org, `{"sample": "true"}`).Scan(&c.id, &token); err != nil {
		return fmt.Errorf("make the cluster %s: %w", name, err)
	}
	sum := sha256.Sum256([]byte(token))
	c.hash = hex.EncodeToString(sum[:])
	t.clusters[name] = c
	about, err := json.Marshal(map[string]any{
		"instance_id": c.instance, "boot_id": c.boot, "name": agent, "host": host, "version": "sample", "contract": queue.Contract, "slots": slots,
		"operations": []string{"plan", "apply", "destroy", "refresh"}, // and nothing that is asked of any agent there is
		// A key that is one, and that nobody has the other half of.
		"age_public_key": "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p",
	})
	if err != nil {
		return err
	}
	return t.exec("SELECT public.register_agent($1, $2)", c.hash, string(about))
}

// run is one provision and what becomes of it.
type run struct {
	cluster, workspace, template, version, operation, by, reason string
	vars                                                         map[string]any
	// ago is when it was asked for, took how long it ran.
	ago, took time.Duration
	plan      string // the summary as JSON; "" for none
	lines     []string
	resources []resource
	outputs   string
	drift     string
	// end is SUCCESS, FAILED or CANCELLED; AWAITING_APPROVAL, PROCESSING (it goes
	// on) and LOST (its agent was lost while it applied).
	end, code, message string
}

// resource is something that exists.
type resource struct {
	Address  string   `json:"address"`
	Type     string   `json:"type"`
	Provider string   `json:"provider"`
	ID       string   `json:"external_id"`
	IPs      []string `json:"ip_addresses,omitempty"`
	Status   string   `json:"status"`
}

// deploy queues a run and returns its id.
func (t *teller) deploy(r run) (id uuid.UUID, err error) {
	if err := t.as(r.by); err != nil {
		return id, err
	}
	snapshot, err := json.Marshal(map[string]any{
		"template_source": map[string]any{"repo": repoOf(r.template), "version": r.version},
		"terraform_vars":  r.vars, "workspace": r.workspace, "meta": map[string]any{"reason": r.reason, "sample": true},
	})
	if err != nil {
		return id, err
	}
	err = t.tx.QueryRow(t.ctx, "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, $2, $3) RETURNING id",
		t.clusters[r.cluster].id, r.operation, string(snapshot)).Scan(&id)
	if err != nil {
		return id, fmt.Errorf("deploy %s: %w", r.workspace, err)
	}
	return id, nil
}

// play carries a run through its stages, as its agent would.
func (t *teller) play(r run) error {
	id, err := t.deploy(r)
	if err != nil {
		return err
	}
	c := t.clusters[r.cluster]
	claim := uuid.New()
	var got uuid.UUID
	if err := t.tx.QueryRow(t.ctx, "SELECT provision_id FROM public.fetch_next_provision($1, $2, $3, $4)", c.hash, c.instance, c.boot, claim).Scan(&got); err != nil || got != id {
		return fmt.Errorf("claim the run in %s: got %s, %w", r.workspace, got, err)
	}
	report := func(status string, detail map[string]any) error {
		encoded, err := json.Marshal(detail)
		if err != nil {
			return err
		}
		return t.exec("SELECT public.update_provision_status($1, $2, $3, $4)", c.hash, claim, status, string(encoded))
	}
	steps := []map[string]any{
		{"stage": "checkout", "commit": commitOf(r.template, r.version)}, {"stage": "validate"},
		{"stage": "engine", "engine": "terraform", "engine_version": "1.11.4"}, {"stage": "init"}, {"stage": "plan"},
	}
	if r.plan != "" {
		steps = append(steps, map[string]any{"plan": json.RawMessage(r.plan)})
	}
	applies := (r.operation == "apply" || r.operation == "destroy") && r.plan != "" && r.end != "AWAITING_APPROVAL"
	if applies {
		steps = append(steps, map[string]any{"stage": "apply"})
	}
	if r.drift != "" {
		steps = append(steps, map[string]any{"drift": json.RawMessage(r.drift)})
	}
	for _, step := range steps {
		if err := report("PROCESSING", step); err != nil {
			return err
		}
	}
	if err := t.log(c, claim, r.lines); err != nil {
		return err
	}
	if wants := wantsOf(r); len(wants) > 0 {
		encoded, err := json.Marshal(wants)
		if err != nil {
			return err
		}
		if err := t.exec("SELECT public.reserve_machines($1, $2, $3)", c.hash, claim, string(encoded)); err != nil {
			return err
		}
	}
	if err := t.end(r, c, claim, report); err != nil {
		return err
	}
	return t.backdate(id, r)
}

func (t *teller) log(c *cluster, claim uuid.UUID, lines []string) error {
	type chunk struct {
		Stream string    `json:"stream"`
		Text   string    `json:"text"`
		At     time.Time `json:"at"`
	}
	for first := 0; first < len(lines); first += 100 {
		var chunks []chunk
		for _, line := range lines[first:min(first+100, len(lines))] {
			stream := "STDOUT"
			if line[0] == '#' { // written by Tendril itself
				stream, line = "SYSTEM", line[1:]
			}
			chunks = append(chunks, chunk{stream, line + "\n", t.now})
		}
		encoded, err := json.Marshal(chunks)
		if err != nil {
			return err
		}
		if err := t.exec("SELECT public.insert_provision_log($1, $2, $3, $4)", c.hash, claim, first+1, string(encoded)); err != nil {
			return err
		}
	}
	return nil
}

// end is how the run ends, or where it is.
func (t *teller) end(r run, c *cluster, claim uuid.UUID, report func(string, map[string]any) error) error {
	found := map[string]any{}
	if r.resources != nil {
		found["resources"], found["machines"] = r.resources, machinesOf(r.workspace)
	}
	switch r.end {
	case "PROCESSING":
		return report("PROCESSING", map[string]any{"percent": 62, "running": []map[string]any{
			{"address": "aws_ecs_service.shop", "action": "update", "since": t.now.Add(-95 * time.Second)},
			{"address": "aws_lb_listener.https", "action": "create", "since": t.now.Add(-12 * time.Second)},
		}})
	case "LOST":
		if err := t.exec("UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second' WHERE id = $1", claim); err != nil {
			return err
		}
		return t.exec("SELECT tendril.reap_claim(id, workspace_id, clock_timestamp()) FROM tendril.claims WHERE id = $1", claim)
	case "AWAITING_APPROVAL":
		bundle := []byte("sample: no plan, and sealed to nobody")
		digest := sha256.Sum256(bundle)
		if err := t.exec("SELECT public.put_blob($1, $2, 'plan', 0, 1, 1, $3, '{}', $4)", c.hash, claim, hex.EncodeToString(digest[:]), base64.StdEncoding.EncodeToString(bundle)); err != nil {
			return err
		}
		return report(r.end, map[string]any{"plan_digest": hex.EncodeToString(digest[:])})
	case "SUCCESS":
		if r.outputs != "" {
			found["stage"], found["percent"], found["outputs"] = "outputs", 100, json.RawMessage(r.outputs)
		}
		if err := report("PROCESSING", found); err != nil {
			return err
		}
		return report(r.end, map[string]any{"stage": "done"})
	}
	if err := report("PROCESSING", found); err != nil {
		return err
	}
	return report(r.end, map[string]any{"error_code": r.code, "error_message": r.message})
}

// backdate moves what has just happened to when it is said to have happened, and
// gives each stage its share of the time.
func (t *teller) backdate(id uuid.UUID, r run) error {
	at, took := t.now.Add(-r.ago), r.took.Seconds()
	if err := t.exec(`UPDATE public.provision_logs l SET emitted_at = s.at, created_at = s.at
		FROM (SELECT l.seq, $2::timestamptz + make_interval(secs => $3 * coalesce(x.share, 0.97)) AS at
		      FROM public.provision_logs l LEFT JOIN unnest($4::float8[]) WITH ORDINALITY x (share, seq) ON x.seq = l.seq WHERE l.provision_id = $1) s
		WHERE l.provision_id = $1 AND l.seq = s.seq`, id, at, took, shares(r.lines)); err != nil {
		return err
	}
	for _, statement := range []string{
		`UPDATE public.provisions SET created_at = $2::timestamptz, started_at = $2::timestamptz + interval '2 seconds',
		   finished_at = CASE WHEN finished_at IS NOT NULL THEN $2::timestamptz + make_interval(secs => $3) END WHERE id = $1`,
		`UPDATE tendril.claims SET created_at = $2::timestamptz + interval '2 seconds',
		   ended_at = CASE WHEN ended_at IS NOT NULL THEN $2::timestamptz + make_interval(secs => $3) END WHERE provision_id = $1`,
		`WITH share (stage, a, b) AS (VALUES ('queued', 0, 0.01), ('checkout', 0.01, 0.03), ('validate', 0.03, 0.04), ('engine', 0.04, 0.05), ('init', 0.05, 0.2),
		   ('plan', 0.2, 0.4), ('approval', 0.4, 0.4), ('apply', 0.4, 0.97), ('outputs', 0.97, 1), ('done', 1, 1))
		 UPDATE public.provision_stages s SET started_at = $2::timestamptz + make_interval(secs => $3 * share.a),
		   ended_at = CASE WHEN s.ended_at IS NOT NULL THEN $2::timestamptz + make_interval(secs => $3 * share.b) END
		 FROM share WHERE s.provision_id = $1 AND s.stage = share.stage`,
		`WITH n AS (SELECT id, row_number() OVER (ORDER BY id) AS i, count(*) OVER () AS most FROM public.provision_events WHERE provision_id = $1)
		 UPDATE public.provision_events e SET at = $2::timestamptz + make_interval(secs => $3 * n.i / n.most) FROM n WHERE e.id = n.id`,
		`UPDATE public.provision_progress SET updated_at = $2::timestamptz + make_interval(secs => $3) WHERE provision_id = $1`,
		`UPDATE public.resources SET updated_at = $2::timestamptz + make_interval(secs => $3) WHERE provision_id = $1`,
		`UPDATE public.machines SET created_at = least(created_at, $2::timestamptz), updated_at = $2::timestamptz + make_interval(secs => $3) WHERE provision_id = $1`,
		`UPDATE public.machine_events SET at = $2::timestamptz + make_interval(secs => $3) WHERE provision_id = $1`,
		`UPDATE public.workspaces w SET created_at = least(w.created_at, $2::timestamptz), drift_at = CASE WHEN w.drift_at IS NOT NULL THEN $2::timestamptz + make_interval(secs => $3) END
		 FROM public.provisions p WHERE p.id = $1 AND w.id = p.workspace_id`,
	} {
		if err := t.exec(statement, id, at, took); err != nil {
			return err
		}
	}
	return nil
}

// shares says for each line how much of the run's time is over when it is printed:
// those of checkout and init, of the plan, and of the apply, as the stages have it.
func shares(lines []string) []float64 {
	parts := [][]int{{}, {}, {}}
	part := 0
	for i, line := range lines {
		if i == 7 || part < 2 && strings.Contains(line, "ing...") && i > 7 && !strings.Contains(line, "Refreshing") {
			part++
		}
		parts[part] = append(parts[part], i)
	}
	ends := []float64{0.011, 0.19, 0.39, 0.96}
	found := make([]float64, len(lines))
	for p, those := range parts {
		for n, i := range those {
			found[i] = ends[p] + 0.011 + (ends[p+1]-ends[p]-0.011)*float64(n)/float64(len(those))
		}
	}
	return found
}
