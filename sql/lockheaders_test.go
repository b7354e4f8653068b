package sql_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

var (
	comment   = regexp.MustCompile(`(?m)--.*$`)
	literal   = regexp.MustCompile(`'[^']*'`)
	changed   = regexp.MustCompile(`\b(UPDATE|DELETE FROM) (?:public|tendril)\.(\w+)`)
	inserted  = regexp.MustCompile(`\bINSERT INTO (?:public|tendril)\.(\w+)`)
	rowLock   = regexp.MustCompile(`\bFOR (?:NO KEY UPDATE|UPDATE|KEY SHARE|SHARE)\b(?: OF (\w+))?`)
	from      = regexp.MustCompile(`\b(?:FROM|JOIN) (?:public|tendril)\.(\w+)(?: (?:AS )?([a-z]\w*))?`)
	called    = regexp.MustCompile(`\b(?:public|tendril)\.(\w+)\s*\(`)
	header    = regexp.MustCompile(`(?m)((?:^--.*\n)*)^CREATE OR REPLACE FUNCTION (?:public|tendril)\.(\w+)`)
	lockLines = regexp.MustCompile(`Locks: ([^.]*)\.`)
)

// locks are what a function does with the tables of lockOrder, by what its text says.
type locks struct {
	rows   map[string]bool            // tables whose rows it locks or changes
	events map[string]map[string]bool // "INSERT", "UPDATE", "DELETE": of which tables, for their triggers
	calls  map[string]bool
}

// locksOf reads the text of a function.
func locksOf(body string) locks {
	l := locks{map[string]bool{}, map[string]map[string]bool{"INSERT": {}, "UPDATE": {}, "DELETE": {}}, map[string]bool{}}
	body = literal.ReplaceAllString(comment.ReplaceAllString(body, ""), "''")
	for _, m := range changed.FindAllStringSubmatch(body, -1) {
		l.rows[m[2]] = true
		l.events[strings.Fields(m[1])[0]][m[2]] = true
	}
	for _, m := range inserted.FindAllStringSubmatch(body, -1) {
		l.events["INSERT"][m[1]] = true
	}
	for _, at := range rowLock.FindAllStringSubmatchIndex(body, -1) {
		of := ""
		if at[2] >= 0 {
			of = body[at[2]:at[3]]
		}
		for _, m := range from.FindAllStringSubmatch(clause(body[:at[0]]), -1) {
			if of == "" || of == m[1] || of == m[2] {
				l.rows[m[1]] = true
			}
		}
	}
	for _, m := range called.FindAllStringSubmatch(body, -1) {
		l.calls[m[1]] = true
	}
	return l
}

// clause is the end of a text from where its statement, or the parenthesis that is open
// there, begins; without what is in parentheses of its own.
func clause(text string) string {
	var kept []byte
	for depth, i := 0, len(text)-1; i >= 0; i-- {
		switch c := text[i]; {
		case c == ')':
			depth++
		case c == '(' && depth == 0, c == ';' && depth == 0:
			i = 0
		case c == '(':
			depth--
		case depth == 0:
			kept = append(kept, c)
		}
	}
	slices.Reverse(kept)
	return string(kept)
}

// Each function's header says which of the tables that are locked in one order it locks,
// by itself, by what it calls, or by a trigger.
func TestHeadersSayWhatIsLocked(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t, migrated).Conn(t)
	bodies := map[string]string{}
	rows, _ := conn.Query(t.Context(), `SELECT p.proname, string_agg(p.prosrc, ' ') FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname IN ('public', 'tendril') GROUP BY 1`)
	var name, text string
	if _, err := pgx.ForEachRow(rows, []any{&name, &text}, func() error { bodies[name] = text; return nil }); err != nil {
		t.Fatal(err)
	}
	triggers := triggersOf(t, conn)
	direct := map[string]locks{}
	for name, body := range bodies {
		l := locksOf(body)
		for event, tables := range l.events {
			for table := range tables {
				for _, f := range triggers[event][table] {
					l.calls[f] = true
				}
			}
		}
		direct[name] = l
	}
	var reached func(name string, seen, tables map[string]bool)
	reached = func(name string, seen, tables map[string]bool) {
		if seen[name] {
			return
		}
		seen[name] = true
		maps.Copy(tables, direct[name].rows)
		for f := range direct[name].calls {
			reached(f, seen, tables)
		}
	}
	locking := 0
	for file, text := range tendrilsql.FunctionTexts(t) {
		for _, m := range header.FindAllStringSubmatch(text, -1) {
			said, name := strings.ReplaceAll(strings.ReplaceAll(m[1], "\n--", ""), "\n", " "), m[2]
			tables := map[string]bool{}
			reached(name, map[string]bool{}, tables)
			var want, got []string
			l := lockLines.FindStringSubmatch(said)
			var words []string
			if l != nil {
				for _, word := range strings.FieldsFunc(l[1], func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
					words = append(words, strings.TrimSuffix(word, "s"))
				}
			}
			for _, table := range lockOrder {
				if tables[table] {
					want = append(want, table)
				}
				if l != nil && slices.Contains(words, strings.TrimSuffix(table, "s")) {
					got = append(got, table)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("sql/functions/%s.sql: the header of %s says that it locks %q, want %q", file, name, got, want)
			}
			if len(want) > 0 {
				locking++
			}
		}
	}
	if locking < 60 {
		t.Errorf("%d functions lock rows of the order, want most of those that change something", locking)
	}
}
