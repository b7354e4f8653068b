package store

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Bootstrap makes the first organisation of a database that has none, with
// user as its admin, and reports whether it did. It acts as the database's
// owner: nobody else could, where there is no member yet. Where there is an
// organisation it changes nothing.
func Bootstrap(ctx context.Context, url string, user uuid.UUID) (made bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	const doing = "make the first organisation"
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return false, translate(doing, err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // a pooler may stand between
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, translate(doing, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// Two that begin at once must not make two.
		if _, err := tx.Exec(ctx, "LOCK TABLE public.orgs IN SHARE ROW EXCLUSIVE MODE"); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			WITH org AS (INSERT INTO public.orgs (name) SELECT 'default' WHERE NOT EXISTS (SELECT FROM public.orgs) RETURNING id)
			INSERT INTO public.org_members (org_id, user_id, role) SELECT id, $1, 'admin' FROM org`, user)
		made = tag.RowsAffected() == 1
		return err
	})
	return made && err == nil, translate(doing, err)
}
