package api

import "github.com/danielgtaylor/huma/v2"

// snapshotSchema is what a config_snapshot is, for readers of the document. It is
// checked by the database alone.
var snapshotSchema = &huma.Schema{
	Type:        huma.TypeObject,
	Description: "What to deploy: which template, with which variables, into which workspace. At most 256 KiB. The database checks it when the provision is made, and names every field that is wrong.",
	Required:    []string{"template_source"},
	Examples: []any{map[string]any{
		"template_source": map[string]any{"repo": "https://git.example/acme/envtempl", "version": "v1.2.0"},
		"terraform_vars":  map[string]any{"project_name": "acme", "environment": "prod", "region": "eu-central-1"},
	}},
	Properties: map[string]*huma.Schema{
		"template_source": {
			Type: huma.TypeObject, Description: "The template, at one point of its history.", Required: []string{"repo", "version"},
			Properties: map[string]*huma.Schema{
				"repo":    text("https://HOST/PATH, ssh://[USER@]HOST/PATH, USER@HOST:PATH or file:///PATH. Credentials belong to the agents, not here."),
				"version": text("A tag or a full commit, never a branch."),
				"path":    text("The template's directory there; absent: the root."),
			},
		},
		"terraform_vars": {Type: huma.TypeObject, AdditionalProperties: true, Description: "The template's variables by their names. What is sensitive belongs into sealed_vars."},
		"sealed_vars":    {Type: huma.TypeObject, AdditionalProperties: text(`An armoured age message to the cluster's age_public_key. Inside is {"v": 2, "cluster": NAME, "workspace": NAME, "repo": URL, "name": VARIABLE, "value": VALUE}, as "trellis seal" makes it; repo is in its canonical form. It opens for that use only.`), Description: "Variables that only the cluster's agents can read, each for one cluster, workspace, template repository and variable."},
		"workspace":      text("The workspace: letters, digits and . _ / - , at most 128. Absent: project_name/environment, of the variables of those names."),
		"terraform": {
			Type: huma.TypeObject, Description: "The engine. What is not said is up to the template and the agent.",
			Properties: map[string]*huma.Schema{
				"engine":  {Type: huma.TypeString, Enum: []any{"terraform", "tofu"}, Description: "Which engine."},
				"version": text("Exactly which version, such as 1.11.4."),
			},
		},
		"targets":         {Type: huma.TypeArray, Items: text("A resource's address."), Description: "Only these resources, as -target has it."},
		"replace":         {Type: huma.TypeArray, Items: text("A resource's address."), Description: "Destroy these and make them anew, as -replace has it."},
		"approval":        {Type: huma.TypeString, Enum: approvals, Description: "When the plan must be approved. Template and cluster may want more, never less."},
		"timeout_seconds": {Type: huma.TypeInteger, Description: "How long the run may take, in seconds. The agent's own limit counts as well."},
		"max_attempts":    {Type: huma.TypeInteger, Description: "How often to try, where it fails for a reason that may pass and before its apply has begun. Absent: once."},
		"requester_key":   text("The public key, age1… or ssh-ed25519 …, to which sensitive outputs and results are sealed, or a certificate of one. The agent seals to whom its policy.requester_keys name."),
		"lock_id":         text("For the operation unlock: the lock to release."),
		"state": {
			Type: huma.TypeObject, Description: "For the operation state: what to do with it.", Required: []string{"command"},
			Properties: map[string]*huma.Schema{
				"command": {Type: huma.TypeString, Enum: []any{"pull", "push", "list", "rm", "mv", "import", "rollback", "adopt"}, Description: "What to do."},
				"args":    {Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}, Description: "The addresses of rm and mv; address and id of import."},
				"upload":  text("The id of the upload that push takes."),
				"order":   text("The signed order without which an agent carries out no push and no rollback; the command line makes it."),
				"version": {Type: huma.TypeInteger, Description: "The state that rollback goes back to, or pull reads. Absent: the newest."},
			},
		},
		"meta": {Type: huma.TypeObject, AdditionalProperties: true, Description: "Your own: who, why. Nothing depends on it."},
	},
}

func text(description string) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: description}
}
