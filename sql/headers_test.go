package sql_test

import (
	"cmp"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// functionHeader is the comment directly above a function. Its form:
//
//	-- What the function does, in one paragraph or more.
//	--
//	-- Arguments:
//	--   p_first   what it is, with its unit
//	--   p_second  an object
//	--     key  what it is
//	-- Answers: what the function returns.
//	-- Errors: PT404 run_not_found, PT503 busy.
//	-- Locks: cluster, agent.
//	-- Callers: anon, tendril_agent.
//	-- Notes: what whoever changes the function has to know.
//
// A function that outsiders or the control plane call has all parts but the notes, and
// "none." where there is nothing to say. A function that only others of this schema
// call has the errors that it raises and the rows that it locks, if there are any.
type functionHeader struct {
	schema, name, file string
	description        []string // paragraphs
	parts              map[string]headerPart
	body               string // the function itself, without comments
}

// headerPart is one part of a header.
type headerPart struct {
	text  string // what stands behind its colon, as one line
	items []headerItem
}

// headerItem is an argument, a column or a key.
type headerItem struct {
	name, text string
	keys       []headerItem
}

var (
	textOrComment = regexp.MustCompile(`('[^']*')|--[^\n]*`)
	headed        = regexp.MustCompile(`(?m)((?:^--.*\n)*)^CREATE OR REPLACE FUNCTION (public|tendril)\.(\w+)`)
	partLine      = regexp.MustCompile(`^(Arguments|Answers|Errors|Locks|Callers|Notes|Reasons):(?: (.*))?$`)
	itemLine      = regexp.MustCompile(`^(  |    )(\S+)  +(\S.*)$`)
	reasonLine    = regexp.MustCompile(`^  (PT\d+ \w+)  +(\S.*)$`)
	refused       = regexp.MustCompile(`tendril\.refuse\('(PT\d+)', '(\w+)'`)
	anyRefusal    = regexp.MustCompile(`tendril\.refuse\(`)
	calledFrom    = regexp.MustCompile(`(INTO )?\b(?:public|tendril)\.(\w+)\s*\(`)
	errorName     = regexp.MustCompile(`^PT\d{3} [a-z_]+$`)
	goComment     = regexp.MustCompile(`(?m)(^|\s)//.*$`)
	goCall        = regexp.MustCompile(`\btendril\.(\w+)\(`)
)

// deploy is the trigger that people call by an INSERT into provisions.
const deploy = "accept_deploy"

// readHeaders returns the header of each function by its name. No two schemas have a
// function of one name.
func readHeaders(t *testing.T) map[string]*functionHeader {
	t.Helper()
	all := map[string]*functionHeader{}
	for file, text := range tendrilsql.FunctionTexts(t) {
		found := headed.FindAllStringSubmatchIndex(text, -1)
		for i, at := range found {
			end := len(text)
			if i+1 < len(found) {
				end = found[i+1][0]
			}
			h := &functionHeader{file: file, schema: text[at[4]:at[5]], name: text[at[6]:at[7]], parts: map[string]headerPart{}, body: textOrComment.ReplaceAllString(text[at[7]:end], "$1")}
			h.read(t, text[at[2]:at[3]])
			if all[h.name] != nil {
				t.Errorf("two functions are named %s", h.name)
			}
			all[h.name] = h
		}
	}
	return all
}

// read takes a header's lines apart.
func (h *functionHeader) read(t *testing.T, text string) {
	t.Helper()
	var part string
	var p headerPart
	var last *string // what a continuation line belongs to
	paragraph := false
	add := func(line string) {
		*last = strings.TrimSpace(*last + " " + strings.TrimSpace(line))
	}
	keep := func() {
		if part != "" {
			h.parts[part] = p
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimPrefix(strings.TrimPrefix(strings.TrimRight(line, "\n"), "--"), " ")
		m := partLine.FindStringSubmatch(line)
		i := itemLine.FindStringSubmatch(line)
		if r := reasonLine.FindStringSubmatch(line); part == "Reasons" && r != nil {
			i = []string{line, "  ", r[1], r[2]}
		}
		switch {
		case m != nil:
			keep()
			if _, twice := h.parts[m[1]]; twice {
				t.Errorf("the header of %s has %s twice", h.name, m[1])
			}
			part, p = m[1], headerPart{text: m[2]}
			last = &p.text
		case part == "" && line == "":
			paragraph = false
		case part == "" && !paragraph:
			h.description = append(h.description, line)
			last, paragraph = &h.description[len(h.description)-1], true
		case part == "":
			add(line)
		case part == "Notes" || part == "Errors" || part == "Locks" || part == "Callers" || i == nil:
			add(line)
		case i[1] == "  ":
			p.items = append(p.items, headerItem{name: i[2], text: i[3]})
			last = &p.items[len(p.items)-1].text
		case len(p.items) == 0:
			t.Errorf("the header of %s has a key without an argument: %s", h.name, line)
		default:
			of := &p.items[len(p.items)-1]
			of.keys = append(of.keys, headerItem{name: i[2], text: i[3]})
			last = &of.keys[len(of.keys)-1].text
		}
	}
	keep()
}

// names are what a part lists behind its colon; none: nothing.
func (h *functionHeader) names(part string) []string {
	text := strings.TrimSuffix(h.parts[part].text, ".")
	if text == "" || text == "none" {
		return nil
	}
	return strings.Split(text, ", ")
}

// raised are the errors that a function's own text raises, as "PT409 busy".
func (h *functionHeader) raised() []string {
	var all []string
	for _, m := range refused.FindAllStringSubmatch(h.body, -1) {
		all = append(all, m[1]+" "+m[2])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// passedOn are the errors that a function raises itself or by what it calls.
// triggers are the functions that statements on a table set off, by event and table.
func passedOn(all map[string]*functionHeader, name string, triggers map[string]map[string][]string) map[string]bool {
	found, seen := map[string]bool{}, map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		h := all[name]
		if h == nil || seen[name] {
			return
		}
		seen[name] = true
		for _, e := range h.raised() {
			found[e] = true
		}
		for _, m := range calledFrom.FindAllStringSubmatch(h.body, -1) {
			if m[1] == "" {
				visit(m[2])
			}
		}
		for event, tables := range locksOf(h.body).events {
			for table := range tables {
				for _, f := range triggers[event][table] {
					visit(f)
				}
			}
		}
	}
	visit(name)
	return found
}

// calledByGo are the functions of schema tendril that the programs call.
func calledByGo(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, dir := range []string{"../cmd", "../internal", "."} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() && d.Name() == "testkit" {
				return cmp.Or(err, filepath.SkipDir)
			}
			if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			text, err := os.ReadFile(path)
			for _, m := range goCall.FindAllSubmatch(goComment.ReplaceAll(text, nil), -1) {
				found[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// mayCall is who may execute each function: roles by their grants, and the control
// plane, which owns the schema, where its programs or its pg_cron jobs call it.
func mayCall(t *testing.T, conn *pgx.Conn, all map[string]*functionHeader) map[string][]string {
	t.Helper()
	who := map[string][]string{}
	rows, _ := conn.Query(t.Context(), `SELECT p.proname, r.role FROM pg_proc p
		CROSS JOIN unnest(ARRAY['anon', 'authenticated', 'service_role', 'tendril_agent']) WITH ORDINALITY r (role, n)
		WHERE p.pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND has_function_privilege(r.role, p.oid, 'EXECUTE') ORDER BY r.n`)
	var name, role string
	if _, err := pgx.ForEachRow(rows, []any{&name, &role}, func() error { who[name] = append(who[name], role); return nil }); err != nil {
		t.Fatal(err)
	}
	trellis := calledByGo(t)
	_, jobs, _ := strings.Cut(all["schedule_jobs"].body, "VALUES")
	jobs, _, _ = strings.Cut(jobs, "LOOP")
	for _, m := range goCall.FindAllStringSubmatch(jobs, -1) {
		trellis[m[1]] = true
	}
	for name, h := range all {
		if trellis[name] && h.schema == "tendril" {
			who[name] = append(who[name], "the control plane")
		}
	}
	return who
}

// triggersOf are the functions that statements on a table set off, by event and table.
func triggersOf(t *testing.T, conn *pgx.Conn) map[string]map[string][]string {
	t.Helper()
	triggers := map[string]map[string][]string{}
	rows, _ := conn.Query(t.Context(), `SELECT c.relname, p.proname, e.event
		FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_proc p ON p.oid = g.tgfoid
		CROSS JOIN (VALUES (4, 'INSERT'), (8, 'DELETE'), (16, 'UPDATE')) e (bit, event)
		WHERE NOT g.tgisinternal AND g.tgtype & e.bit <> 0`)
	var table, function, event string
	if _, err := pgx.ForEachRow(rows, []any{&table, &function, &event}, func() error {
		if triggers[event] == nil {
			triggers[event] = map[string][]string{}
		}
		triggers[event][table] = append(triggers[event][table], function)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return triggers
}

// signature is what a function takes and answers, by the catalogue.
type signature struct {
	arguments, columns []string
	types              map[string]string // of both, with the arguments' defaults
	answers            string            // the type
}

// signatures reads those of all functions.
func signatures(t *testing.T, conn *pgx.Conn) map[string]signature {
	t.Helper()
	all := map[string]signature{}
	rows, _ := conn.Query(t.Context(), `
		SELECT p.proname, coalesce(a.name, ''), coalesce(a.mode::text, 'i'), coalesce(format_type(a.type, NULL), ''),
		       coalesce(CASE WHEN a.mode IS DISTINCT FROM 'o' AND a.mode IS DISTINCT FROM 't' THEN pg_get_function_arg_default(p.oid, a.n::int) END, ''),
		       pg_get_function_result(p.oid)
		FROM pg_proc p LEFT JOIN LATERAL unnest(p.proargnames, p.proargmodes, coalesce(p.proallargtypes, p.proargtypes::oid[])) WITH ORDINALITY a (name, mode, type, n) ON true
		WHERE p.pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace) ORDER BY p.proname, a.n`)
	var function, name, mode, kind, otherwise, answers string
	if _, err := pgx.ForEachRow(rows, []any{&function, &name, &mode, &kind, &otherwise, &answers}, func() error {
		s := all[function]
		if s.types == nil {
			s = signature{types: map[string]string{}, answers: answers}
		}
		if otherwise != "" {
			kind += " = " + strings.TrimSuffix(otherwise, "::"+kind)
		}
		switch {
		case name == "":
		case mode == "o" || mode == "t":
			s.columns = append(s.columns, name)
			s.types[name] = kind
		default:
			s.arguments = append(s.arguments, name)
			s.types[name] = kind
		}
		all[function] = s
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// Each header says what is so: it names the function's arguments and columns, the errors
// that reach whoever calls it, and who may.
func TestHeadersAreComplete(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t, migrated).Conn(t)
	all, takes := readHeaders(t), signatures(t, conn)
	who, triggers := mayCall(t, conn, all), triggersOf(t, conn)
	items := func(h *functionHeader, part string) (names []string) {
		for _, i := range h.parts[part].items {
			names = append(names, i.name)
		}
		return names
	}
	whole := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		h := all[name]
		about := func(format string, args ...any) {
			t.Helper()
			t.Errorf("sql/functions/%s.sql: the header of %s "+format, append([]any{h.file, name}, args...)...)
		}
		if len(h.description) == 0 || !strings.HasSuffix(h.description[len(h.description)-1], ".") && h.parts["Reasons"].items == nil {
			about("does not say what it does")
		}
		if len(anyRefusal.FindAllString(h.body, -1)) != len(refused.FindAllString(h.body, -1)) {
			t.Errorf("%s refuses with a code or reason that is not a literal", name)
		}
		said := h.names("Errors")
		for _, e := range said {
			if !errorName.MatchString(e) {
				about("has the error %q, want a code and a reason", e)
			}
		}
		must, may := map[string]bool{}, passedOn(all, name, triggers)
		for _, e := range h.raised() {
			must[e] = true
		}
		if len(who[name]) > 0 || name == deploy {
			must = passedOn(all, name, nil)
		}
		for e := range must {
			if !slices.Contains(said, e) {
				about("lacks the error %s", e)
			}
		}
		for _, e := range said {
			if !may[e] {
				about("has the error %s, which neither it nor what it calls raises", e)
			}
		}
		if len(who[name]) == 0 {
			if len(h.names("Callers")) > 0 {
				about("names callers %q, and nobody may call it", h.names("Callers"))
			}
			continue
		}
		whole++
		for _, part := range []string{"Arguments", "Answers", "Errors", "Locks", "Callers"} {
			if p := h.parts[part]; p.text == "" && p.items == nil {
				about("lacks %s", part)
			}
		}
		if got, want := items(h, "Arguments"), takes[name].arguments; !slices.Equal(got, want) {
			about("has the arguments %q, want %q", got, want)
		}
		if got, want := items(h, "Answers"), takes[name].columns; want != nil && !slices.Equal(got, want) {
			about("answers the columns %q, want %q", got, want)
		}
		if got := h.names("Callers"); !slices.Equal(got, who[name]) {
			about("names the callers %q, want %q", got, who[name])
		}
	}
	if whole < 80 {
		t.Errorf("%d functions have a caller outside of the schema, want at least 80", whole)
	}
	// refuse() lists every reason with its meaning.
	var listed []string
	raised := map[string]bool{}
	for _, i := range all["refuse"].parts["Reasons"].items {
		listed = append(listed, i.name)
	}
	for _, h := range all {
		for _, e := range h.raised() {
			raised[e] = true
		}
	}
	if want := slices.Sorted(maps.Keys(raised)); !slices.Equal(listed, want) {
		t.Errorf("the reasons in the header of refuse are not those that functions raise, in their order:\n got %q\nwant %q", listed, want)
	}
}
