package store

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/provision"
)

// WantedInspection is one that this process has been given.
type WantedInspection struct {
	Org                          uuid.UUID
	Repo, Version, Path, Address string
	// Pinned is the commit that the version meant when it was first used; "" where
	// it never was.
	Pinned string
	lease  uuid.UUID
}

// ClaimInspection gives this process an inspection to make, for so long. It acts
// as the database's owner; false where there is nothing to do.
func (d *Database) ClaimInspection(ctx context.Context, lease time.Duration) (w WantedInspection, ok bool, err error) {
	w.lease = uuid.New()
	err = d.AsOwner(ctx, "look for templates to inspect", func(ctx context.Context, tx pgx.Tx) error {
		var pinned *string
		err := tx.QueryRow(ctx, "SELECT org_id, repo, version, path, address, pinned_commit FROM tendril.claim_inspection($1, make_interval(secs => $2))", w.lease, lease.Seconds()).
			Scan(&w.Org, &w.Repo, &w.Version, &w.Path, &w.Address, &pinned)
		if pinned != nil {
			w.Pinned = *pinned
		}
		ok = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return w, ok, err
}

// InspectionResult is what came of an inspection: variables, or a problem.
type InspectionResult struct {
	Commit    string
	Variables []provision.Variable // nil with a problem
	Code      string
	Problem   string
	// Hand leaves it to an agent.
	Hand bool
}

// SettleInspection stores what came of an inspection.
func (d *Database) SettleInspection(ctx context.Context, w WantedInspection, r InspectionResult) error {
	var commit, variables any
	if r.Commit != "" {
		commit = r.Commit
	}
	if r.Variables != nil {
		encoded, err := json.Marshal(r.Variables)
		if err != nil {
			return err
		}
		variables = string(encoded)
	}
	r.Problem = strings.ReplaceAll(r.Problem, "\x00", "\uFFFD") // it may have a server's words
	return d.AsOwner(ctx, "store what a template declares", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT tendril.settle_inspection($1, $2, $3, $4, $5, $6, $7::text::jsonb, $8, $9, $10)",
			w.Org, w.Repo, w.Version, w.Path, w.lease, commit, variables, r.Code, r.Problem, r.Hand)
		return err
	})
}

// Tag is a tag of a repository.
type Tag struct {
	Tag    string `json:"tag"`
	Commit string `json:"commit"`
}

// NewestTags are as many of a repository's tags as are stored, the newest first. A
// repository may have a hundred thousand, and a hostile server names that git has
// not, with a NUL that no database takes.
func NewestTags(tags []Tag) []Tag {
	const most, longest = 500, 255
	tags = slices.DeleteFunc(tags, func(t Tag) bool { return len(t.Tag) > longest || strings.ContainsFunc(t.Tag, unicode.IsControl) })
	slices.SortFunc(tags, func(a, b Tag) int { return compareVersions(b.Tag, a.Tag) })
	return tags[:min(len(tags), most)]
}

// RecordTags stores which tags a repository has, the newest of them.
func (d *Database) RecordTags(ctx context.Context, w WantedInspection, tags []Tag) error {
	encoded, err := json.Marshal(NewestTags(tags))
	if err != nil {
		return err
	}
	return d.AsOwner(ctx, "store a template's tags", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT tendril.record_tags($1, $2, $3::text::jsonb)", w.Org, w.Repo, string(encoded))
		return err
	})
}

// HandInspections queues the inspections that agents are to make, and says how
// many.
func (d *Database) HandInspections(ctx context.Context) (handed int, err error) {
	err = d.AsOwner(ctx, "hand inspections to agents", func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT tendril.hand_inspections()").Scan(&handed)
	})
	return handed, err
}
