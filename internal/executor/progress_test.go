package executor_test

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// awaitReport waits until a report is such.
func (c *child) awaitReport(what string, is func(provision.Detail) bool) provision.Detail {
	c.t.Helper()
	limit := patience.After(deadline)
	for over := false; ; {
		c.mu.Lock()
		at := slices.IndexFunc(c.reports, func(r provision.Report) bool { return is(r.Detail) })
		var found provision.Detail
		if at >= 0 {
			found = c.reports[at].Detail
		}
		c.mu.Unlock()
		switch {
		case at >= 0:
			return found
		case over:
			c.t.Fatalf("the run ended without a report of %s", what)
		}
		select {
		case <-c.grown:
		case <-c.over:
			over = true // and all reports are there
		case <-limit:
			c.t.Fatalf("timed out waiting for a report of %s", what)
		}
	}
}

func TestProgressSaysWhatRuns(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	s.template(map[string]string{"main.tf": `
variable "gate" { type = string }
resource "terraform_data" "quick" {}
resource "terraform_data" "slow" {
  depends_on = [terraform_data.quick]
  provisioner "local-exec" { command = "cat ${var.gate}" }
}`}, map[string]any{"gate": gate})
	began := time.Now()
	c := s.start()
	d := c.awaitReport("the slow resource, running", func(d provision.Detail) bool {
		return slices.ContainsFunc(d.Running, func(r provision.Running) bool { return r.Address == "terraform_data.slow" })
	})
	if r := d.Running[0]; len(d.Running) != 1 || r.Action != "create" || r.Since.Before(began.Truncate(time.Second)) || r.Since.After(time.Now()) || *d.Percent != 50 {
		t.Errorf("running = %+v at %d %%, want the slow resource alone, being created since a moment ago, at 50 %%", d.Running, *d.Percent)
	}
	open, err := os.OpenFile(gate, os.O_WRONLY, 0) // the provisioner reads its end
	if err != nil {
		t.Fatal(err)
	}
	_ = open.Close()
	wantEnd(t, c.end(), provision.Success, "")

	var kinds []string
	var running []provision.Running
	percents := []int{}
	for _, r := range c.reports {
		for _, e := range r.Detail.Events {
			if e.Address == "terraform_data.slow" {
				kinds = append(kinds, e.Kind+" "+e.Action)
			}
		}
		if r.Detail.Running != nil {
			running = r.Detail.Running
		}
		if r.Detail.Percent != nil {
			percents = append(percents, *r.Detail.Percent)
		}
	}
	if want := []string{"resource_started create", "provisioner_started local-exec", "provisioner_finished local-exec", "resource_finished create"}; !slices.Equal(kinds, want) {
		t.Errorf("events = %q, want %q", kinds, want)
	}
	if running == nil || len(running) != 0 {
		t.Errorf("running at the end = %+v, want an empty list", running)
	}
	if !slices.IsSorted(percents) || percents[0] != 0 || percents[len(percents)-1] != 100 {
		t.Errorf("percentages = %v, want them from 0 to 100", percents)
	}
}
