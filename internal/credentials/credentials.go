package credentials

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/trust"
)

// Reader reads the credentials of an agent's configuration. It is safe for
// concurrent use.
type Reader struct {
	entries  config.Credentials
	fallback map[string]string
}

// New returns a Reader that has read no file yet. Environ is the agent's.
func New(c config.Config, environ []string) *Reader {
	r := &Reader{entries: c.Credentials, fallback: map[string]string{}}
	for _, entry := range c.DefaultCredentials(environ) {
		name, value, _ := strings.Cut(entry, "=")
		r.fallback[name] = value
	}
	return r
}

// For returns the credentials of a workspace as they are now. The error, a
// Failure, names what cannot be read and nothing that is in it.
func (r *Reader) For(workspace string, id uuid.UUID) (job.Credentials, error) {
	if len(r.entries) == 0 {
		return job.Credentials{}, nil
	}
	for i, entry := range r.entries {
		where, err := trust.ParseWorkspaces(entry.Workspace)
		if err != nil || !where.Match(workspace, id) {
			continue // the configuration was checked
		}
		c, err := read(entry)
		if err != nil {
			return job.Credentials{}, provision.Fail(provision.CodeCredentials, fmt.Sprintf(
				"credentials of the workspace %s, entry %d (%s) of the agent's configuration: %v", workspace, i+1, entry.Workspace, err), err)
		}
		return c, nil
	}
	if len(r.fallback) > 0 {
		return job.Credentials{Env: r.fallback}, nil
	}
	return job.Credentials{Note: fmt.Sprintf("No credentials of the agent's configuration are for the workspace %s, so this run has none.", workspace)}, nil
}

func read(entry config.WorkspaceCredentials) (job.Credentials, error) {
	texts := map[string]string{}
	files := entry.SecretFiles()
	for _, key := range slices.Sorted(maps.Keys(files)) {
		text, err := config.ReadOwned(files[key])
		if err == nil && strings.TrimSpace(text) == "" {
			err = fmt.Errorf("is empty")
		}
		if err != nil {
			return job.Credentials{}, fmt.Errorf("%s: %s %w", key, files[key], err)
		}
		texts[key] = text
	}
	c := job.Credentials{Env: map[string]string{}, Files: map[string]string{}}
	if text, ok := texts["env_file"]; ok {
		if err := parseEnv(text, c.Env); err != nil {
			return job.Credentials{}, fmt.Errorf("env_file: %s, %w", entry.EnvFile, err)
		}
	}
	for name := range entry.Files {
		c.Files[name] = texts["files."+name]
	}
	if entry.AWSRoleARN != "" {
		c.Env["AWS_ROLE_ARN"] = entry.AWSRoleARN
		c.Files["AWS_WEB_IDENTITY_TOKEN_FILE"] = texts["web_identity_token_file"]
	}
	if token, ok := texts["service_account_token_file"]; ok {
		c.Env["KUBE_TOKEN"] = strings.TrimSpace(token)
	}
	return c, nil
}

// parseEnv reads NAME=VALUE lines. A value may stand in quotes, which are no
// part of it; nothing in it is expanded.
func parseEnv(text string, into map[string]string) error {
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		switch {
		case !ok: // not quoted: it may be a secret
			return fmt.Errorf("line %d: is not NAME=VALUE", n+1)
		case !config.GivenToWorkspace(name):
			return fmt.Errorf("line %d: its name may not be set; never PATH, HOME, TMPDIR, TENDRIL_*, TRELLIS_*, LD_* or TF_*", n+1)
		case strings.ContainsRune(value, 0):
			return fmt.Errorf("line %d: the value of %s has a NUL in it", n+1, name)
		}
		if last := len(value) - 1; last > 0 && (value[0] == '"' || value[0] == '\'') && value[last] == value[0] {
			value = value[1:last]
		}
		into[name] = value
	}
	return nil
}
