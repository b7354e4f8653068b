package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// stageLines tell of each stage when it began and how long it took, a line each.
// Attempts are numbered where there is more than one.
func stageLines(p store.Provision) string {
	if len(p.Stages) == 0 {
		return ""
	}
	several := p.Stages[len(p.Stages)-1].Attempt > 1
	lines := make([]string, len(p.Stages))
	for i, s := range p.Stages {
		took := ""
		switch {
		case s.EndedAt == nil:
			took = seconds(max(0, p.AsOf.Sub(s.StartedAt))) + " so far"
		case s.Stage != provision.StageDone: // which takes no time
			took = seconds(s.EndedAt.Sub(s.StartedAt))
		}
		name := string(s.Stage)
		if several {
			name = fmt.Sprintf("%d %s", s.Attempt, name)
		}
		lines[i] = strings.TrimRight(fmt.Sprintf("%-10s %s  %s", name, s.StartedAt.Local().Format(time.DateTime), took), " ")
	}
	return strings.Join(lines, "\n")
}

// mostRunning is how many resources that are being worked on are listed.
const mostRunning = 10

// runningLines are the resources that are being worked on, a line each.
func runningLines(p store.Provision) string {
	var lines []string
	for i, r := range p.Running {
		if i == mostRunning {
			lines = append(lines, fmt.Sprintf("… and %d more", len(p.Running)-i))
			break
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s (%s)  %s", r.Address, r.Action, seconds(max(0, p.AsOf.Sub(r.Since))))))
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), " ()", "")
}

// runningShort is what is being worked on, for the status line.
func runningShort(p store.Provision) string {
	if len(p.Running) == 0 {
		return ""
	}
	text := fmt.Sprintf(" · %s %s", p.Running[0].Address, max(0, p.AsOf.Sub(p.Running[0].Since)).Truncate(time.Second))
	if more := len(p.Running) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
