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
	ID int64     `db:"id" json:"id"`
	At time.Time `db:"at" json:"at"`
	// Actor is who did it; nil: the control plane itself.
	Actor     *uuid.UUID      `db:"actor" json:"actor,omitempty"`
	ActorName string          `db:"actor_name" json:"actor_name,omitempty"`
	Action    string          `db:"action" json:"action"`
	Object    string          `db:"object" json:"object"` // what kind of thing it was done to
	ObjectID  *uuid.UUID      `db:"object_id" json:"object_id,omitempty"`
	Detail    json.RawMessage `db:"detail" json:"detail"`
}

// Audit lists what was done in an organisation, the newest first, at most limit,
// with ids below before (0: from the newest on). Only admins see any of it. next
// is the before of the page that follows, 0 at the end.
func (s *Store) Audit(ctx context.Context, org uuid.UUID, before int64, limit int) (page []AuditEvent, next int64, err error) {
	if before == 0 {
		before = math.MaxInt64
	}
	found, err := rows[AuditEvent](ctx, s, "read what was done", `
		SELECT e.id, e.at, e.actor, coalesce(nullif(p.name, ''), p.email, '') AS actor_name, e.action, e.object, e.object_id, e.detail
		FROM (SELECT * FROM public.audit_events WHERE org_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3) e
		LEFT JOIN public.people p ON p.org_id = e.org_id AND p.user_id = e.actor
		ORDER BY e.id DESC`, org, before, limit+1)
	page, last := more(found, limit)
	if last != nil {
		next = last.ID
	}
	return page, next, err
}
