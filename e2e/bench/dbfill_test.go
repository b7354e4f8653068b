package bench

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// queueLength is how many provisions a filled database has queued: half of them
// on one workspace that is busy, the others on one each.
const queueLength = 100_000

// fillSteps write what years of use would have left: each table at once, past
// its triggers, and its indexes afterwards.
var fillSteps = []string{
	`SET session_replication_role = replica`,
	`CREATE TEMP TABLE later AS SELECT pg_get_indexdef(i.indexrelid) AS definition, i.indexrelid::regclass::text AS name
	FROM pg_index i WHERE i.indrelid IN ('public.provisions'::regclass, 'tendril.claims'::regclass)
		AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)`,
	`DO $$ DECLARE n text; BEGIN FOR n IN SELECT name FROM later LOOP EXECUTE 'DROP INDEX ' || n; END LOOP; END $$`,

	`INSERT INTO public.orgs (name) VALUES ('acme')`,
	`INSERT INTO public.clusters (org_id, name) SELECT id, 'prod' FROM public.orgs`,
	`CREATE TEMP TABLE w AS SELECT gen_random_uuid() AS id, n FROM generate_series(0, {queued} / 2) n`,
	`INSERT INTO public.workspaces (id, org_id, cluster_id, name) SELECT w.id, c.org_id, c.id, 'w' || w.n FROM w, public.clusters c`,
	`CREATE INDEX ON w (n)`,
	// the finished, with what their claims have left
	`INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot, status, started_at, finished_at)
	SELECT c.org_id, c.id, w.id, {snapshot}, 'SUCCESS', now(), now()
	FROM generate_series(1, {finished}) i JOIN w ON w.n = 1 + i % 20000, public.clusters c`,
	`INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, state, lease_until, ended_at)
	SELECT gen_random_uuid(), id, workspace_id, cluster_id, cluster_id, cluster_id, 'host', 'ended', now(), now() FROM public.provisions`,
	`INSERT INTO public.provision_progress (provision_id, org_id, stage, percent) SELECT id, org_id, 'done', 100 FROM public.provisions`,
	// the queued, of which the first on w0 runs
	`INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot, status)
	SELECT c.org_id, c.id, w.id, {snapshot}, CASE i WHEN 0 THEN 'PROCESSING' ELSE 'QUEUED' END
	FROM generate_series(0, {queued} - 1) i JOIN w ON w.n = CASE i % 2 WHEN 0 THEN 0 ELSE (i + 1) / 2 END, public.clusters c ORDER BY i`,
	`WITH c AS (INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, lease_until)
		SELECT gen_random_uuid(), id, workspace_id, cluster_id, cluster_id, cluster_id, 'host', now() + interval '1 day'
		FROM public.provisions WHERE status = 'PROCESSING' RETURNING *)
	UPDATE public.workspaces SET running_claim = c.id FROM c WHERE workspaces.id = c.workspace_id`,
	`DO $$ DECLARE d text; BEGIN FOR d IN SELECT definition FROM later LOOP EXECUTE d; END LOOP; END $$`,
	`UPDATE public.workspaces SET head_id = q.id, head_priority = q.priority, head_number = q.number
	FROM (SELECT DISTINCT ON (workspace_id) * FROM public.provisions WHERE status = 'QUEUED' ORDER BY workspace_id, number) q
	WHERE q.workspace_id = workspaces.id`,

	// the bare queue
	`CREATE TABLE public.bare (id bigint GENERATED ALWAYS AS IDENTITY, snapshot jsonb NOT NULL, claimed_at timestamptz)`,
	`INSERT INTO public.bare (snapshot, claimed_at) SELECT config_snapshot, started_at FROM public.provisions ORDER BY number`,
	`ALTER TABLE public.bare ADD PRIMARY KEY (id)`,
	`CREATE INDEX ON public.bare (id) WHERE claimed_at IS NULL`,
	`VACUUM ANALYZE`,
}

// filled is a database with that many finished provisions, and queueLength more.
func filled(b *testing.B, finished int) *queuetest.World {
	b.Helper()
	db := pgtest.New(b, pgtest.WithSetup(fmt.Sprint("filled_", finished), func(ctx context.Context, url string) error {
		return fill(ctx, url, finished)
	}))
	w := &queuetest.World{URL: db.URL, Conn: db.Conn(b), Token: "tnd_bench"}
	if err := w.Conn.QueryRow(b.Context(), "SELECT id, org_id FROM public.clusters").Scan(&w.Cluster, &w.Org); err != nil {
		b.Fatal(err)
	}
	w.Exec(b, "INSERT INTO tendril.cluster_tokens (cluster_id, digest) VALUES ($1, sha256(sha256($2::text::bytea)))", w.Cluster, w.Token)
	return w
}

func fill(ctx context.Context, url string, finished int) error {
	if _, err := tendrilsql.Migrate(ctx, url); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what it did is committed
	return steps(ctx, conn, map[string]any{"finished": finished, "queued": queueLength, "snapshot": `jsonb_build_object(
		'template_source', jsonb_build_object('repo', 'https://git.example/acme/envtempl', 'version', 'v1.2.0'),
		'terraform_vars', jsonb_build_object('project_name', 'acme', 'region', 'eu-central-1', 'n', i), 'workspace', 'w' || w.n)`}, fillSteps...)
}

// requeue puts back what rounds have claimed, so that each begins with the same
// queue.
func requeue(b *testing.B, w *queuetest.World) {
	b.Helper()
	err := steps(b.Context(), w.Conn, nil,
		`SET session_replication_role = replica`,
		`CREATE TEMP TABLE claimed AS SELECT c.id, c.provision_id, c.workspace_id
		FROM tendril.claims c JOIN public.workspaces w ON w.id = c.workspace_id WHERE c.state = 'running' AND w.name <> 'w0'`,
		`UPDATE public.workspaces w SET running_claim = NULL, head_id = p.id, head_priority = p.priority, head_number = p.number
		FROM claimed c JOIN public.provisions p ON p.id = c.provision_id WHERE w.id = c.workspace_id`,
		`UPDATE public.provisions p SET status = 'QUEUED', started_at = NULL FROM claimed c WHERE p.id = c.provision_id`,
		`DELETE FROM public.provision_progress p USING claimed c WHERE p.provision_id = c.provision_id`,
		`DELETE FROM tendril.claims t USING claimed c WHERE t.id = c.id`,
		`DROP TABLE claimed`,
		`RESET session_replication_role`,
		`VACUUM public.workspaces, public.bare, public.agents`,
	)
	if err != nil {
		b.Fatal(err)
	}
}
