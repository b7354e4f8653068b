package devstack

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/postgres"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
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

// login is the role that the local agent connects as: it may call the agent
// functions and nothing else. Roles belong to the server, hence a name of this
// data directory's own.
type login struct {
	Role     string `json:"role"`
	Password string `json:"password"`
}

// ensureLogin reads the login from the file, or makes one, and sees to it that
// the database knows it. The file comes first, so that no crash leaves a role
// whose password nobody knows.
func ensureLogin(ctx context.Context, db *pgxpool.Pool, file string) (login, error) {
	l, err := readLogin(file)
	if err != nil {
		return login{}, err
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var there, member bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", l.Role).Scan(&there); err != nil {
			return err
		}
		verifier, err := scramVerifier(l.Password)
		if err != nil {
			return err
		}
		// Utility statements take no parameters; both parts are of our own making.
		role := pgx.Identifier{l.Role}.Sanitize()
		statement := "CREATE ROLE " + role + " LOGIN IN ROLE tendril_agent PASSWORD '" + verifier + "'"
		if there {
			statement = "ALTER ROLE " + role + " LOGIN PASSWORD '" + verifier + "'"
		}
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT pg_has_role($1, 'tendril_agent', 'MEMBER')", l.Role).Scan(&member); err != nil {
			return err
		}
		if !member {
			if _, err := tx.Exec(ctx, "GRANT tendril_agent TO "+role); err != nil {
				return err
			}
		}
		if _, err = tx.Exec(ctx, "ALTER ROLE "+role+" SET statement_timeout = '15s'"); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT FROM tendril.close_to_agents()")
		return err
	})
	if err != nil {
		return login{}, fmt.Errorf("make the role that the agent logs in as: %w", err)
	}
	return l, nil
}

func readLogin(file string) (login, error) {
	var l login
	content, err := os.ReadFile(file)
	switch {
	case err == nil:
		if err := json.Unmarshal(content, &l); err != nil || l.Role == "" || l.Password == "" {
			return login{}, fmt.Errorf("%s is damaged: remove it, and a new login is made", file)
		}
		return l, nil
	case !errors.Is(err, fs.ErrNotExist):
		return login{}, fmt.Errorf("read the agent's login: %w", err)
	}
	l = login{Role: "tendril_agent_" + strings.ToLower(rand.Text()[:10]), Password: rand.Text()}
	if content, err = json.Marshal(l); err == nil { //nolint:gosec // into a 0600 file, which is its place
		err = instance.WriteSecret(file, append(content, '\n'))
	}
	if err != nil {
		return login{}, fmt.Errorf("keep the agent's login: %w", err)
	}
	return l, nil
}

// scramVerifier is what PostgreSQL stores for a password of ASCII characters
// (RFC 5803, as in pg_authid.rolpassword). Sent in its place, the password
// stays out of the server's log.
func scramVerifier(password string) (string, error) {
	const rounds = 4096 // PostgreSQL's own
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, rounds, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("derive the password's verifier: %w", err)
	}
	sign := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", rounds, encode(salt), encode(stored[:]), encode(sign("Server Key"))), nil
}

// url is the database's URL with this login in place of the owner's.
func (l login) url(database string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", errors.New("the database's URL cannot be parsed") // the cause would quote the password
	}
	query := u.Query()
	query.Del("user")
	query.Del("password")
	// Not the "+" that forms have for a blank: libpq takes it as it is.
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	u.User = url.UserPassword(l.Role, l.Password)
	return u.String(), nil
}

// home is what a Stack owns in its database.
type home struct {
	org, cluster uuid.UUID
	token        string
}

// settle makes, where they are missing, the organisation of the local user, the
// cluster and its token. It acts as the database's owner.
func settle(ctx context.Context, db *pgxpool.Pool, tokenFile string) (h home, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		// One at a time on a database that several share; in the audit it was
		// the local user.
		if _, err := tx.Exec(ctx, `SELECT set_config('request.jwt.claims', jsonb_build_object('sub', $1::uuid)::text, true)
			FROM (SELECT FROM tendril.locks WHERE name = 'up' FOR UPDATE) l`, instance.LocalUser); err != nil {
			return err
		}
		if h.org, err = ensureOrg(ctx, tx); err != nil {
			return err
		}
		if h.cluster, h.token, err = ensureCluster(ctx, tx, h.org); err != nil {
			return err
		}
		if h.token != "" {
			return instance.WriteSecret(tokenFile, []byte(h.token+"\n"))
		}
		// Written before the commit: a crash between the two leaves a file with
		// a token that the next start finds invalid and replaces.
		h.token, err = ensureToken(ctx, tx, h.cluster, tokenFile)
		return err
	})
	if err != nil {
		return home{}, fmt.Errorf("set up organisation, cluster and token: %w", err)
	}
	return h, nil
}

func ensureOrg(ctx context.Context, tx pgx.Tx) (org uuid.UUID, err error) {
	err = tx.QueryRow(ctx, "SELECT org_id FROM public.org_members WHERE user_id = $1 AND role = 'admin' ORDER BY created_at, org_id LIMIT 1", instance.LocalUser).Scan(&org)
	if !errors.Is(err, pgx.ErrNoRows) {
		return org, err
	}
	err = tx.QueryRow(ctx, `
		WITH org AS (INSERT INTO public.orgs (name) VALUES ('local') RETURNING id)
		INSERT INTO public.org_members (org_id, user_id, role) SELECT id, $1, 'admin' FROM org RETURNING org_id`, instance.LocalUser).Scan(&org)
	return org, err
}

// ensureCluster returns the cluster, and its first token if it had to be made.
func ensureCluster(ctx context.Context, tx pgx.Tx, org uuid.UUID) (cluster uuid.UUID, token string, err error) {
	err = tx.QueryRow(ctx, "SELECT id FROM public.clusters WHERE org_id = $1 AND name = $2", org, ClusterName).Scan(&cluster)
	if errors.Is(err, pgx.ErrNoRows) {
		err = tx.QueryRow(ctx, "SELECT cluster_id, token FROM public.create_cluster($1, $2)", ClusterName, org).Scan(&cluster, &token)
	}
	return cluster, token, err
}

// ensureToken returns the token in the file if it is the cluster's and valid,
// else a new one. The others stay valid: other machines may hold them.
func ensureToken(ctx context.Context, tx pgx.Tx, cluster uuid.UUID, file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the agent token: %w", err)
	}
	token := strings.TrimSpace(string(content))
	once := sha256.Sum256([]byte(token))
	digest := sha256.Sum256(once[:])
	var valid bool
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM tendril.cluster_tokens WHERE cluster_id = $1 AND digest = $2
		AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp()))`, cluster, digest[:]).Scan(&valid)
	if err != nil || valid {
		return token, err
	}
	if err := tx.QueryRow(ctx, "SELECT token FROM tendril.issue_token($1)", cluster).Scan(&token); err != nil {
		return "", err
	}
	return token, instance.WriteSecret(file, []byte(token+"\n"))
}

// forgetLimit bounds what is told to the database at the end.
const forgetLimit = 3 * time.Second

// beginLocal names the local user and gives the CLI a token of theirs. One that
// was killed has left its own behind, which ends now.
func (s *Stack) beginLocal(ctx context.Context) (err error) {
	if err := signin.Name(ctx, s.site.Database(), instance.LocalUser, "Local user"); err != nil {
		return err
	}
	host, _ := os.Hostname() // for people, who see "" then
	s.apiToken, err = signin.NewToken(ctx, s.site.Database(), instance.LocalUser, fmt.Sprintf("trellis up on %s, %s", host, s.options.DataDir))
	return err
}

// endLocal revokes the CLI's token. A private server that has gone will have it
// revoked at the next start.
func (s *Stack) endLocal(ctx context.Context) error {
	if s.apiToken == "" || s.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetLimit)
	defer cancel()
	return signin.EndToken(ctx, s.site.Database(), s.apiToken)
}

// Link makes a one-time link that signs a browser in as the local user.
func (s *Stack) Link(ctx context.Context) (string, error) {
	return signin.NewLink(ctx, s.site.Database(), s.runtime.BrowserURL, instance.LocalUser)
}
