package executor_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

// An engine that prints far more than the log may have: the log begins as it
// began and ends as it ended, line by line.
func TestLogBeyondItsLimit(t *testing.T) {
	t.Parallel()
	const lines = 40_000
	s := newSite(t)
	s.job.Settings.LogLimit = 1 << 20
	s.template(map[string]string{"main.tf": slow(fmt.Sprintf("seq -f 'number %%.0f' 1 %d", lines))}, nil)
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	log := c.text()
	if len(log) > 1<<20+64<<10 {
		t.Errorf("the log has %d bytes, want about its limit", len(log))
	}
	head, rest, limited := strings.Cut(log, "This log has grown to half of its limit of 1.0 MiB.")
	_, tail, told := strings.Cut(rest, "left out of this log, but for the samples above.")
	if !limited || !told {
		t.Fatalf("the log says that it is limited: %t, what is left out: %t, want both", limited, told)
	}
	if next := countOn(head, 1); next < 1000 {
		t.Errorf("the log begins with the lines before %d, want the first half", next)
	}
	first := number.FindStringSubmatch(runlog.Printed(tail))
	if first == nil {
		t.Fatalf("the tail begins %.100q, want lines", tail)
	}
	from, _ := strconv.Atoi(first[1]) // they are digits
	if next := countOn(tail, from); next != lines+1 || from > lines-1000 {
		t.Errorf("the tail has the lines from %d to before %d, want those up to %d", from, next, lines)
	}
	if last := strings.LastIndex(log, "Apply complete!"); last < strings.LastIndex(log, "(local-exec): number ") {
		t.Error("what came after the flood is not behind it")
	}
}

// number is one line of the flood, as runlog.Printed answers it.
var number = regexp.MustCompile(`number(\d+)`)

// countOn returns the number after the last that follows on from, line by line.
func countOn(text string, from int) int {
	for _, match := range number.FindAllStringSubmatch(runlog.Printed(text), -1) {
		if match[1] == strconv.Itoa(from) {
			from++
		}
	}
	return from
}
