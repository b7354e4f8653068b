package provision

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/canonical"
)

// Again is the snapshot for another operation on what an earlier one deployed:
// its template, variables and engine, for that workspace, and nothing that was
// meant for the one run alone, as its targets. by is who triggers it.
func Again(last []byte, workspace, by string) (json.RawMessage, error) {
	before, err := ParseSnapshot(last)
	if err != nil {
		return nil, err
	}
	triggered, err := json.Marshal(by)
	if err != nil {
		return nil, fmt.Errorf("encode who triggers it: %w", err)
	}
	asked := Snapshot{
		TemplateSource: before.TemplateSource, TerraformVars: before.TerraformVars, SealedVars: before.SealedVars,
		Workspace: workspace, Terraform: before.Terraform, RequesterKey: before.RequesterKey,
		Meta: map[string]json.RawMessage{"triggered_by": triggered},
	}
	if err := before.SealedElsewhere(asked); err != nil {
		return nil, err
	}
	snapshot, err := json.Marshal(asked)
	if err != nil {
		return nil, fmt.Errorf("encode the snapshot: %w", err)
	}
	_, err = ParseSnapshot(snapshot)
	return snapshot, err
}

// SealedElsewhere refuses what asks for sealed values of this snapshot in another
// workspace or with another template: they were sealed for this one's, and an agent
// would not open them. A workspace that was renamed is another one. The error is a
// Failure with CodeBadSnapshot that names each.
func (s Snapshot) SealedElsewhere(asked Snapshot) error {
	was, err := s.WorkspaceName()
	if err != nil {
		return nil //nolint:nilerr // it was taken all the same; the agent compares
	}
	is, err := asked.WorkspaceName()
	if err != nil {
		return err
	}
	var differs []string
	if was != is {
		differs = append(differs, fmt.Sprintf("the workspace %s, and this is for the workspace %s", was, is))
	}
	if was, is := canonical.Address(s.TemplateSource.Repo), canonical.Address(asked.TemplateSource.Repo); was != is {
		differs = append(differs, fmt.Sprintf("the template repository %s, and this is for %s", was, is))
	}
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(asked.SealedVars)) {
		if len(differs) > 0 && asked.SealedVars[name] == s.SealedVars[name] {
			problems = append(problems, fmt.Sprintf("config_snapshot.sealed_vars.%s: it was sealed for %s; seal the value again", name, strings.Join(differs, ", and for ")))
		}
	}
	if problems == nil {
		return nil
	}
	return Fail(CodeBadSnapshot, strings.Join(problems, "\n"), nil)
}
