package e2e

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// column is one of a table that an agent's functions read.
type column struct {
	table, name, kind string
	nullable          bool
	// allowed are the values that a constraint lists, nil where it lists none.
	allowed []string
	// key is the table's primary key.
	key []string
	// guarded says that a trigger or a foreign key would have a word in it.
	guarded bool
	// scope chooses the rows of a run: $1 is the provision, $2 the workspace. "" are
	// all rows.
	scope string
}

func (c column) String() string { return c.table + "." + c.name }

var qualified = regexp.MustCompile(`\b(?:public|tendril)\.\w+`)

// readByAgents lists the tables that the functions mention which an agent may call, with
// the functions, triggers and views that these use: whatever the agent is told comes
// from one of them.
func readByAgents(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	granted, err := names(ctx, conn, `SELECT pronamespace::regnamespace || '.' || proname FROM pg_proc
		WHERE pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND has_function_privilege('tendril_agent', oid, 'EXECUTE')
		  AND has_schema_privilege('tendril_agent', pronamespace, 'USAGE')`)
	if err != nil {
		return nil, err
	}
	text := map[string]string{}
	for _, query := range []string{
		`SELECT pronamespace::regnamespace || '.' || proname, string_agg(pg_get_functiondef(oid), ' ') FROM pg_proc
		 WHERE pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND prokind = 'f' GROUP BY 1`,
		`SELECT schemaname || '.' || viewname, definition FROM pg_views WHERE schemaname IN ('public', 'tendril')`,
		`SELECT relnamespace::regnamespace || '.' || relname, coalesce(string_agg(pg_get_triggerdef(t.oid), ' '), '')
		 FROM pg_class c LEFT JOIN pg_trigger t ON tgrelid = c.oid AND NOT tgisinternal
		 WHERE relnamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND relkind IN ('r', 'p') GROUP BY 1`,
	} {
		rows, err := conn.Query(ctx, query)
		if err != nil {
			return nil, err
		}
		var name, definition string
		if _, err := pgx.ForEachRow(rows, []any{&name, &definition}, func() error { text[name] += " " + definition; return nil }); err != nil {
			return nil, err
		}
	}
	seen := map[string]bool{}
	for len(granted) > 0 {
		name := granted[0]
		granted = granted[1:]
		if text[name] == "" || seen[name] {
			continue
		}
		seen[name] = true
		granted = append(granted, qualified.FindAllString(text[name], -1)...)
	}
	tables, err := names(ctx, conn, `SELECT relnamespace::regnamespace || '.' || relname FROM pg_class
		WHERE relnamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND relkind IN ('r', 'p') ORDER BY 1`)
	return slices.DeleteFunc(tables, func(table string) bool { return !seen[table] }), err
}

func names(ctx context.Context, conn *pgx.Conn, query string, args ...any) ([]string, error) {
	rows, err := conn.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

var listed = regexp.MustCompile(`'(\w+)'::text`)

// columns lists all columns of tables, as the catalogue has them.
func columns(ctx context.Context, conn *pgx.Conn, tables []string) ([]column, error) {
	rows, err := conn.Query(ctx, `SELECT relnamespace::regnamespace || '.' || relname, attname, format_type(atttypid, atttypmod), NOT attnotnull,
		  coalesce((SELECT min(pg_get_constraintdef(k.oid)) FROM pg_constraint k WHERE k.conrelid = c.oid AND contype = 'c' AND conkey = ARRAY[attnum] AND pg_get_constraintdef(k.oid) LIKE '% = ANY (ARRAY[%'), ''),
		  array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid),
		  array(SELECT a.attname::text FROM pg_attribute a JOIN pg_index i ON i.indrelid = a.attrelid AND a.attnum = ANY (i.indkey) WHERE a.attrelid = c.oid AND i.indisprimary),
		  EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal) OR EXISTS (SELECT FROM pg_constraint k
		    WHERE k.contype = 'f' AND (k.conrelid = c.oid AND attnum = ANY (k.conkey) OR k.confrelid = c.oid AND attnum = ANY (k.confkey))) AS guarded
		FROM pg_class c JOIN pg_attribute ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
		WHERE relnamespace::regnamespace || '.' || relname = ANY ($1) ORDER BY guarded, 1, attnum`, tables)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c column, err error) {
		var constraint string
		var beside []string
		err = row.Scan(&c.table, &c.name, &c.kind, &c.nullable, &constraint, &beside, &c.key, &c.guarded)
		for _, match := range listed.FindAllStringSubmatch(constraint, -1) {
			c.allowed = append(c.allowed, match[1])
		}
		switch {
		case c.table == "public.provisions":
			c.scope = "id = $1"
		case c.table == "public.workspaces":
			c.scope = "id = $2"
		case c.table == "tendril.blob_parts":
			c.scope = "blob_id IN (SELECT id FROM tendril.blobs WHERE provision_id = $1 OR workspace_id = $2)"
		case c.table == "tendril.blobs":
			c.scope = "(provision_id = $1 OR workspace_id = $2)"
		case slices.Contains(beside, "provision_id"):
			c.scope = "provision_id = $1"
		case slices.Contains(beside, "workspace_id"):
			c.scope = "workspace_id = $2"
		}
		return c, err
	})
}

// values are expressions of what a column may be altered to, by its type: more than one,
// for constraints refuse some, and an agent may see some and not others.
func (c column) values(special map[string][]string) []string {
	name := pgx.Identifier{c.name}.Sanitize()
	values := slices.Clone(special[c.String()])
	for _, value := range c.allowed {
		values = append(values, "'"+value+"'")
	}
	add := func(expressions ...string) {
		for _, expression := range expressions {
			values = append(values, strings.ReplaceAll(expression, "COLUMN", name))
		}
	}
	switch c.kind {
	case "uuid":
		add("md5(concat(ctid, COLUMN))::uuid")
	case "text":
		if add("coalesce(COLUMN, '') || 'x'"); c.allowed == nil {
			add("repeat('a', 64)")
		}
	case "smallint", "integer", "bigint":
		add("coalesce(COLUMN, 0) + 1000", "coalesce(COLUMN, 0) - 1000")
	case "real", "double precision":
		add("1 - coalesce(COLUMN, 0)") // a share stays one
	case "boolean":
		add("NOT COLUMN")
	case "timestamp with time zone":
		add("coalesce(nullif(COLUMN, '-infinity'), now()) + interval '1 day'", "coalesce(nullif(COLUMN, '-infinity'), now()) - interval '1 day'")
	case "interval":
		add("coalesce(COLUMN, interval '30 days') * 2", "COLUMN / 1000")
	case "bytea":
		add("set_byte(COLUMN, octet_length(COLUMN) - 1, 255 - get_byte(COLUMN, octet_length(COLUMN) - 1))")
	case "jsonb":
		add("'{}'", `'["altered"]'`)
	default:
		if element, is := strings.CutSuffix(c.kind, "[]"); is {
			add("array_append(COLUMN, NULL::"+element+")", "'{}'")
		}
	}
	if c.nullable {
		values = append(values, "NULL")
	}
	return values
}
