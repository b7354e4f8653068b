package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// sealedVars opens what people have sealed to this agent, for the cluster that it first
// registered in and for no other.
type sealedVars struct {
	dir     *dataDir
	keys    *keys
	log     *slog.Logger
	cluster string // see rememberCluster
	moved   string // why nothing is opened; "" where all is well
}

// open opens the sealed variables of a provision, all or none. A snapshot
// that is wrong in itself is left to the child, which says so in its log.
func (v *sealedVars) open(a provision.Assignment) (map[string]json.RawMessage, error) {
	snapshot, err := provision.ParseSnapshot(a.Snapshot)
	if err != nil || len(snapshot.SealedVars) == 0 {
		return nil, nil //nolint:nilerr // the child meets the same error and tells of it
	}
	if n := len(snapshot.SealedVars); n > seal.MaxVariables {
		return nil, provision.Fail(provision.CodeSealedInvalid, fmt.Sprintf(
			"sealed_vars: %d variables, at most %d are allowed", n, seal.MaxVariables), nil)
	}
	if v.moved != "" {
		return nil, provision.Fail(provision.CodeSealedInvalid, "sealed_vars: "+v.moved, nil)
	}
	run := seal.Use{Cluster: v.cluster, Workspace: a.Workspace, Repo: snapshot.TemplateSource.Repo}
	opened := make(map[string]json.RawMessage, len(snapshot.SealedVars))
	var problems []string
	foreign := false
	identities := v.keys.held()
	for _, name := range slices.Sorted(maps.Keys(snapshot.SealedVars)) {
		run.Name = name
		value, err := identities.OpenVariable(snapshot.SealedVars[name], run)
		if err != nil {
			foreign = foreign || errors.Is(err, seal.ErrNotForUs)
			problems = append(problems, fmt.Sprintf("sealed_vars.%s: %v", name, err))
			continue
		}
		opened[name] = value
	}
	if foreign {
		problems = append(problems, v.whoseKeys())
	}
	if problems != nil {
		return nil, provision.Fail(provision.CodeSealedInvalid, strings.Join(problems, "\n"), nil)
	}
	return opened, nil
}

// rememberCluster learns for which cluster this agent opens sealed values. The
// first registration is written down in the data directory, so that a database
// that later calls the same agent another cluster's is not believed: until its
// operator removes the note, nothing sealed is opened.
func (v *sealedVars) rememberCluster(registered string) error {
	path := v.dir.path("cluster")
	text, err := readFile(path)
	switch {
	case err == nil:
		v.cluster = strings.TrimSpace(string(text))
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read the name of this agent's cluster: %w", err)
	default:
		v.cluster = registered
		if err := durable.WriteFile(path, []byte(registered+"\n")); err != nil {
			return fmt.Errorf("write down the name of this agent's cluster: %w", err)
		}
	}
	if v.cluster != registered {
		v.moved = fmt.Sprintf("the database says that this agent belongs to the cluster %s, and %s says %s, so nothing sealed is opened. "+
			"If the agent was moved there on purpose, or its cluster renamed, remove that file, start the agent again, and seal the values again", registered, path, v.cluster)
		v.log.Warn(v.moved)
	}
	return nil
}

// whoseKeys says which keys there are and what to do about a message that none
// of this agent's opens. Of the message itself the key cannot be told.
func (v *sealedVars) whoseKeys() string {
	identities := v.keys.held()
	own := make([]string, len(identities))
	for n := range identities {
		own[n] = seal.Fingerprint(identities[n : n+1].Public())
	}
	text := "This agent opens what is sealed to " + strings.Join(own, " or ")
	switch key := v.keys.clusterKey(); {
	case key == "":
		text += ", and the cluster had no key when the agent last asked"
	case identities.Holds(key):
		return text + "; the cluster's key is " + seal.Fingerprint(key) + ", which is among them. Seal the value again: trellis seal NAME --cluster … --workspace … --repo …"
	default:
		text += "; the cluster's key, when the agent last asked, was another one, " + seal.Fingerprint(key)
	}
	return text + ". Give all agents of the cluster the same identity_file and have an admin call set_cluster_key with its public half, then seal the value again: trellis seal NAME --cluster … --workspace … --repo …"
}
