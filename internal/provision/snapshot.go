package provision

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MaxSnapshot is the most bytes of JSON a snapshot may have.
const MaxSnapshot = 256 << 10

// Snapshot is what a provision asks for: provisions.config_snapshot. The same
// rules are kept by the database when the row is inserted.
type Snapshot struct {
	TemplateSource TemplateSource `json:"template_source"`
	// TerraformVars are the template's variables, each as it was written, so
	// that numbers keep their precision.
	TerraformVars map[string]json.RawMessage `json:"terraform_vars,omitempty"`
	// Workspace is what the snapshot itself says; see WorkspaceName.
	Workspace string       `json:"workspace,omitempty"`
	Terraform EngineChoice `json:"terraform,omitzero"`
	// SealedVars are variables as age messages to the cluster's key, armoured;
	// what is inside is seal.Variable. None is in TerraformVars as well.
	SealedVars map[string]string `json:"sealed_vars,omitempty"`
	// Targets and Replace are resource addresses, as for -target and -replace.
	Targets []string `json:"targets,omitempty"`
	Replace []string `json:"replace,omitempty"`
	// Approval may be stricter than what template and cluster want, never
	// more lenient; "" leaves it to them.
	Approval Approval `json:"approval,omitempty"`
	// TimeoutSeconds bounds the run; 0 takes the agent's limit, beyond which it
	// cannot go.
	TimeoutSeconds int `json:"timeout_seconds,omitempty"`
	// MaxAttempts is how often the provision is tried when it fails before its
	// apply began; 0 and 1 are once.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// RequesterKey is the public key, age1… or ssh-ed25519 …, to which sensitive
	// outputs are sealed, or a certificate of one; "" for none. Whether it may be is
	// for the agent's policy to say.
	RequesterKey string `json:"requester_key,omitempty"`
	// State is what the operation state does.
	State *StateCommand `json:"state,omitempty"`
	// LockID is the lock that the operation unlock releases.
	LockID string `json:"lock_id,omitempty"`
	// Meta is the caller's own: who, why. Nothing here depends on it.
	Meta map[string]json.RawMessage `json:"meta,omitempty"`
}

// StateCommand is one change to a state, or a look at it.
type StateCommand struct {
	// Command is pull, push, list, rm, mv, import, rollback or adopt (take over
	// the state of the backend that the template declares).
	Command string `json:"command"`
	// Args are the addresses of rm and mv, and address and id of import.
	Args []string `json:"args,omitempty"`
	// Upload is the blob that push takes, sealed to the cluster's key.
	Upload string `json:"upload,omitempty"`
	// Version is the state that rollback returns to, and that pull reads; 0 is
	// the newest.
	Version int64 `json:"version,omitempty"`
	// Order is what somebody has signed for push and rollback, see trust.Order.
	Order string `json:"order,omitempty"`
}

// TemplateSource is which template, at which point of its history.
type TemplateSource struct {
	Repo string `json:"repo"`
	// Version is a tag or a full commit, never a branch.
	Version string `json:"version"`
	// Path is the template's directory within the repository; "" is its root.
	Path string `json:"path,omitempty"`
}

// EngineChoice is the engine a snapshot asks for; what is empty is up to the
// agent.
type EngineChoice struct {
	Engine  string `json:"engine,omitempty"`  // "terraform" or "tofu"
	Version string `json:"version,omitempty"` // exact, such as 1.11.4
}

// ParseSnapshot reads and checks a config_snapshot. Its error is a Failure
// with CodeBadSnapshot whose message names every problem by its path, one a
// line. A null counts as absent. Whether the snapshot names a workspace is not
// checked here, for an assignment brings the name: ask WorkspaceName.
func ParseSnapshot(data []byte) (Snapshot, error) {
	if len(data) > MaxSnapshot {
		return Snapshot{}, Fail(CodeBadSnapshot, fmt.Sprintf(
			"config_snapshot: %d bytes, at most %d are allowed", len(data), MaxSnapshot), nil)
	}
	root, err := newSnapshotObject("config_snapshot", data)
	if err != nil {
		return Snapshot{}, err
	}

	var s Snapshot
	source := root.object("template_source", true)
	s.TemplateSource.Repo = source.text("repo", true, checkRepo)
	s.TemplateSource.Version = source.text("version", true, checkVersion)
	s.TemplateSource.Path = source.text("path", false, checkPath)
	source.refuseUnknown(map[string]string{
		"url": "repo", "repository": "repo", "git": "repo",
		"ref": "version", "tag": "version", "branch": "version", "commit": "version", "revision": "version",
		"dir": "path", "directory": "path", "subdir": "path", "folder": "path",
	})

	vars := root.object("terraform_vars", false)
	for _, name := range slices.Sorted(maps.Keys(vars.members)) {
		if problem := checkVariableName(name); problem != "" {
			vars.fail(quoteUnlessPlain(name), problem)
		}
	}
	s.TerraformVars = vars.members

	s.Workspace = root.text("workspace", false, checkWorkspace)

	engine := root.object("terraform", false)
	s.Terraform.Engine = engine.text("engine", false, checkEngine)
	s.Terraform.Version = engine.text("version", false, checkEngineVersion)
	engine.refuseUnknown(map[string]string{"kind": "engine", "name": "engine"})

	s.SealedVars = root.sealed("sealed_vars", s.TerraformVars)
	s.Targets = root.addresses("targets")
	s.Replace = root.addresses("replace")
	s.Approval = Approval(root.text("approval", false, checkApproval))
	s.TimeoutSeconds = int(root.number("timeout_seconds", 1, maxTimeout))
	s.MaxAttempts = int(root.number("max_attempts", 1, maxAttempts))
	s.RequesterKey = root.text("requester_key", false, checkRequesterKey)
	s.LockID = root.text("lock_id", false, checkArgument(maxLockID))
	s.State = root.stateCommand("state")

	s.Meta = root.object("meta", false).members
	root.refuseUnknown(map[string]string{
		"vars": "terraform_vars", "variables": "terraform_vars", "tfvars": "terraform_vars",
		"source": "template_source", "template": "template_source", "engine": "terraform",
		"metadata": "meta",
	})

	if problems := *root.problems; len(problems) > 0 {
		return Snapshot{}, Fail(CodeBadSnapshot, strings.Join(problems, "\n"), nil)
	}
	return s, nil
}

// WorkspaceName is the workspace that the snapshot belongs to: the one it
// names, else project_name/environment from its variables. The error is a
// Failure with CodeBadSnapshot.
func (s Snapshot) WorkspaceName() (string, error) {
	if s.Workspace != "" {
		return s.Workspace, nil
	}
	var parts [2]string
	for i, name := range []string{"project_name", "environment"} {
		// A value that is no string leaves the part empty.
		if err := json.Unmarshal(s.TerraformVars[name], &parts[i]); err != nil || parts[i] == "" {
			return "", Fail(CodeBadSnapshot, "config_snapshot.workspace: missing; "+
				"give it, or project_name and environment as strings in terraform_vars", nil)
		}
		// a/b with c and a with b/c must not become one state.
		if strings.Contains(parts[i], "/") {
			return "", Fail(CodeBadSnapshot, "config_snapshot.workspace: missing; "+
				"project_name and environment cannot stand for it, for one has a \"/\" in it", nil)
		}
	}
	workspace := parts[0] + "/" + parts[1]
	if problem := checkWorkspace(workspace); problem != "" {
		return "", Fail(CodeBadSnapshot, fmt.Sprintf(
			"config_snapshot.workspace: missing, and project_name/environment will not do: %s", problem), nil)
	}
	return workspace, nil
}
