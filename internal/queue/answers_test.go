package queue_test

import (
	"testing"

	"github.com/tendril-run/tendril/internal/queue"
)

// classes has each class of SQLSTATEs of PostgreSQL's appendix A that is an error,
// its codes that are no outage though their class is one and the reverse, the
// contract's own codes, PostgREST's, and what they must come to.
var classes = map[queue.Class][]string{
	queue.Outage: {
		"03000", "08000", "08006", "09000", "0A000", "0B000", "0F000", "0L000", "0P000", "0Z000", "20000", "24000", "25000", "25006", "26000", "27000",
		"28000", "28P01", "2B000", "2D000", "2F000", "34000", "38000", "39000", "3B000", "3D000", "3F000", "40000", "40001", "40P01",
		"42000", "42601", "42501", "42883", "42P01", "42703", "42725", "42804", "42P17", "53000", "53100", "53200", "53300", "53400",
		"54011", "54023", "54999", "55000", "55P03", "57000", "57014", "57P01", "58000", "58030", "72000", "F0000", "HV000", "P0000", "P0001", "P0002", "P0004", "XX000", "XX001", "XX002",
		"PT408", "PT429", "PT500", "PT503", "PT200",
		"PGRST000", "PGRST001", "PGRST002", "PGRST003", "PGRST100", "PGRST101", "PGRST106", "PGRST125", "PGRST200", "PGRST202", "PGRST203", "PGRST204", "PGRST205",
		"PGRST300", "PGRST301", "PGRST302", "PGRST303", "PGRSTX00", "PGRST999",
		"", "?", "ZZ999",
	},
	queue.Refusal: {"PT400", "PT401", "PT403", "PT404", "PT409", "PT412"},
	queue.Content: {
		"21000", "22000", "22001", "22003", "22007", "22008", "22021", "22P02", "22P05", "22023", "23000", "23502", "23503", "23505", "23514", "44000",
		"54000", "54001", "PT413", "PT422", "PGRST102",
	},
}

// classOf is the class that an error of that kind and code belongs to, for
// callers: what they do depends on the kind alone, and on Final.
func classOf(e *queue.Error) queue.Class {
	switch {
	case e.Kind == queue.ContentRefused:
		return queue.Content
	case queue.Final(e):
		return queue.Refusal
	}
	return queue.Outage
}

func TestEachCodeHasItsClass(t *testing.T) {
	t.Parallel()
	for want, codes := range classes {
		for _, code := range codes {
			e := queue.Answer("ask", code, "no", "reason", "")
			if got := classOf(e); got != want {
				t.Errorf("an answer with the code %q is %s (kind %d), want %s", code, got, e.Kind, want)
			}
		}
	}
}

// The table says one thing: a row's kind never contradicts its class.
func TestMeaningsAgree(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range queue.Meanings {
		if seen[m.Code] {
			t.Errorf("%s stands twice in the table", m.Code)
		}
		seen[m.Code] = true
		ok := map[queue.Class][]queue.Kind{
			queue.Outage:  {queue.Unavailable, queue.Unauthorized},
			queue.Refusal: {queue.Refused, queue.Unauthorized},
			queue.Content: {queue.ContentRefused},
		}[m.Class]
		found := false
		for _, kind := range ok {
			found = found || kind == m.Kind
		}
		if !found {
			t.Errorf("%s is %s and of kind %d", m.Code, m.Class, m.Kind)
		}
	}
}

// Without the contract's reason a PT4xx is somebody else's, such as a trigger's
// that a DBA has added.
func TestRefusalNeedsItsReason(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]queue.Kind{"PT409": queue.Unavailable, "PT404": queue.Unavailable, "PT401": queue.Unauthorized} {
		if e := queue.Answer("ask", code, "no", "", ""); e.Kind != want {
			t.Errorf("%s without a reason is of kind %d, want %d", code, e.Kind, want)
		}
	}
}

func TestEachStatusHasItsClass(t *testing.T) {
	t.Parallel()
	for status := 200; status < 600; status++ {
		want := queue.Outage
		if status == 413 {
			want = queue.Content
		}
		if m := queue.MeaningOfStatus(status); m.Class != want {
			t.Errorf("HTTP %d without a code is %s, want %s", status, m.Class, want)
		}
	}
}
