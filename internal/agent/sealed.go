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

// open opens what is sealed for a provision, all or none: the snapshot's variables,
// and what a person has answered. A snapshot that is wrong in itself is left to the
// child, which says so in its log.
func (v *sealedVars) open(a provision.Assignment) (vars, input map[string]json.RawMessage, err error) {
	snapshot, err := provision.ParseSnapshot(a.Snapshot)
	if err != nil {
		return nil, nil, nil //nolint:nilerr // the child meets the same error and tells of it
	}
	if vars, err = v.openAll("sealed_vars", snapshot.SealedVars, a, snapshot); err == nil && a.Input != nil {
		input, err = v.openAll("input.sealed", a.Input.Sealed, a, snapshot)
	}
	return vars, input, err
}

func (v *sealedVars) openAll(where string, sealed map[string]string, a provision.Assignment, snapshot provision.Snapshot) (map[string]json.RawMessage, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	if n := len(sealed); n > seal.MaxVariables {
		return nil, provision.Fail(provision.CodeSealedInvalid, fmt.Sprintf(
			"%s: %d values, at most %d are allowed", where, n, seal.MaxVariables), nil)
	}
	if v.moved != "" {
		return nil, provision.Fail(provision.CodeSealedInvalid, where+": "+v.moved, nil)
	}
	run := seal.Use{Cluster: v.cluster, Workspace: a.Workspace, Repo: snapshot.TemplateSource.Repo}
	opened := make(map[string]json.RawMessage, len(sealed))
	var problems []string
	foreign := false
	identities := v.keys.held()
	for _, name := range slices.Sorted(maps.Keys(sealed)) {
		run.Name = name
		value, err := identities.OpenVariable(sealed[name], run)
		if err != nil {
			foreign = foreign || errors.Is(err, seal.ErrNotForUs)
			problems = append(problems, fmt.Sprintf("%s.%s: %v", where, name, err))
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
	return text + ". Have an agent that has the cluster's identity share it (tendril identity share), or give all agents the same identity_file and have an admin call set_cluster_key with its public half. Then seal the value again: trellis seal NAME --cluster … --workspace … --repo …"
}
