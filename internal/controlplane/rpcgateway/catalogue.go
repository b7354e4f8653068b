package rpcgateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"

	"github.com/tendril-run/tendril/internal/postgrest"
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

// statement is the call with these of its arguments: its answer, and of a set the
// number of rows. All of its text comes from the database's own description.
func (f *function) statement(given []argument) string {
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
	switch {
	case f.void:
		return "SELECT " + call
	case f.set:
		return "SELECT coalesce(json_agg(f), '[]'), count(*) FROM " + from
	default:
		return "SELECT to_json(f) FROM " + from
	}
}
