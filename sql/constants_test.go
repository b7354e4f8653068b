package sql_test

import (
	"regexp"
	"strconv"
	"testing"
)

// unnamed are numbers that say nothing more with a name: what they are is in the same
// line.
var unnamed = map[string]bool{
	"canonical_repo 65535": true, "canonical_repo 33": true, "canonical_repo 126": true, // the largest port, and ASCII
	"has_vast_number 400": true, "has_vast_number 1e400": true, "plausible_time interval '1 day'": true, // what the function is
	"provision_log 100": true, // the default in its signature
	"most_parts 128":    true, "most_parts 513": true, "most_parts 16": true,
	"record_progress 100": true, "end_provision 100": true, // percent
	"address_key 72": true, // of "~sha256:" and a digest
}

// A number in the middle of a function has a name: a constant of the function or of
// constants.sql, or a setting.
func TestNumbersHaveNames(t *testing.T) {
	t.Parallel()
	var (
		begins   = regexp.MustCompile(`(?s)\bAS \$\$|\bRETURN `)
		constant = regexp.MustCompile(`(?m)^.*\bCONSTANT\b.*$`)
		interval = regexp.MustCompile(`interval '[^']*[1-9][^']*'`)
		number   = regexp.MustCompile(`[\w.$]*\b\d[\w.]*`)
	)
	seen := map[string]bool{}
	for name, h := range readHeaders(t) {
		at := begins.FindStringIndex(h.body)
		if at == nil || h.file == "constants" || h.file == "upgrade" {
			continue
		}
		body := constant.ReplaceAllString(h.body[at[1]:], "")
		found := interval.FindAllString(body, -1)
		for _, n := range number.FindAllString(literal.ReplaceAllString(body, "''"), -1) {
			if v, err := strconv.ParseFloat(n, 64); err == nil && (v >= 10 || v != float64(int(v))) || n == "1e400" {
				found = append(found, n)
			}
		}
		for _, n := range found {
			if unnamed[name+" "+n] {
				seen[name+" "+n] = true
				continue
			}
			t.Errorf("sql/functions/%s.sql: %s has the number %s without a name; make it a constant or a setting", h.file, name, n)
		}
	}
	for what := range unnamed {
		if !seen[what] {
			t.Errorf("%s: no such number, take it off the list", what)
		}
	}
}
