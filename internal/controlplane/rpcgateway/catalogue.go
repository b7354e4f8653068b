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

	"github.com/tendril-run/tendril/internal/postgrest"
)

const (
	// rereadAfter is how long what was read counts at least, whoever asks for
	// what is not in it.
	rereadAfter = time.Second
	// readLimit bounds the reading.
	readLimit = 5 * time.Second
)

// function is one that can be called, as the database describes it.
type function struct {
	name string
	args []argument // in the order of its declaration
	set  bool       // answers any number of rows
	void bool
	row  bool // its columns have names: each row is an object, a single column too
}

type argument struct {
	name, typ string
	array     bool
	json      bool // json or jsonb: any JSON value is one
	optional  bool
}

// readFunctions describes functions by name. Those with an argument that has
// no name cannot be called by name, and are left out.
const readFunctions = `SELECT p.proname::text, p.proretset, p.prorettype = 'pg_catalog.void'::pg_catalog.regtype, a.names, a.types, a.arrays, a.jsons,
       cardinality(a.names) - p.pronargdefaults, coalesce(p.proargmodes && '{o,b,t}', false)
FROM pg_catalog.pg_proc p, LATERAL (
  SELECT coalesce(array_agg(i.name ORDER BY i.ord), '{}') AS names,
         coalesce(array_agg(pg_catalog.format_type(i.type, NULL) ORDER BY i.ord), '{}') AS types,
         coalesce(array_agg(t.typcategory = 'A' ORDER BY i.ord), '{}') AS arrays,
         coalesce(array_agg(t.typname IN ('json', 'jsonb') AND t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace ORDER BY i.ord), '{}') AS jsons
  FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargnames, p.proargmodes) WITH ORDINALITY AS i (type, name, mode, ord)
  JOIN pg_catalog.pg_type t ON t.oid = i.type
  WHERE coalesce(i.mode, 'i') IN ('i', 'b')) a
WHERE p.pronamespace = 'public'::pg_catalog.regnamespace AND p.proname = ANY ($1) AND p.prokind = 'f'
  AND NOT EXISTS (SELECT FROM unnest(a.names) n WHERE coalesce(n, '') = '')
ORDER BY p.oid`

// catalogue is what the database says of the functions, read again when asked
// for what is not in it.
type catalogue struct {
	pool  *pgxpool.Pool
	names []string

	mu        sync.Mutex
	functions map[string]*function // nil: not read yet
	readAt    time.Time
	stale     bool
}

// changed has it read again when it is next asked.
func (c *catalogue) changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stale = true
}

// find returns the function that takes these arguments. Otherwise the error
// tells the client; unavailable that nothing could be read at all.
func (c *catalogue) find(ctx context.Context, name string, given []string) (*function, *refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.names, name) {
		// Nobody can make the database be asked for what is never served.
		return nil, noFunction(name, given, c.nearest(name))
	}
	f := c.functions[name]
	if c.stale || (f == nil || !f.takes(given)) && time.Since(c.readAt) > rereadAfter {
		if err := c.read(ctx); err != nil && c.functions == nil {
			return nil, unavailable(postgrest.CodeNoSchema, "Could not query the database for the schema cache. Retrying.", err)
		}
		f = c.functions[name]
	}
	switch {
	case f == nil:
		return nil, noFunction(name, given, c.nearest(name))
	case !f.takes(given):
		return nil, noFunction(name, given, f.signature())
	}
	return f, nil
}

func (c *catalogue) read(ctx context.Context) error {
	// For all who wait, not for who happens to ask.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	c.readAt = time.Now()                                                                  // of a failure as well: the next one waits
	rows, err := c.pool.Query(ctx, readFunctions, pgx.QueryExecModeCacheDescribe, c.names) // a pooler may stand between
	if err != nil {
		return fmt.Errorf("read the functions: %w", err)
	}
	found := map[string]*function{}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		var f function
		var names, types []string
		var arrays, jsons []bool
		var required int
		if err := row.Scan(&f.name, &f.set, &f.void, &names, &types, &arrays, &jsons, &required, &f.row); err != nil {
			return struct{}{}, err
		}
		for i := range names {
			f.args = append(f.args, argument{name: names[i], typ: types[i], array: arrays[i], json: jsons[i], optional: i >= required})
		}
		found[f.name] = &f
		return struct{}{}, nil
	})
	if err != nil {
		return fmt.Errorf("read the functions: %w", err)
	}
	c.functions, c.stale = found, false
	return nil
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

// statement is the call with these of its arguments. All of its text comes from
// the database's own description.
func (f *function) statement(given []argument) string {
	args := make([]string, len(given))
	for i, a := range given {
		args[i] = fmt.Sprintf("%s => $%d::%s", pgx.Identifier{a.name}.Sanitize(), i+1, a.typ)
	}
	call := pgx.Identifier{postgrest.Schema, f.name}.Sanitize() + "(" + strings.Join(args, ", ") + ")"
	from := call + " AS f"
	if f.row {
		from = "(SELECT * FROM " + call + ") AS f"
	}
	switch {
	case f.void:
		return "SELECT " + call
	case f.set:
		return "SELECT coalesce(json_agg(f), '[]') FROM " + from
	default:
		return "SELECT to_json(f) FROM " + from
	}
}
