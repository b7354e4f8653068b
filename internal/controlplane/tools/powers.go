package tools

import (
	"regexp"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// powers are what a token may do by itself. The database keeps them; here they only decide
// what is offered, and whether a plan is asked to wait.
type powers struct{ wire.Powers }

// powersOf are the powers of the token by which somebody asks. Without any a tool proposes.
func powersOf(me wire.MeBody) powers {
	p := powers{value(me.Powers)}
	if p.Change == "" {
		p.Change = "propose"
	}
	return p
}

func (p powers) changes() bool  { return p.Change != "nothing" }
func (p powers) destroys() bool { return p.changes() && (p.Destroy == nil || *p.Destroy) }

// approves reports whether there may be a plan that it approves: in workspaces where it may
// apply, those of its own destroys.
func (p powers) approves() bool { return p.changes() && (p.Approve || len(p.MayApply) > 0) }

// applies reports whether a run of a workspace goes on by itself.
func (p powers) applies(workspace string) bool {
	return p.changes() && slices.ContainsFunc(p.MayApply, func(pattern string) bool { return matches(pattern, workspace) })
}

// matches reports whether a workspace's name is like a pattern, in which * is any text.
func matches(pattern, name string) bool {
	expression := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*")
	ok, err := regexp.MatchString("(?s)^"+expression+"$", name)
	return err == nil && ok
}
