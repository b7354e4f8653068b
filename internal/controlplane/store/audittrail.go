package store

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/google/uuid"
)

// Deed is one thing that somebody did, as the audit keeps it.
type Deed struct {
	ID     int64      `db:"id" json:"id"`
	At     time.Time  `db:"at" json:"at"`
	Actor  *uuid.UUID `db:"actor" json:"actor,omitempty"` // nil: the platform
	Name   string     `db:"name" json:"name,omitempty"`   // of the actor; may be empty
	Action string     `db:"action" json:"action"`
	Object string     `db:"object" json:"object"` // such as workspace
	// ObjectID and Called say which; what is gone has no name.
	ObjectID *uuid.UUID      `db:"object_id" json:"object_id,omitempty"`
	Called   string          `db:"called" json:"called,omitempty"`
	Detail   json.RawMessage `db:"detail" json:"detail"`
	Seen     int64           `db:"seen" json:"-"`
}

// DeedFilter says which deeds a list has; what is empty does not matter.
type DeedFilter struct {
	Action string
	Object string
	Actor  uuid.UUID
	Before int64 // the id that the page before ended with
}

// lookedThrough is how many deeds one page of a filtered list looks through.
const lookedThrough = 20000

// Deeds lists what was done in an organisation, newest first, at most limit;
// next is the Before of the page that follows, 0 at the end. Who is no admin
// there sees none.
func (s *Store) Deeds(ctx context.Context, org uuid.UUID, f DeedFilter, limit int) (page []Deed, next int64, err error) {
	before := f.Before
	if before == 0 {
		before = math.MaxInt64
	}
	page, err = rows[Deed](ctx, s, "read the audit", `
		WITH looked AS MATERIALIZED (
		  SELECT * FROM public.audit_events e WHERE e.org_id = $1 AND e.id < $2 ORDER BY e.id DESC LIMIT $7),
		bounds AS (SELECT CASE WHEN count(*) = $7 THEN min(id) ELSE 0 END AS seen FROM looked)
		SELECT e.id, e.at, e.actor, coalesce(nullif(p.name, ''), p.email, '') AS name, e.action, e.object, e.object_id, e.detail, b.seen,
		       coalesce(CASE e.object
		         WHEN 'cluster' THEN (SELECT c.name FROM public.clusters c WHERE c.id = e.object_id)
		         WHEN 'workspace' THEN (SELECT w.name FROM public.workspaces w WHERE w.id = e.object_id)
		         WHEN 'provision' THEN (SELECT '#' || v.number FROM public.provisions v WHERE v.id = e.object_id)
		         WHEN 'template' THEN (SELECT t.name FROM public.templates t WHERE t.id = e.object_id) END, '') AS called
		FROM (SELECT * FROM looked WHERE ($3 = '' OR action = $3) AND ($4 = '' OR object = $4) AND ($5::uuid IS NULL OR actor = $5)
		      ORDER BY id DESC LIMIT $6) e
		CROSS JOIN bounds b LEFT JOIN public.people p ON p.org_id = e.org_id AND p.user_id = e.actor
		ORDER BY e.id DESC`,
		org, before, f.Action, f.Object, uuid.NullUUID{UUID: f.Actor, Valid: f.Actor != uuid.Nil}, limit+1, lookedThrough)
	switch {
	case err != nil || len(page) == 0:
		return nil, 0, err
	case len(page) > limit:
		return page[:limit], page[limit-1].ID, nil
	}
	return page, page[0].Seen, nil
}

// DeedWords are the actions and kinds of objects that an organisation's newest
// deeds have, for a filter to choose from.
func (s *Store) DeedWords(ctx context.Context, org uuid.UUID) (actions, objects []string, err error) {
	type words struct {
		Actions []string `db:"actions"`
		Objects []string `db:"objects"`
	}
	w, err := only[words](ctx, s, "read the audit", `
		SELECT coalesce(array_agg(DISTINCT action), '{}') AS actions, coalesce(array_agg(DISTINCT object), '{}') AS objects
		FROM (SELECT action, object FROM public.audit_events WHERE org_id = $1 ORDER BY id DESC LIMIT $2) e`, org, lookedThrough)
	return w.Actions, w.Objects, err
}
