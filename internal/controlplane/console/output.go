package console

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/trust"
)

// output is one of a run's outputs.
type output struct {
	Name string
	provision.Output
	To *requester // to whose key sensitive ones are sealed; nil for none
}

// outputsOf are a run's, by name.
func outputsOf(p *store.Provision) (all []output) {
	to := requesterIn(p.Snapshot)
	for _, name := range slices.Sorted(maps.Keys(p.Outputs)) {
		all = append(all, output{name, p.Outputs[name], to})
	}
	return all
}

// Text is the value for people: a text as it is, all else as indented JSON.
func (o output) Text() string {
	var word string
	if json.Unmarshal(o.Value, &word) == nil {
		return word
	}
	var b bytes.Buffer
	if json.Indent(&b, o.Value, "", "  ") != nil {
		return string(o.Value)
	}
	return b.String()
}

// sealedOutput is an output that is sealed to somebody's key.
type sealedOutput struct {
	Name, Message string // an age message
	To            *requester
}

func newSealedOutput(name, message string, to *requester) sealedOutput {
	return sealedOutput{name, message, to}
}

// sealedHelp says how sealed outputs of a run are read.
type sealedHelp struct {
	To        *requester
	Number    int64 // the run's
	MayDeploy bool
}

func newSealedHelp(to *requester, number int64, mayDeploy bool) sealedHelp {
	return sealedHelp{to, number, mayDeploy}
}

// requester is the key to which a run was asked to seal sensitive outputs.
type requester struct {
	Recipient, Fingerprint string
	Name                   string // whose it is, as a certificate says; "" without one
}

// requesterOf reads a snapshot's requester_key: a key, or a certificate of one. Nil
// is for none.
func requesterOf(asked string) *requester {
	if asked == "" {
		return nil
	}
	to := &requester{Recipient: asked}
	if c, err := trust.ParseCertificate(asked); err == nil {
		to.Recipient, to.Name = c.Recipient, c.Name
	}
	to.Fingerprint = seal.Fingerprint(to.Recipient)
	return to
}

// requesterIn is the same for a stored snapshot.
func requesterIn(snapshot json.RawMessage) *requester {
	s, err := provision.ParseSnapshot(snapshot)
	if err != nil {
		return nil // as an earlier release took it; the page says less
	}
	return requesterOf(s.RequesterKey)
}

// hasSealed reports whether a run has outputs that are sealed to a key that is known.
func hasSealed(p *store.Provision) bool {
	for _, o := range p.Outputs {
		if o.Sealed != "" {
			return requesterIn(p.Snapshot) != nil
		}
	}
	return false
}

// diff is what a plan changes, or what has changed outside of Terraform.
type diff struct {
	Groups    []diffGroup
	Count     int  // resources that are listed
	Truncated int  // resources that are not
	Drift     bool // it has happened already
}

// diffGroup is what is done in one way.
type diffGroup struct {
	Action    string
	Drift     bool
	Resources []diffResource
}

// diffResource is one resource that changes.
type diffResource struct {
	provision.PlannedChange
	Lines []diffLine
}

// diffLine is one attribute before and after.
type diffLine struct {
	Path          string
	Before, After string // "" where there is none
	Unshown       string // why After is not shown: sensitive, unknown or long; "" if it is
	Replaces      bool
}

// diffOrder has what takes something away first, as summaries do; "" is any other.
var diffOrder = []string{"delete", "replace", "forget", "update", "create", "import", "move", "read", ""}

// planDiff is what a plan changes.
func planDiff(p *provision.PlanSummary) diff { return newDiff(p.Resources, p.Truncated, false) }

// driftDiff is what has changed outside.
func driftDiff(changes []provision.PlannedChange) diff { return newDiff(changes, 0, true) }

func newDiff(changes []provision.PlannedChange, truncated int, drift bool) diff {
	d := diff{Count: len(changes), Truncated: truncated, Drift: drift}
	known := strings.Join(diffOrder, " ")
	for _, action := range diffOrder {
		g := diffGroup{Action: action, Drift: drift}
		for _, c := range changes {
			if c.Action == action || action == "" && !strings.Contains(known, c.Action) {
				g.Resources = append(g.Resources, newDiffResource(c))
			}
		}
		if len(g.Resources) > 0 {
			d.Groups = append(d.Groups, g)
		}
	}
	return d
}

func newDiffResource(c provision.PlannedChange) diffResource {
	r := diffResource{PlannedChange: c}
	for _, a := range c.Attributes {
		l := diffLine{Path: a.Path, Before: valueText(a.Before), After: valueText(a.After), Replaces: a.Replaces}
		switch {
		case a.Sensitive:
			l.Before, l.After, l.Unshown = "", "", "sensitive"
		case a.Unknown:
			l.Unshown = "unknown"
		case a.Long && l.After == "":
			l.Unshown = "long"
		}
		r.Lines = append(r.Lines, l)
	}
	return r
}

// valueText is a JSON value as people read it: one text without its quotes where
// it has several lines, else as JSON.
func valueText(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil && strings.Contains(s, "\n") {
		return s
	}
	var indented bytes.Buffer
	if json.Indent(&indented, raw, "", "  ") == nil && indented.Len() > 80 {
		return indented.String()
	}
	return string(raw)
}

// Many reports whether it is filtered and folded.
func (d diff) Many() bool { return d.Count > 8 }

// Folded reports whether resources are shown folded.
func (d diff) Folded() bool { return d.Count > 25 }

// diffCount is how many resources change in one way.
type diffCount struct {
	N      int
	Action string
}

// diffCounts are a plan's, what takes something away first; none for nil.
func diffCounts(p *provision.PlanSummary) (counts []diffCount) {
	if p == nil {
		return nil
	}
	for _, c := range []diffCount{{p.Destroy, "delete"}, {p.Replace, "replace"}, {p.Forget, "forget"}, {p.Change, "update"}, {p.Add, "create"}, {p.Import, "import"}, {p.Move, "move"}} {
		if c.N > 0 {
			counts = append(counts, c)
		}
	}
	return counts
}

// change is one difference from what was applied last.
type change struct {
	Action   string // create, update or delete
	Name     string
	Was, Now shownValue
}

// shownValue is what people may see of a value: a sealed or sensitive one never.
type shownValue struct {
	Text           string
	Sealed, Hidden bool
	Other          bool // it looks like the other value, and is not it
}
