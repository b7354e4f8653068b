package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// openSealed opens the sealed variables of a provision, all or none. A snapshot
// that is wrong in itself is left to the child, which says so in its log.
func (b *boot) openSealed(a provision.Assignment) (map[string]json.RawMessage, error) {
	snapshot, err := provision.ParseSnapshot(a.Snapshot)
	if err != nil || len(snapshot.SealedVars) == 0 {
		return nil, nil //nolint:nilerr // the child meets the same error and tells of it
	}
	if n := len(snapshot.SealedVars); n > seal.MaxVariables {
		return nil, provision.Fail(provision.CodeSealedInvalid, fmt.Sprintf(
			"sealed_vars: %d variables, at most %d are allowed", n, seal.MaxVariables), nil)
	}
	opened := make(map[string]json.RawMessage, len(snapshot.SealedVars))
	var problems []string
	foreign := false
	identities := b.keys.held()
	for _, name := range slices.Sorted(maps.Keys(snapshot.SealedVars)) {
		value, err := identities.OpenVariable(snapshot.SealedVars[name], name, a.Workspace)
		if err != nil {
			foreign = foreign || errors.Is(err, seal.ErrNotForUs)
			problems = append(problems, fmt.Sprintf("sealed_vars.%s: %v", name, err))
			continue
		}
		opened[name] = value
	}
	if foreign {
		problems = append(problems, b.whoseKeys())
	}
	if problems != nil {
		return nil, provision.Fail(provision.CodeSealedInvalid, strings.Join(problems, "\n"), nil)
	}
	return opened, nil
}

// whoseKeys says which keys there are and what to do about a message that none
// of this agent's opens. Of the message itself the key cannot be told.
func (b *boot) whoseKeys() string {
	identities := b.keys.held()
	own := make([]string, len(identities))
	for n := range identities {
		own[n] = seal.Fingerprint(identities[n : n+1].Public())
	}
	text := "This agent opens what is sealed to " + strings.Join(own, " or ")
	switch key := b.keys.clusterKey(); {
	case key == "":
		text += ", and the cluster had no key when the agent last asked"
	case identities.Holds(key):
		return text + "; the cluster's key is " + seal.Fingerprint(key) + ", which is among them. Seal the value again: trellis seal NAME --cluster …"
	default:
		text += "; the cluster's key, when the agent last asked, was another one, " + seal.Fingerprint(key)
	}
	return text + ". Give all agents of the cluster the same identity_file and have an admin call set_cluster_key with its public half, then seal the value again: trellis seal NAME --cluster …"
}
