package store

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/google/uuid"
)

// AuditEvent is something that somebody did.
type AuditEvent struct {
	ID int64     `db:"id"`
	At time.Time `db:"at"`
	// Actor is who did it; nil: the control plane itself.
	Actor     *uuid.UUID `db:"actor"`
	ActorName string     `db:"actor_name"` // may be empty
	Action    string     `db:"action"`
	Object    string     `db:"object"` // what kind of thing it was done to
	// ObjectID and Called say to which; what is gone is called nothing.
	ObjectID *uuid.UUID      `db:"object_id"`
	Called   string          `db:"called"`
	Detail   json.RawMessage `db:"detail"`
}

// AuditFilter says which events a list has; what is empty does not matter.
type AuditFilter struct {
	Action, Object string
	Actor          uuid.UUID
}

// Audit lists what was done in an organisation, the newest first, at most limit,
// with ids below before (0: from the newest on). Only admins see any of it. next
// is the before of the page that follows, 0 at the end; like ListProvisions, a
// page may have fewer than limit, or none, though others follow.
func (s *Store) Audit(ctx context.Context, org uuid.UUID, f AuditFilter, before int64, limit int) (page []AuditEvent, next int64, err error) {
	const doing = "read what was done"
	if before == 0 {
		before = math.MaxInt64
	}
	most := limit + 1
	if f != (AuditFilter{}) {
		most = max(Window, most)
	}
	err = s.Within(ctx, doing, func(ctx context.Context, s *Store) error {
		looked, err := only[lookedThrough](ctx, s, doing, `
			WITH looked AS MATERIALIZED (
			  SELECT e.id, e.action, e.object, e.actor FROM public.audit_events e WHERE e.org_id = $1 AND e.id < $2 ORDER BY e.id DESC LIMIT $3)
			SELECT (SELECT count(*) FROM looked) AS seen, (SELECT min(id) FROM looked) AS last,
			       ARRAY(SELECT id FROM looked WHERE ($4 = '' OR action = $4) AND ($5 = '' OR object = $5) AND ($6::uuid IS NULL OR actor = $6)
			             ORDER BY id DESC LIMIT $7) AS keys`,
			org, before, most, f.Action, f.Object, orNull(f.Actor), limit+1)
		if err != nil {
			return err
		}
		var ids []int64
		if ids, next = looked.page(limit, most); len(ids) == 0 {
			return nil
		}
		page, err = rows[AuditEvent](ctx, s, doing, `
			SELECT e.id, e.at, e.actor, coalesce(nullif(p.name, ''), p.email, '') AS actor_name, e.action, e.object, e.object_id, e.detail,
			       coalesce(CASE e.object
			         WHEN 'cluster' THEN (SELECT c.name FROM public.clusters c WHERE c.id = e.object_id)
			         WHEN 'workspace' THEN (SELECT w.name FROM public.workspaces w WHERE w.id = e.object_id)
			         WHEN 'provision' THEN (SELECT '#' || v.number FROM public.provisions v WHERE v.id = e.object_id)
			         WHEN 'template' THEN (SELECT t.name FROM public.templates t WHERE t.id = e.object_id) END, '') AS called
			FROM public.audit_events e LEFT JOIN public.people p ON p.org_id = e.org_id AND p.user_id = e.actor
			WHERE e.org_id = $1 AND e.id = ANY ($2) ORDER BY e.id DESC`, org, ids)
		return err
	})
	return page, next, err
}

// AuditWords are the actions and kinds of objects that an organisation's newest
// events have, for a filter to choose from.
func (s *Store) AuditWords(ctx context.Context, org uuid.UUID) (actions, objects []string, err error) {
	type words struct {
		Actions []string `db:"actions"`
		Objects []string `db:"objects"`
	}
	w, err := only[words](ctx, s, "read what was done", `
		SELECT coalesce(array_agg(DISTINCT action), '{}') AS actions, coalesce(array_agg(DISTINCT object), '{}') AS objects
		FROM (SELECT action, object FROM public.audit_events WHERE org_id = $1 ORDER BY id DESC LIMIT $2) e`, org, Window)
	return w.Actions, w.Objects, err
}

// Pausing is who has paused a cluster, and why.
type Pausing struct {
	Actor  *uuid.UUID `db:"actor"` // nil: the platform
	Name   string     `db:"name"`  // of the actor; may be empty
	Reason string     `db:"reason"`
}

// PausedBy tells who paused a cluster last; nil for who is no admin there, and where
// so much was done since that looking for it would take long.
func (s *Store) PausedBy(ctx context.Context, org, cluster uuid.UUID) (*Pausing, error) {
	return orNil(rows[Pausing](ctx, s, "see who paused the cluster", `
		SELECT e.actor, coalesce(nullif(p.name, ''), p.email, '') AS name, coalesce(e.detail ->> 'reason', '') AS reason
		FROM (SELECT * FROM public.audit_events WHERE org_id = $1 ORDER BY id DESC LIMIT $3) e
		LEFT JOIN public.people p ON p.org_id = e.org_id AND p.user_id = e.actor
		WHERE e.action = 'pause_cluster' AND e.object_id = $2 ORDER BY e.id DESC LIMIT 1`, org, cluster, 10*Window))
}
