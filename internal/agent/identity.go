package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/tendril-run/tendril/internal/seal"
)

// loadIdentities takes those that were configured, or, where none are, the one
// in the data directory, which is made at the first start. They never leave this
// process.
func (d *dataDir) loadIdentities(configured Identity) (seal.Identities, error) {
	if configured.File != "" {
		return seal.ParseIdentities(configured.File, configured.Text)
	}
	path := d.path("identity")
	text, err := readFile(path)
	switch {
	case err == nil:
		return seal.ParseIdentities(path, string(text))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the agent's identity: %w", err)
	}
	made, err := seal.Generate()
	if err != nil {
		return nil, err
	}
	content := fmt.Sprintf("# public key: %s\n%s\n", made.Public(), made[0])
	if err := writeFile(path, []byte(content)); err != nil {
		return nil, fmt.Errorf("write the agent's identity: %w", err)
	}
	return made, nil
}

// compareKeys tells people when the cluster's key is not the agent's current one.
func compareKeys(own seal.Identities, cluster string, log *slog.Logger) {
	switch {
	case cluster == "" || cluster == own.Public():
	case own.Holds(cluster):
		log.Info("the cluster's key is one of this agent's older ones; when all agents have the new one, set it with set_cluster_key",
			"cluster_key", cluster, "agent_key", own.Public())
	default:
		log.Warn("the cluster's key is not this agent's: what is sealed for the cluster cannot be opened here. "+
			"Give all agents of the cluster one identity (identity_file), and if its public half is another one, have an admin call set_cluster_key with it",
			"cluster_key", cluster, "agent_key", own.Public())
	}
}
