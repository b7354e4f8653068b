package devstack

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/controlplane/postgres"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/sql"
)

const (
	databaseName = "tendril"
	// keepEvery is how often leases that ran out are looked for: far less than
	// a lease, so that a lost agent is noticed with nobody else heartbeating.
	keepEvery = 5 * time.Second
	// connectLimit bounds the first connection to a database that was given.
	connectLimit = 10 * time.Second
)

// startDatabase starts the private server, or looks whether the given database
// answers, and returns its owner's URL.
func (s *Stack) startDatabase(ctx context.Context) (url string, err error) {
	done := s.report.Step("PostgreSQL")
	url = s.options.DatabaseURL
	if url == "" {
		s.postgres, err = postgres.Start(ctx, postgres.Options{
			DataDir: s.options.path("postgres"), Log: &noteWriter{note: s.report.Note},
		})
		if err != nil {
			return "", err
		}
		server := s.postgres
		s.background.Go(func() { // ends with the server, which Stop stops
			<-server.Done()
			if err := server.Err(); err != nil {
				s.fail(err)
			}
		})
		if err := createDatabase(ctx, server); err != nil {
			return "", err
		}
		url = server.URL(databaseName)
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return "", fmt.Errorf("database URL: %w", err) // pgx redacts the password
	}
	config.MaxConns = 4
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // a pooler may stand between
	config.ConnConfig.RuntimeParams["application_name"] = "trellis up"
	if s.db, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return "", fmt.Errorf("open the database: %w", err)
	}
	var version string
	limited, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	if err := s.db.QueryRow(limited, "SHOW server_version").Scan(&version); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("reach the database: %w", context.Cause(ctx))
		}
		return "", &store.UnreachableError{Doing: "reach the database", Err: err}
	}
	version, _, _ = strings.Cut(version, " ")
	done(version)
	return url, nil
}

// createDatabase makes our database on a server that has not got it.
func createDatabase(ctx context.Context, server *postgres.Server) error {
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return fmt.Errorf("make the database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var there bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", databaseName).Scan(&there)
	if err == nil && !there {
		_, err = conn.Exec(ctx, "CREATE DATABASE "+databaseName)
	}
	if err != nil {
		return fmt.Errorf("make the database: %w", err)
	}
	return nil
}

func (s *Stack) migrate(ctx context.Context, url string) error {
	done := s.report.Step("Migrations")
	ran, err := sql.Migrate(ctx, url)
	if err != nil {
		return err
	}
	if ran == 0 {
		done("up to date")
	} else {
		done(fmt.Sprintf("%d applied", ran))
	}
	return nil
}

// keep has the database do what nobody may be there to cause, until the context
// ends: give up leases that ran out, look for drift where it is due, remove rows
// whose time is over, archive old logs. What fails now is tried again soon; the health
// check tells of a database that is away.
func (s *Stack) keep(ctx context.Context) {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for _, duty := range []string{"SELECT tendril.reap()", "SELECT tendril.queue_drift()", "SELECT tendril.expire()", "SELECT tendril.measure_usage()",
				"SELECT tendril.archive_logs(p_rows => 10000, p_time => '500 milliseconds')", "SELECT tendril.delete_logs(p_limit => 10)"} {
				limited, cancel := context.WithTimeout(ctx, keepEvery)
				_, _ = s.db.Exec(limited, duty)
				cancel()
			}
		}
	}
}

// Running names the provisions that the local agent runs now, as "#12 demo/hello".
func (s *Stack) Running(ctx context.Context) ([]string, error) {
	found, err := s.db.Query(ctx, `
		SELECT '#' || p.number || ' ' || w.name
		FROM tendril.claims c
		JOIN public.agents a ON a.cluster_id = c.cluster_id AND a.instance_id = c.instance_id
		JOIN public.provisions p ON p.id = c.provision_id
		JOIN public.workspaces w ON w.id = c.workspace_id
		WHERE c.cluster_id = $1 AND a.name = $2 AND c.state = 'running' ORDER BY p.number`, s.home.cluster, s.name)
	if err != nil {
		return nil, fmt.Errorf("list what runs: %w", err)
	}
	return pgx.CollectRows(found, pgx.RowTo[string])
}

// noteWriter passes what is written on as notes, a line each.
type noteWriter struct{ note func(string) }

var _ io.Writer = (*noteWriter)(nil)

// Write implements io.Writer for writers of whole lines.
func (w *noteWriter) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		w.note(strings.TrimRight(line, "\n"))
	}
	return len(p), nil
}
