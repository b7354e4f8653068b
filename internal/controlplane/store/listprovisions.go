package store

import (
	"context"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/provision"
)

// Window is how many rows one page of a filtered list looks through: a filter that
// nearly nothing meets must not read a million of them.
const Window = 5000

// lookedThrough is what one page of a list has looked through: how many rows, the last of
// their keys, and the keys of those that are wanted.
type lookedThrough struct {
	Seen int     `db:"seen"`
	Last *int64  `db:"last"`
	Keys []int64 `db:"keys"`
}

// page is what is wanted of it, at most limit, and the key after which the page
// that follows begins, 0 at the end. most is how many rows might have been looked
// through.
func (l lookedThrough) page(limit, most int) (keys []int64, next int64) {
	switch {
	case len(l.Keys) > limit:
		return l.Keys[:limit], l.Keys[limit-1]
	case l.Seen == most:
		return l.Keys, *l.Last
	}
	return l.Keys, 0
}

// What a list looks through.
const (
	ofOrg       = "p.org_id = $1"
	ofWorkspace = "p.workspace_id = $1"
)

// ProvisionFilter says which provisions a list has; what is empty does not
// matter.
type ProvisionFilter struct {
	Statuses   []provision.Status
	Operations []provision.Operation
	Cluster    uuid.UUID
	Workspace  uuid.UUID
}

// narrow reports whether there are provisions that do not meet the filter among
// those that one index has in their order.
func (f ProvisionFilter) narrow() bool {
	return len(f.Statuses)+len(f.Operations) > 0 || f.Cluster != uuid.Nil
}

// ListProvisions lists provisions of an organisation, newest first, at most
// limit, as Provisions does: those with numbers below before (0: from the newest
// on). What is returned as next is the before of the page that follows, 0 at the
// end. A page may have fewer than limit, or none, though others follow: it looks
// through so many rows and no more.
func (s *Store) ListProvisions(ctx context.Context, org uuid.UUID, filter ProvisionFilter, before int64, limit int) (page []Provision, next int64, err error) {
	const doing = "list the provisions"
	if before == 0 {
		before = math.MaxInt64
	}
	most := limit + 1
	if filter.narrow() {
		most = max(Window, most)
	}
	// Either index has them in their order.
	condition, key := ofOrg, org
	if filter.Workspace != uuid.Nil {
		condition, key = ofWorkspace, filter.Workspace
	}
	err = s.Within(ctx, doing, func(ctx context.Context, s *Store) error {
		if err := s.as(ctx, doing, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, byIndex)
			return err
		}); err != nil {
			return err
		}
		looked, err := only[lookedThrough](ctx, s, doing, lookQuery(condition),
			key, before, most, org, uuid.NullUUID{UUID: filter.Cluster, Valid: filter.Cluster != uuid.Nil},
			texts(filter.Statuses), texts(filter.Operations), limit+1)
		if err != nil {
			return err
		}
		var numbers []int64
		if numbers, next = looked.page(limit, most); len(numbers) == 0 {
			return nil
		}
		page, err = s.provisions(ctx, doing, selected(false)+" WHERE p.number = ANY ($1) ORDER BY p.number DESC", numbers)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return page, next, nil
}

// byIndex keeps the planner, in this transaction, from reading all of an
// organisation's rows and sorting them: where there are many organisations, row-
// level security makes it believe that each has a few.
const byIndex = "SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true)"

// lookQuery looks through so many provisions as condition says, by an index that
// has them in their order, for those that meet a filter.
func lookQuery(condition string) string {
	return `
		WITH looked AS MATERIALIZED (
		  SELECT p.number, p.org_id, p.cluster_id, p.status, p.operation FROM public.provisions p
		  WHERE ` + condition + ` AND p.number < $2 ORDER BY p.number DESC LIMIT $3)
		SELECT (SELECT count(*) FROM looked) AS seen, (SELECT min(number) FROM looked) AS last,
		       ARRAY(SELECT number FROM looked
		             WHERE org_id = $4 AND ($5::uuid IS NULL OR cluster_id = $5)
		               AND (cardinality($6::text[]) = 0 OR status = ANY ($6)) AND (cardinality($7::text[]) = 0 OR operation = ANY ($7))
		             ORDER BY number DESC LIMIT $8) AS keys`
}

// texts is a list as a parameter that is never null.
func texts[T ~string](list []T) []string {
	found := make([]string, len(list))
	for i, v := range list {
		found[i] = string(v)
	}
	return found
}
