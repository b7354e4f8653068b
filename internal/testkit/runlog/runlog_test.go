package runlog_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

// shown is a text as an engine shows it that cut it before these bytes: whitespace
// before a cut is dropped, and a piece that is nothing else is not shown.
func shown(text string, cuts ...int) string {
	var log strings.Builder
	from := 0
	for _, cut := range append(cuts, len(text)) {
		for piece := range strings.Lines(text[from:cut]) {
			if piece = strings.TrimRight(piece, " \n"); piece != "" {
				fmt.Fprintf(&log, "terraform_data.work (local-exec): %s\n", piece)
			}
		}
		from = cut
	}
	return log.String()
}

// A line is found wherever an engine cut it, twice as well.
func TestPrintedWithCuts(t *testing.T) {
	t.Parallel()
	const text = "n=8 line 1.\nn=8 line 2.\n"
	const want = "n=8line1.n=8line2."
	for first := range len(text) {
		for second := first; second < len(text); second++ {
			log := "Applying.\n" + shown(text, first, second) + "Apply complete!\n"
			if got := runlog.Printed(log); got != want {
				t.Fatalf("cut before bytes %d and %d: Printed = %q, want %q\n%s", first, second, got, want, log)
			}
			if !runlog.Says(log, "n=8 line 2.") || !runlog.Says(log, "(local-exec): n=8 line 1.") {
				t.Errorf("cut before bytes %d and %d: the log does not say its lines", first, second)
			}
			if got := runlog.Count(log, "n=8 line"); got != 2 {
				t.Errorf("cut before bytes %d and %d: Count = %d, want 2", first, second, got)
			}
		}
	}
}

func TestPrintedLeavesOutTheRest(t *testing.T) {
	t.Parallel()
	log := "Checking out.\nterraform_data.a: Creating...\nmodule.m.terraform_data.a[\"x\"] (local-exec): one\n" +
		"Error: the output was: n=8 line 1.\nterraform_data.b (local-exec): Executing: [\"/bin/sh\" \"-c\" \"echo three\"]\n" +
		"terraform_data.b (remote-exec): two\n"
	if got := runlog.Printed(log); got != "onetwo" {
		t.Errorf("Printed = %q, want what provisioners printed alone", got)
	}
	if !runlog.Says(log, "Checking out.") || runlog.Says(log, "(local-exec): Checking out.") || runlog.Says(log, "(local-exec): three") {
		t.Error("Says finds what is not there, or not what is")
	}
}
