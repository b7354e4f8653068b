package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	"filippo.io/age"
)

// identities are the agent's private keys, to which what is secret is sealed on
// its way through the database. The first is the current one; those behind it
// open what was sealed before a rotation. They never leave this process.
type identities []*age.X25519Identity

// loadIdentities takes those that were configured, or, where none are, the one
// in the data directory, which is made at the first start.
func (d *dataDir) loadIdentities(configured Identity) (identities, error) {
	if configured.File != "" {
		return parseIdentities(configured.File, configured.Text)
	}
	path := d.path("identity")
	text, err := readFile(path)
	switch {
	case err == nil:
		return parseIdentities(path, string(text))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the agent's identity: %w", err)
	}
	made, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("make the agent's identity: %w", err)
	}
	content := fmt.Sprintf("# public key: %s\n%s\n", made.Recipient(), made)
	if err := writeFile(path, []byte(content)); err != nil {
		return nil, fmt.Errorf("write the agent's identity: %w", err)
	}
	return identities{made}, nil
}

// parseIdentities quotes nothing of the text, not even in errors.
func parseIdentities(path, text string) (all identities, err error) {
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		identity, err := age.ParseX25519Identity(line)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: no age identity (AGE-SECRET-KEY-1…), as age-keygen makes it", path, n+1)
		}
		all = append(all, identity)
	}
	if all == nil {
		return nil, fmt.Errorf("%s holds no age identity (AGE-SECRET-KEY-1…): make one with age-keygen", path)
	}
	return all, nil
}

// public is what variables are to be sealed to for this agent.
func (i identities) public() string { return i[0].Recipient().String() }

// compare tells people when the cluster's key is not the current one.
func (i identities) compare(cluster string, log *slog.Logger) {
	known := slices.ContainsFunc(i, func(one *age.X25519Identity) bool { return one.Recipient().String() == cluster })
	switch {
	case cluster == "" || cluster == i.public():
	case known:
		log.Info("the cluster's key is one of this agent's older ones; when all agents have the new one, set it with set_cluster_key",
			"cluster_key", cluster, "agent_key", i.public())
	default:
		log.Warn("the cluster's key is not this agent's: what is sealed for the cluster cannot be opened here. "+
			"Give all agents of the cluster one identity (identity_file), and if its public half is another one, have an admin call set_cluster_key with it",
			"cluster_key", cluster, "agent_key", i.public())
	}
}
