package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// waited is what a reason is about.
type waited struct {
	Number    int64  `json:"number"`
	Status    string `json:"status"`
	Workspace string `json:"workspace"`
	Cluster   string `json:"cluster"`
	By        string `json:"by"`
}

// whyLines say why a provision waits and what to do about each reason, as
// sentences.
func (a *app) whyLines(cmd *cobra.Command, p store.Provision) string {
	var lines []string
	for _, r := range p.Why {
		line := sentence(r.Message)
		var about waited
		if json.Unmarshal(r.Detail, &about) == nil && about.By != "" {
			line += " By " + about.By + "."
		}
		lines = append(lines, line)
		if step := a.nextStep(cmd, p, r); step != "" {
			lines = append(lines, "→ "+step)
		}
	}
	return strings.Join(lines, "\n")
}

// nextStep is what a person can do about a reason for waiting; "" for nothing.
func (a *app) nextStep(cmd *cobra.Command, p store.Provision, r store.Reason) string {
	var about waited
	if json.Unmarshal(r.Detail, &about) != nil {
		return ""
	}
	run := func(format string, args ...any) string { return a.hint(cmd, fmt.Sprintf(format, args...)) }
	switch r.Reason {
	case "workspace_locked":
		return "When it may be used again: " + run("unlock %s", about.Workspace)
	case "workspace_held":
		return "It is free when that agent comes back. Should it not, an admin frees it: " + run("release %s", about.Workspace)
	case "workspace_busy":
		return "Watch it: " + run("logs %d --follow", about.Number)
	case "workspace_reserved":
		if about.Status == string(provision.AwaitingApproval) {
			return fmt.Sprintf("Decide: %s, or %s", run("approve %d", about.Number), run("reject %d", about.Number))
		}
		return "Look at it: " + run("status %d", about.Number)
	case "awaits_approval":
		return fmt.Sprintf("Decide: %s, or %s", run("approve %d", p.Number), run("reject %d", p.Number))
	case "higher_priority", "queued_behind":
		return "It starts when they are over. What is not needed: " + run("cancel NUMBER")
	case "cluster_paused":
		return "An admin resumes it: " + run("clusters resume %s", about.Cluster)
	case "no_agent":
		return "Start one there (tendril run), or see which there were: " + run("clusters list")
	case "home_away":
		return "Start that agent again, with the data directory that it had."
	case "state_kept":
		return "Start that agent again. Should it not come back, an admin gives that state up: " + run("release %s", p.Workspace)
	case "agent_too_old":
		return "Upgrade the agents of cluster " + about.Cluster + "."
	case "operation_refused":
		return "Have an agent grant it (policy.operations), or: " + run("cancel %d", p.Number)
	case "slots_busy":
		return "It starts when one of them is over. More at once: raise an agent's slots, or start another agent."
	case "engine_missing", "not_due":
		return "See why: " + run("logs %d", about.Number)
	}
	return ""
}

// lockLines tell of a lock that keeps runs from the state, and how it is ended.
func (a *app) lockLines(cmd *cobra.Command, p store.Provision) string {
	l := p.StateLock
	if l == nil || p.Status == provision.Success {
		return ""
	}
	text := "When provision " + fmt.Sprint(l.Number) + " wanted the state, it was locked"
	if l.Who != "" {
		text += " by " + l.Who
	}
	if l.Created != "" {
		text += " since " + l.Created
	}
	return fmt.Sprintf("%s (id %s).\n→ If whoever that is will not come back: %s", text, l.ID, a.hint(cmd, fmt.Sprintf("unlock %s --state-lock %s", p.Workspace, quote(l.ID))))
}

// sentence makes one of a message.
func sentence(message string) string {
	first, size := utf8.DecodeRuneInString(message)
	return string(unicode.ToUpper(first)) + message[size:] + "."
}
