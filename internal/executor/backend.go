package executor

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
)

// backend is where the run's state lives.
type backend struct {
	config map[string]string // completes what the template declares
	place  string            // in words, for people
	// local: a file in this agent's data directory, so that the workspace
	// belongs to this agent.
	local bool
	// managed: in the database, by way of this run's own server.
	managed bool
	// starts: init may start commands that the template names.
	starts bool
}

// localState is the name of a state that is a file of this agent's.
const localState = "terraform.tfstate"

// workspaceID stands for the workspace's id in configured values.
const workspaceID = "{workspace_id}"

// stateKeys says, for backends that hold many states in one place, by which
// argument they are told apart: two workspaces must never share a state.
var stateKeys = map[string]struct{ argument, value string }{
	"s3":         {"key", "tendril/{workspace_id}/terraform.tfstate"},
	"azurerm":    {"key", "tendril/{workspace_id}/terraform.tfstate"},
	"oss":        {"key", "tendril/{workspace_id}/terraform.tfstate"},
	"cos":        {"key", "tendril/{workspace_id}/terraform.tfstate"},
	"gcs":        {"prefix", "tendril/{workspace_id}"},
	"consul":     {"path", "tendril/{workspace_id}"},
	"kubernetes": {"secret_suffix", "{workspace_id}"},
	"pg":         {"schema_name", "tendril_{workspace_id}"},
}

// chooseBackend decides, in this order: what the agent's policy says; what the
// template declares, completed by the agent; a managed state or a local file.
func chooseBackend(dir, kind string, j job.Job) (backend, error) {
	declared, err := terraform.ReadBackend(dir, kind)
	if err != nil {
		return backend{}, err
	}
	if j.Settings.State.Backend == job.Managed || j.Settings.State.MayBeManaged() && declared.Type == "local" {
		return backend{managed: true, place: "the managed state", starts: declared.Encrypts}, terraform.Override(dir, "http", nil)
	}
	if forced := j.Settings.State.Backend; forced != "" {
		config, err := stateConfig(forced, j)
		if err != nil {
			return backend{}, err
		}
		return backend{config: config, place: statePlace(forced, config), starts: declared.Encrypts}, terraform.Override(dir, forced, nil)
	}
	switch declared.Type {
	case "local":
		path := filepath.Join(j.Dirs.State, localState)
		return backend{local: true, place: path, starts: declared.Encrypts}, terraform.Override(dir, "local", map[string]string{"path": path})
	case "cloud", "remote":
		return backend{}, provision.Fail(provision.CodeTemplateInvalid, fmt.Sprintf(
			"%s: the template runs in somebody else's cloud (%s block), where Tendril cannot supervise it: remove the block, or set [state] backend in the agent's configuration",
			declared.File, declared.Type), nil)
	}
	config, err := stateConfig(declared.Type, j)
	return backend{config: config, place: statePlace(declared.Type, config), starts: declared.Starts || declared.Encrypts}, err
}

// declaredBackend is the one that the template declares, which the agent's policy
// has replaced by the managed state: whose state that is to be is in it.
func declaredBackend(dir, kind string, j job.Job) (backend, error) {
	if j.Settings.State.Backend != job.Managed {
		return backend{}, provision.Fail(provision.CodeStateFailed,
			`This agent uses the backend that the template declares, so there is nothing to take over: set [state] backend = "managed" in its configuration first`, nil)
	}
	j.Settings.State.Backend, j.Settings.State.Default = "", ""
	b, err := chooseBackend(dir, kind, j)
	if err == nil && b.local {
		err = provision.Fail(provision.CodeStateFailed, "The template declares no backend, so there is no state in one to take over", nil)
	}
	return b, err
}

// statePlace says where a backend has the workspace's state. Of what is
// configured it shows what holds no secret.
func statePlace(backendType string, config map[string]string) string {
	argument := stateKeys[backendType].argument
	value := config[argument]
	if at, err := url.Parse(config["address"]); backendType == "http" && err == nil {
		at.User, at.RawQuery = nil, ""
		argument, value = "address", at.String()
	}
	if value == "" {
		return fmt.Sprintf("the %s backend", backendType)
	}
	return fmt.Sprintf("the %s backend (%s %s)", backendType, argument, value)
}

// stateConfig is what the agent's configuration says about a type of backend,
// with the workspace's id filled in, and with the argument that keeps
// workspaces apart where the configuration does not have it.
func stateConfig(backendType string, j job.Job) (map[string]string, error) {
	id := j.Assignment.WorkspaceID.String()
	configured := j.Settings.State.Config[backendType]
	config := make(map[string]string, len(configured)+1)
	apart := false
	for key, value := range configured {
		config[key] = strings.ReplaceAll(value, workspaceID, id)
		apart = apart || config[key] != value
	}
	if apart {
		return config, nil
	}
	known, ok := stateKeys[backendType]
	if !ok || config[known.argument] != "" {
		return nil, provision.Fail(provision.CodeTemplateInvalid, fmt.Sprintf(
			"the %s backend would keep the states of all workspaces in one place: let a value in [state.config.%s] of the agent's configuration contain %s",
			backendType, backendType, workspaceID), nil)
	}
	config[known.argument] = strings.ReplaceAll(known.value, workspaceID, id)
	return config, nil
}

// CheckState reports why a backend of that type could not be used with the
// agent's configuration, whatever the template says; nil where nothing is known
// against it.
func CheckState(backendType string, state job.State) error {
	if backendType == "local" || backendType == job.Managed {
		return nil // it is told by template and workspace
	}
	_, err := stateConfig(backendType, job.Job{
		Assignment: provision.Assignment{WorkspaceID: uuid.New()}, Settings: job.Settings{State: state},
	})
	return err
}
