package provision

import (
	"encoding/json"
	"fmt"
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
	snapshot, err := json.Marshal(Snapshot{
		TemplateSource: before.TemplateSource, TerraformVars: before.TerraformVars, SealedVars: before.SealedVars,
		Workspace: workspace, Terraform: before.Terraform, RequesterKey: before.RequesterKey,
		Meta: map[string]json.RawMessage{"triggered_by": triggered},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the snapshot: %w", err)
	}
	_, err = ParseSnapshot(snapshot)
	return snapshot, err
}
