package rpcgateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"

	"github.com/tendril-run/tendril/internal/listen"
	"github.com/tendril-run/tendril/internal/pgurl"
	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/retry"
)

const (
	// rereadAfter is how long what was read counts at least, whoever asks for
	// what is not in it.
	rereadAfter = time.Second
	// readLimit bounds the reading.
	readLimit = 4 * time.Second
)

// function is one that can be called, as the database describes it.
type function struct {
	name string
	args []argument // in the order of its declaration
	set  bool       // answers any number of rows
	void bool
	row  bool // its columns have names: each row is an object, a single column too
	// record: only its rows know their columns, so it cannot stand in FROM.
	record bool
}

type argument struct {
	name, typ string
	array     bool
	json      bool // json or jsonb: any JSON value is one
	variadic  bool
	optional  bool
}

// readFunctions describes functions by name. Those with an argument that has
// no name cannot be called by name, and are left out. A type is given without
// its length (-1): "character" alone would cut a value to its first character.
const readFunctions = `SELECT p.proname::text, p.proretset, p.prorettype = 'pg_catalog.void'::pg_catalog.regtype, a.names, a.types, a.arrays, a.jsons, a.variadics,
       cardinality(a.names) - p.pronargdefaults, coalesce(p.proargmodes && '{o,b,t}', false), p.prorettype = 'pg_catalog.record'::pg_catalog.regtype
FROM pg_catalog.pg_proc p, LATERAL (
  SELECT coalesce(array_agg(i.name ORDER BY i.ord), '{}') AS names,
         coalesce(array_agg(pg_catalog.format_type(i.type, -1) ORDER BY i.ord), '{}') AS types,
         coalesce(array_agg(t.typcategory = 'A' ORDER BY i.ord), '{}') AS arrays,
         coalesce(array_agg(t.typname IN ('json', 'jsonb') AND t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace ORDER BY i.ord), '{}') AS jsons,
         coalesce(array_agg(coalesce(i.mode, 'i') = 'v' ORDER BY i.ord), '{}') AS variadics
  FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargnames, p.proargmodes) WITH ORDINALITY AS i (type, name, mode, ord)
  JOIN pg_catalog.pg_type t ON t.oid = i.type
  WHERE coalesce(i.mode, 'i') IN ('i', 'b', 'v')) a
WHERE p.pronamespace = 'public'::pg_catalog.regnamespace AND p.proname = ANY ($1) AND p.prokind = 'f'
  AND NOT EXISTS (SELECT FROM unnest(a.names) n WHERE coalesce(n, '') = '')
ORDER BY p.oid`

// catalogue is what the database says of the functions, read again when asked
// for what is not in it.
type catalogue struct {
	pool    *pgxpool.Pool
	names   []string
	reading singleflight.Group

	mu        sync.Mutex
	functions map[string][]*function // of each name; nil: not read yet
	triedAt   time.Time
	failed    bool // the last attempt
	stale     bool
}

// changed has it read again when it is next asked.
func (c *catalogue) changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stale = true
}

// find returns the function that takes these arguments, else what the client
// is told.
func (c *catalogue) find(ctx context.Context, name string, given []string) (*function, *refusal) {
	if !slices.Contains(c.names, name) {
		// Nobody can make the database be asked for what is never served.
		return nil, noFunction(name, given, c.nearest(name))
	}
	all, fit, unsure := c.look(name, given)
	if unsure {
		// All who wait share one reading, and its failure.
		if _, err, _ := c.reading.Do("", func() (any, error) { return nil, c.read(ctx) }); err != nil && !c.known() {
			return nil, unavailable(postgrest.CodeNoSchema, "Could not query the database for the schema cache. Retrying.", err)
		}
		all, fit, _ = c.look(name, given)
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) > 1:
		return nil, manyFunctions(fit)
	case len(all) == 1:
		return nil, noFunction(name, given, all[0].signature())
	case len(all) > 1:
		return nil, noFunction(name, given, "") // any of them may be meant
	}
	return nil, noFunction(name, given, c.nearest(name))
}

// look returns what was read of the functions of a name, those of them that take
// the arguments, and whether they should be read again: something has changed, or
// not exactly one takes the arguments. A description that was read just now takes no
// others, and a reading that failed just now fails again.
func (c *catalogue) look(name string, given []string) (all, fit []*function, unsure bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all = c.functions[name]
	for _, f := range all {
		if f.takes(given) {
			fit = append(fit, f)
		}
	}
	justNow := time.Since(c.triedAt) < rereadAfter
	switch {
	case c.functions == nil:
		return nil, nil, true
	case c.stale:
		return all, fit, !c.failed || !justNow
	default:
		return all, fit, len(fit) != 1 && !justNow
	}
}

func (c *catalogue) known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.functions != nil
}

func (c *catalogue) read(ctx context.Context) error {
	// For all who wait, not for who happens to ask.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	c.mu.Lock()
	c.triedAt, c.stale = time.Now(), false // what changes from here on is not in it
	c.mu.Unlock()
	found, err := c.describe(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed = err != nil; c.failed {
		c.stale = true
		return fmt.Errorf("read the functions: %w", err)
	}
	c.functions = found
	return nil
}

func (c *catalogue) describe(ctx context.Context) (map[string][]*function, error) {
	rows, err := c.pool.Query(ctx, readFunctions, pgx.QueryExecModeCacheDescribe, c.names) // a pooler may stand between
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*function, error) {
		var f function
		var names, types []string
		var arrays, jsons, variadics []bool
		var required int
		err := row.Scan(&f.name, &f.set, &f.void, &names, &types, &arrays, &jsons, &variadics, &required, &f.row, &f.record)
		for i := range names {
			f.args = append(f.args, argument{name: names[i], typ: types[i], array: arrays[i], json: jsons[i], variadic: variadics[i], optional: i >= required})
		}
		f.record = f.record && !f.row
		return &f, err
	})
	found := map[string][]*function{}
	for _, f := range all {
		found[f.name] = append(found[f.name], f)
	}
	return found, err
}

// takes reports whether the function can be called with these arguments.
func (f *function) takes(given []string) bool {
	known := 0
	for _, a := range f.args {
		there := slices.Contains(given, a.name)
		if !there && !a.optional {
			return false
		}
		if there {
			known++
		}
	}
	return known == len(given)
}

// signature is the function with its arguments, as PostgREST hints at it.
func (f *function) signature() string {
	names := make([]string, len(f.args))
	for i, a := range f.args {
		names[i] = a.name
	}
	slices.Sort(names)
	return f.name + "(" + strings.Join(names, ", ") + ")"
}

// statement is the call with these of its arguments: its answer, of a set the number of
// rows, and, where that is asked for, what the function has set of tendril.hold. All of its
// text comes from the database's own description.
func (f *function) statement(given []argument, asksHold bool) string {
	args := make([]string, len(given))
	for i, a := range given {
		if a.variadic {
			args[i] = "VARIADIC "
		}
		args[i] += fmt.Sprintf("%s => $%d::%s", pgx.Identifier{a.name}.Sanitize(), i+1, a.typ)
	}
	call := pgx.Identifier{postgrest.Schema, f.name}.Sanitize() + "(" + strings.Join(args, ", ") + ")"
	from := call + " AS f"
	switch {
	case f.row:
		from = "(SELECT * FROM " + call + ") AS f"
	case f.record:
		from = "(SELECT " + call + " AS f) AS r"
	}
	if asksHold {
		// The function has run by then, for what is in FROM comes first.
		from = ", current_setting('" + heldSetting + "', true) FROM " + from
	} else {
		from = " FROM " + from
	}
	switch {
	case f.void:
		return "SELECT " + call
	case f.set:
		return "SELECT coalesce(json_agg(f), '[]'), count(*)" + from
	default:
		return "SELECT to_json(f)" + from
	}
}

// silence is how long a session may hear nothing before it is tried: one that
// only listens would never learn that what stands between has forgotten it.
const silence = 30 * time.Second

// listener hears when the schema may have changed, and what held calls wait for.
type listener struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startListener calls changed when the schema may have changed, and after a silence as well:
// behind a pooler in transaction mode nothing is ever heard.
func startListener(pool *pgxpool.Pool, now pgurl.Source, silence time.Duration, changed func(), waiting *waiting) *listener {
	ctx, cancel := context.WithCancel(context.Background())
	l := &listener{cancel: cancel, done: make(chan struct{})}
	config := pool.Config().ConnConfig.Copy()
	go func() {
		defer close(l.done)
		listen.Listener{
			Connect:  func(ctx context.Context) (*pgx.Conn, error) { return pgurl.Connect(ctx, config, now) },
			Channels: append([]string{schemaChannel}, heldChannels()...), Limit: readLimit, Silence: silence,
			Send: func(ctx context.Context, channel, payload string) error {
				_, err := pool.Exec(ctx, "SELECT pg_notify($1, $2)", pgx.QueryExecModeCacheDescribe, channel, payload)
				return err
			},
			Began: func() {
				changed()
				waiting.began()
			},
			Quiet: changed,
			Heard: func(channel, payload string) {
				if channel == schemaChannel {
					changed()
				} else {
					waiting.heard(channel, payload)
				}
			},
			Lost: func(err error) { waiting.lost(errors.Is(err, listen.ErrDeaf)) },
			Wait: func(ctx context.Context, wait time.Duration) {
				for end := time.Now().Add(wait); ctx.Err() == nil && time.Now().Before(end); changed() {
					retry.Sleep(ctx, min(silence, time.Until(end)))
				}
			},
		}.Run(ctx)
	}()
	return l
}

// schemaChannel is where PostgREST is told, too, that the schema has changed.
const schemaChannel = "pgrst"

func (l *listener) stop() {
	l.cancel()
	<-l.done
}

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
		return 0, fmt.Errorf("query the database: %w", err)
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
