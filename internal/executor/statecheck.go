package executor

import (
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

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
