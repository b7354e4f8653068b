package wire

import (
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Template is an entry of the catalogue.
type Template struct {
	ID          uuid.UUID `json:"id" doc:"Its id."`
	Name        string    `json:"name" doc:"What it is called in the catalogue."`
	Repo        string    `json:"repo" doc:"Its repository."`
	Path        string    `json:"path,omitempty" doc:"Its directory there; absent: the root."`
	Version     string    `json:"version" doc:"The version that is offered first."`
	Description string    `json:"description,omitempty" doc:"What it is for."`
	Approval    string    `json:"approval" enum:"never,destructive,always" doc:"When a plan of it must be approved."`
	CreatedAt   time.Time `json:"created_at" doc:"When it was made."`
}

// Inspection is what is known of one version of a template.
type Inspection struct {
	Status    string               `json:"status" doc:"State of the scan: wanted, handed (an agent must), queued, done or failed. Empty: nobody has asked."`
	Inspected bool                 `json:"inspected" doc:"variables is what that version declares."`
	Variables []provision.Variable `json:"variables" doc:"Each of them."`
	Commit    *string              `json:"commit,omitempty" doc:"The scanned commit."`
	About     *provision.About     `json:"about,omitempty" doc:"What that version says of itself in tendril.hcl."`
	Readme    string               `json:"readme,omitempty" doc:"Its README.md, of at most 32 KiB."`
	By        *string              `json:"inspected_by,omitempty" doc:"Who looked: trellis, agent or run."`
	At        *time.Time           `json:"inspected_at,omitempty" doc:"When."`
	Problem   string               `json:"problem,omitempty" doc:"Why the scan failed."`
	Reason    string               `json:"reason,omitempty" doc:"The same as a word."`
	Number    *int64               `json:"provision,omitempty" doc:"The provision of the agent's run."`
}

// SaveTemplateInputBody puts a template into the catalogue.
type SaveTemplateInputBody struct {
	Name        string `json:"name" minLength:"1" maxLength:"200" doc:"What it is called in the catalogue." example:"envtempl"`
	Repo        string `json:"repo" minLength:"1" maxLength:"500" doc:"Its repository: https://HOST/PATH, ssh://[USER@]HOST/PATH, USER@HOST:PATH or file:///PATH. Credentials belong to the agents, not here." example:"https://git.example/acme/envtempl"`
	Version     string `json:"version" minLength:"1" maxLength:"200" doc:"The version that is offered first: a tag or a full commit, never a branch." example:"v1.2.0"`
	Path        string `json:"path,omitempty" maxLength:"500" doc:"Its directory in the repository; empty: the root." example:"envs/prod"`
	Description string `json:"description,omitempty" maxLength:"4000" doc:"What it is for."`
	Approval    string `json:"approval,omitempty" enum:"never,destructive,always" doc:"When a plan of it must be approved; a cluster's policy may want more. Not given: as it is, never for a new one." example:"destructive"`
}

// PinInputBody pins a tag to a commit.
type PinInputBody struct {
	Version string `json:"version,omitempty" maxLength:"255" doc:"The tag; default: the catalogue's own." example:"v1.2.0"`
	Commit  string `json:"commit" pattern:"^[0-9a-f]{40}$" doc:"The full commit that the tag means." example:"4b825dc642cb6eb9a060e54bf8d69288fbee4904"`
	Reason  string `json:"reason" minLength:"1" maxLength:"500" doc:"Why, for the audit." example:"Inspected by hand"`
}
