package rpcgateway

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// NotReadyError says what a database lacks before it can be served.
type NotReadyError struct{ Missing, Hint string }

func (e *NotReadyError) Error() string { return fmt.Sprintf("%s (%s)", e.Missing, e.Hint) }

// look asks, in one query that runs on any database, for its contract and
// whether the login role can do what a gateway does.
const look = `WITH roles AS (SELECT oid, rolname FROM pg_roles WHERE rolname IN ('anon', 'authenticated'))
SELECT current_user::text, f.oid IS NOT NULL,
	coalesce(has_schema_privilege(f.pronamespace, 'USAGE') AND has_function_privilege(f.oid, 'EXECUTE'), false),
	(SELECT count(*) = 2 FROM roles),
	ARRAY(SELECT rolname::text FROM roles WHERE NOT pg_has_role(oid, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END) ORDER BY 1)
FROM (VALUES (1)) one (row)
LEFT JOIN pg_proc f ON f.proname = 'contract_version' AND f.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'tendril')`

// Prepare checks that the database has at least this version of the contract,
// and lets the login role act as anon, for agents, and as authenticated, for
// people, if it may. Roles belong to the server and
// not to the database, so that is no migration's to do. A newer contract is
// served as well. It returns the version, or a *NotReadyError.
func Prepare(ctx context.Context, databaseURL string, contract int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return 0, fmt.Errorf("database URL: %w", err) // pgx redacts the password in this error
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // a pooler may stand between
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return 0, fmt.Errorf("reach the database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var user string
	var migrated, owner, roles bool
	var missing []string
	if err := conn.QueryRow(ctx, look).Scan(&user, &migrated, &owner, &roles, &missing); err != nil {
		return 0, fmt.Errorf("look at the database: %w", err)
	}
	role := pgx.Identifier{user}.Sanitize()
	switch {
	case !migrated || !roles:
		return 0, &NotReadyError{"this database has no Tendril contract", `run "trellis migrate" against it first`}
	case !owner:
		return 0, &NotReadyError{"role " + role + " does not own this database's Tendril contract", `use the role that "trellis migrate" ran as`}
	}
	for _, as := range missing {
		if _, err := conn.Exec(ctx, "GRANT "+as+" TO "+role); err != nil {
			if _, refused := errors.AsType[*pgconn.PgError](err); refused {
				return 0, &NotReadyError{"role " + role + " may not act as role " + as, "have a superuser run: GRANT " + strings.Join(missing, ", ") + " TO " + role}
			}
			return 0, fmt.Errorf("let role %s act as %s: %w", role, as, err)
		}
	}
	var version int
	if err := conn.QueryRow(ctx, "SELECT tendril.contract_version()").Scan(&version); err != nil {
		return 0, fmt.Errorf("read the contract's version: %w", err)
	}
	if version < contract {
		return version, &NotReadyError{fmt.Sprintf("this database has version %d of the Tendril contract, and version %d is needed", version, contract),
			`run "trellis migrate" against it first`}
	}
	return version, nil
}
