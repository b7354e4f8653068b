package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/trust"
)

// life is one workspace and somebody who does whatever may be done with it.
type life struct {
	person
	t         testing.TB
	n         int
	random    *rand.Rand
	workspace string
	journal   string // what its template writes down
	repo      string
	cluster   uuid.UUID
	requester trust.Person // to whom a pulled state is sealed, and who signs rollbacks
	last      *act
	// approved is the digest that was approved, by provision.
	approved map[string]string
}

// take leads the life to its end: everything asked for is over, and nothing
// waits for a person.
func (o *life) take() error {
	defer o.leave()
	for range 2 + o.random.IntN(times(2, 5)) {
		for range 1 + o.random.IntN(2) {
			a, err := o.randomAct()
			if err != nil {
				return err
			}
			if _, err := o.ask(o.t, nil, `INSERT INTO public.provisions (id, cluster_id, operation, priority, config_snapshot) VALUES ($1, $2, $3, $4, $5)
				ON CONFLICT (id) DO NOTHING`, a.id, o.cluster, a.operation, a.priority, a.snapshot); err != nil {
				return err
			}
			counted.add("lives: asked for "+a.operation, 1)
		}
		if err := o.attend(); err != nil {
			return err
		}
		if o.chance(20) {
			if err := o.retry(); err != nil {
				return err
			}
		}
	}
	return nil
}

// goingOn is a provision that has not ended.
type goingOn struct {
	ID, Status string
	Digest     *string
}

// attend does what a person may do until everything in the workspace has ended.
func (o *life) attend() error {
	for limit := time.Now().Add(o.patience); ; <-time.After(40 * time.Millisecond) { // between two looks
		var all []goingOn
		if _, err := o.ask(o.t, &all, `SELECT coalesce(jsonb_agg(jsonb_build_object('id', p.id, 'status', p.status, 'digest', p.plan_digest) ORDER BY p.number), '[]')
			FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id
			WHERE w.name = $1 AND p.status NOT IN ('SUCCESS', 'FAILED', 'CANCELLED')`, o.workspace); err != nil {
			return err
		}
		if len(all) == 0 {
			return o.lock(false)
		}
		if time.Now().After(limit) {
			return fmt.Errorf("stuck: %+v", all)
		}
		for _, p := range all {
			if err := o.handle(p); err != nil {
				return err
			}
		}
		if o.random.IntN(200) == 0 {
			if err := o.lock(true); err != nil {
				return err
			}
		} else if o.chance(15) {
			if err := o.lock(false); err != nil {
				return err
			}
		}
	}
}

// handle decides what waits for a person, by and by, and cancels this and that.
func (o *life) handle(p goingOn) (err error) {
	cancel := "SELECT to_jsonb(public.cancel_provision($1))"
	if p.Status != "AWAITING_APPROVAL" {
		if o.random.IntN(1000) < 5 {
			counted.add("lives: cancelled while "+p.Status, 1)
			_, err = o.ask(o.t, nil, cancel, p.ID)
		}
		return err
	}
	switch n := o.random.IntN(100); {
	case n < 12:
		// Before the answer, for it may be lost.
		o.approved[p.ID] = *p.Digest
		_, err = o.ask(o.t, nil, "SELECT to_jsonb(public.approve_provision($1, $2))", p.ID, *p.Digest)
		counted.add("lives: approved", 1)
	case n < 14:
		wrong := "0000" + (*p.Digest)[4:]
		var refused string
		if refused, err = o.ask(o.t, nil, "SELECT to_jsonb(public.approve_provision($1, $2))", p.ID, wrong); err == nil && refused != "plan_changed" {
			err = fmt.Errorf("approval of another digest = %q, want it refused as plan_changed", refused)
		}
	case n < 17:
		_, err = o.ask(o.t, nil, "SELECT to_jsonb(public.reject_provision($1, 'no'))", p.ID)
		counted.add("lives: rejected", 1)
	case n < 19:
		_, err = o.ask(o.t, nil, cancel, p.ID)
		counted.add("lives: cancelled while "+p.Status, 1)
	}
	return err
}

// retry asks once more for what was asked for last, and attends to it.
func (o *life) retry() error {
	refused, err := o.ask(o.t, nil, `SELECT to_jsonb(public.retry_provision(p.id)) FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id
		WHERE w.name = $1 ORDER BY p.number DESC LIMIT 1`, o.workspace)
	if err != nil || refused != "" {
		return errors.Join(err, fmt.Errorf("retry was refused: %q", refused))
	}
	counted.add("lives: retried", 1)
	return o.attend()
}

// lock has the workspace run nothing, or again.
func (o *life) lock(locked bool) error {
	query := "SELECT to_jsonb(public.unlock_workspace(id)::text) FROM public.workspaces WHERE name = $1 AND locked_at IS NOT NULL"
	if locked {
		query = "SELECT to_jsonb(public.lock_workspace(id, 'a pause')::text) FROM public.workspaces WHERE name = $1"
		counted.add("lives: locked", 1)
	}
	_, err := o.ask(o.t, nil, query, o.workspace)
	return err
}

// person is a connection that outlives outages: what got no answer is asked
// again, as people do.
type person struct {
	url      string
	conn     *pgx.Conn
	patience time.Duration
}

// ask puts a query of at most one JSON value, and answers the reason if it is
// refused.
func (p *person) ask(t testing.TB, into any, query string, args ...any) (refused string, err error) {
	for limit := time.Now().Add(p.patience); time.Now().Before(limit); <-time.After(20 * time.Millisecond) { // until the database is back
		if p.conn == nil {
			if p.conn, err = pgx.Connect(t.Context(), p.url); err != nil {
				continue
			}
		}
		var row any
		if into == nil {
			into = &row
		}
		err = p.conn.QueryRow(t.Context(), query, args...).Scan(into)
		pg, answered := errors.AsType[*pgconn.PgError](err)
		switch {
		case err == nil || errors.Is(err, pgx.ErrNoRows):
			return "", nil
		case answered && pg.Code == "PT503":
		case answered && len(pg.Code) == 5 && pg.Code[:2] == "PT":
			return pg.Detail, nil
		case answered && pg.Code[:2] != "57" && pg.Code[:2] != "53": // shutting down, starting up, full
			return "", err
		default:
			p.leave()
		}
	}
	return "", fmt.Errorf("no answer within %s: %w", p.patience, err)
}

func (p *person) leave() {
	if p.conn != nil {
		_ = p.conn.Close(context.Background()) // it may be broken
		p.conn = nil
	}
}
