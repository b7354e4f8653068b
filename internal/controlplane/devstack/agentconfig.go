package devstack

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// agentName is what the local agent calls itself. It ends in something of this
// data directory's own: two on one machine may share a database, and a name is
// taken until half a minute after its agent has gone.
func agentName(l login) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find this machine's name: %w", err)
	}
	plain := regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(host, "-")
	return "up-" + plain[:min(len(plain), 80)] + "-" + l.Role[max(0, len(l.Role)-4):], nil
}

// hostName is this instance's for browsers, the same at each start.
func hostName(l login) string {
	sum := sha256.Sum256([]byte(l.Role))
	return "trellis-" + hex.EncodeToString(sum[:5]) + ".localhost"
}

// agentConfig is tendril.toml: what this Stack decides about its agent. The
// rest is the agent's defaults and the environment.
type agentConfig struct {
	Name    string `toml:"name"`
	DataDir string `toml:"data_dir"`
	Slots   int    `toml:"slots"`
	// The format that errors are picked out of.
	LogFormat string `toml:"log_format"`
	Queue     struct {
		URL       string `toml:"url"`
		TokenFile string `toml:"token_file"`
	} `toml:"queue"`
	State struct {
		Default string `toml:"default"`
	} `toml:"state"`
	Policy struct {
		Repos         []string `toml:"repos"`
		Operations    []string `toml:"operations"`
		RequesterKeys []string `toml:"requester_keys,omitempty"`
		AllowFile     bool     `toml:"allow_file"`
	} `toml:"policy"`
}

// writeAgentConfig writes tendril.toml and returns its path. It is 0600: the
// queue's URL holds a password.
func writeAgentConfig(o Options, name, queueURL string) (string, error) {
	c := agentConfig{Name: name, DataDir: o.path("agent"), Slots: o.Slots, LogFormat: "json"}
	c.Queue.URL, c.Queue.TokenFile = queueURL, o.path("token")
	c.Policy.Repos = append([]string{o.templatePattern()}, o.AllowRepos...)
	for _, operation := range provision.Operations { // it is the machine of who asks
		c.Policy.Operations = append(c.Policy.Operations, string(operation))
	}
	c.Policy.RequesterKeys = o.RequesterKeys
	c.Policy.AllowFile = true
	c.State.Default = job.Managed
	var text bytes.Buffer
	text.WriteString("# Written by trellis up at each start: what you change here is lost.\n")
	encoder := toml.NewEncoder(&text)
	encoder.SetArraysMultiline(true)
	if err := encoder.Encode(c); err != nil {
		return "", fmt.Errorf("write the agent's configuration: %w", err)
	}
	file := o.path("tendril.toml")
	if err := instance.WriteSecret(file, text.Bytes()); err != nil {
		return "", fmt.Errorf("write the agent's configuration: %w", err)
	}
	return file, nil
}

// agentEnv is the environment that the agent starts with: ours, for cloud
// credentials and proxies, without what is ours alone. The environment beats
// the configuration file, so of the agent's own variables only those stay that
// the file does not decide.
func agentEnv(environ []string) []string {
	var kept []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		switch {
		case strings.HasPrefix(name, "TRELLIS_"), name == "PGPASSWORD", name == "PGPASSFILE", name == "PGUSER":
		case !strings.HasPrefix(name, "TENDRIL_"), decidedElsewhere(name):
			kept = append(kept, entry)
		}
	}
	return kept
}

// decidedElsewhere reports whether a TENDRIL_ variable is a setting of the
// agent that tendril.toml leaves open.
func decidedElsewhere(name string) bool {
	for _, prefix := range []string{"TENDRIL_GIT_", "TENDRIL_ENGINE_", "TENDRIL_STATE_", "TENDRIL_RUN_", "TENDRIL_TEST_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return name == "TENDRIL_DRAIN_TIMEOUT" || name == "TENDRIL_LOG_LEVEL"
}
