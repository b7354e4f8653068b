// Package placement says where the machines of a deploy would go, before it is deployed.
//
//	what an inspection holds: variables, tendril.hcl ─┐
//	what a person has filled in ──────────────────────┴► templatefile ─► wants
//	wants ─► preview_machines() ─► a node and a reason for each machine, or a refusal
//
// Both halves are those of a run: package templatefile evaluates the machine blocks as the
// agent does, and SQL places the machines as it does for a run, and takes that back. Sealed
// values are unknown here, so a template whose machines depend on one has no preview. What
// only the agent's file says, such as which workspaces may use a pool, is not known either.
//
// A template is a stranger's: its meter ends an evaluation within a bound, and only a few
// run at a time. The package must not know how people ask: form, REST and CLI show what it
// says.
package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// UnknownError is why it can't be said yet where machines would go.
type UnknownError struct{ Text string }

func (e *UnknownError) Error() string { return e.Text }

// evaluating are the templates that are evaluated at present, in all of the process: the
// hostile take a second of processor each.
var evaluating = make(chan struct{}, 2)

// Preview is where machines would go.
type Preview struct {
	Machines []store.PlacedMachine // in the template's order
}

// For previews a deploy to a workspace of a cluster. It returns an UnknownError where what is
// filled in does not say which machines there would be, and a store.RefusedError where the
// database has no places for them.
func For(ctx context.Context, s *store.Store, org, cluster uuid.UUID, workspace string, asked provision.Snapshot) (Preview, error) {
	t := asked.TemplateSource
	known, err := s.PlacedTemplate(ctx, org, t.Repo, t.Version, t.Path)
	switch {
	case err != nil:
		return Preview{}, err
	case known == nil:
		return Preview{}, &UnknownError{"The template must be scanned first."}
	case known.File == nil:
		return Preview{}, &UnknownError{"The last scan of this version tells of no machines that get places. Re-scan it if it has some."}
	}
	wants, err := Wants(ctx, known.Variables, *known.File, asked, func(kinds map[string]string) error {
		pools, err := s.ListPools(ctx, org, cluster)
		for _, p := range pools {
			kinds[p.Name] = p.Kind
		}
		return err
	})
	if err != nil {
		return Preview{}, err
	}
	if workspace == "" {
		return Preview{}, &UnknownError{"Enter a workspace."}
	}
	if len(wants) == 0 {
		return Preview{}, nil // of servers that are enrolled none has a place
	}
	placed, err := s.PreviewMachines(ctx, cluster, workspace, wants)
	return Preview{placed}, err
}

// Wants are the places that the machines of a template need with what is filled in. kinds
// fills in the kinds of the cluster's pools.
func Wants(ctx context.Context, declared []provision.Variable, text string, asked provision.Snapshot, kinds func(map[string]string) error) ([]provision.PlaceWanted, error) {
	select {
	case evaluating <- struct{}{}:
		defer func() { <-evaluating }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	file, err := templatefile.Parse([]byte(text))
	if err != nil {
		return nil, unknown(err)
	}
	values, missing, err := tfvars.Partly(declared, asked.TerraformVars, asked.SealedVars)
	if err != nil {
		return nil, unknown(err)
	}
	kindOf := map[string]string{}
	if err := kinds(kindOf); err != nil {
		return nil, err
	}
	wants, err := file.Places(values, func(pool string) bool { return provision.HasServers(kindOf[pool]) })
	if err != nil && len(missing) > 0 { // which may be all that is wrong
		return nil, &UnknownError{fmt.Sprintf("Fill in %s.", strings.Join(missing, ", "))}
	} else if err != nil {
		return nil, unknown(err)
	}
	if file.Kind == templatefile.ByMachine && len(asked.Targets) > 0 {
		wants = slices.DeleteFunc(wants, func(w provision.PlaceWanted) bool {
			return !slices.ContainsFunc(asked.Targets, func(address string) bool { return machines.Name(address) == w.Name })
		})
	}
	return wants, nil
}

// unknown keeps what a failure says to people.
func unknown(err error) error {
	if failure, ok := errors.AsType[*provision.Failure](err); ok {
		return &UnknownError{failure.Message}
	}
	return err
}

// Text sums it up: "12 machines: 5 on pve1, 4 on pve2, 3 on pve3; 4 exist and stay".
func (p Preview) Text() string {
	if len(p.Machines) == 0 {
		return "No machines"
	}
	on, stay := map[string]int{}, 0
	for _, m := range p.Machines {
		on[m.Node]++
		if m.Exists {
			stay++
		}
	}
	nodes := make([]string, 0, len(on))
	for node := range on {
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, func(a, b string) int { return cmp.Or(cmp.Compare(on[b], on[a]), cmp.Compare(a, b)) })
	const shown = 12 // nodes
	parts, rest := []string{}, 0
	for i, node := range nodes {
		if i < shown {
			parts = append(parts, fmt.Sprintf("%d on %s", on[node], node))
		} else {
			rest += on[node]
		}
	}
	if rest > 0 {
		parts = append(parts, fmt.Sprintf("%d on %d other nodes", rest, len(nodes)-shown))
	}
	text := fmt.Sprintf("%d machines: %s", len(p.Machines), strings.Join(parts, ", "))
	if len(p.Machines) == 1 {
		text = "1 machine: on " + p.Machines[0].Node
	}
	switch {
	case stay == len(p.Machines) && stay > 1:
		text += "; all exist and stay"
	case stay == 1:
		text += "; 1 exists and stays"
	case stay > 1:
		text += fmt.Sprintf("; %d exist and stay", stay)
	}
	return text
}
