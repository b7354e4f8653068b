package config

import (
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/secretfile"
	"github.com/tendril-run/tendril/internal/trust"
)

// Credentials are the tables of [[credentials]]; the first whose pattern
// matches a workspace is that workspace's.
type Credentials []WorkspaceCredentials

// WorkspaceCredentials are what the runs of some workspaces sign in to clouds
// with. Secrets stand in files only: what they hold is read for each run, so that
// a new one serves the next run.
type WorkspaceCredentials struct {
	// Workspace is as trust.ParseWorkspaces reads it.
	Workspace string `toml:"workspace"`
	// EnvFile has environment variables, NAME=VALUE a line.
	EnvFile string `toml:"env_file"`
	// Files are environment variables that name files: a run gets copies.
	Files map[string]string `toml:"files"`

	AWSRoleARN           string `toml:"aws_role_arn"`
	WebIdentityTokenFile string `toml:"web_identity_token_file"`

	ServiceAccountTokenFile string `toml:"service_account_token_file"`
}

// credentialKeys says, for the reference, what a table may hold.
const credentialKeys = "`workspace`, a pattern (`*` within a segment, `**` for any number of them), optionally with the workspace's id (`acme/prod id=UUID`); `env_file`, a file of NAME=VALUE lines; " +
	"`files`, a table of environment variables, each with a file whose copy it names (`GOOGLE_APPLICATION_CREDENTIALS`, `KUBE_CONFIG_PATH`); " +
	"`aws_role_arn` with `web_identity_token_file`; `service_account_token_file`, given as `KUBE_TOKEN`. Other users must not be able to read the files"

// paths are the files of the entry, by key.
func (c *WorkspaceCredentials) paths() map[string]*string {
	return map[string]*string{
		"env_file": &c.EnvFile, "web_identity_token_file": &c.WebIdentityTokenFile, "service_account_token_file": &c.ServiceAccountTokenFile,
	}
}

// SecretFiles are the files of the entry, by key.
func (c WorkspaceCredentials) SecretFiles() map[string]string {
	files := map[string]string{}
	for key, path := range c.paths() {
		if *path != "" {
			files[key] = *path
		}
	}
	for name, path := range c.Files {
		files["files."+name] = path
	}
	return files
}

// unknownCredentialKey is unknownKey for a table of Credentials.
func unknownCredentialKey(name, key string) string {
	if slices.Contains([]string{"env", "aws_secret_access_key", "aws_access_key_id", "service_account_token", "token"}, key) {
		return name + ": a secret does not belong in this file; put it in a file of its own, named by env_file or service_account_token_file"
	}
	var known []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[WorkspaceCredentials]()) {
		known = append(known, f.Tag.Get("toml"))
	}
	return name + ": unknown key" + provision.DidYouMean(key, known)
}

// UnmarshalText reads PATTERN:KEY=VALUE,… as it stands in the environment; what
// follows each other with one pattern is one entry.
func (all *Credentials) UnmarshalText(text []byte) error {
	var read Credentials
	for _, part := range splitList(string(text)) {
		pattern, rest, colon := strings.Cut(part, ":")
		key, value, equals := strings.Cut(rest, "=")
		if !colon || !equals {
			return fmt.Errorf("no PATTERN:KEY=VALUE")
		}
		if len(read) == 0 || read[len(read)-1].Workspace != pattern {
			read = append(read, WorkspaceCredentials{Workspace: pattern})
		}
		entry := &read[len(read)-1]
		variable, isFile := strings.CutPrefix(key, "files.")
		field := entry.paths()[key]
		switch {
		case isFile && entry.Files == nil:
			entry.Files = map[string]string{variable: value}
		case isFile:
			entry.Files[variable] = value
		case key == "aws_role_arn":
			entry.AWSRoleARN = value
		case field != nil:
			*field = value
		default:
			return fmt.Errorf("%s: unknown key", key)
		}
	}
	*all = read
	return nil
}

// absolute makes the relative paths start at directory.
func (all Credentials) absolute(directory string) {
	for i := range all {
		for _, path := range all[i].paths() {
			*path = below(directory, *path)
		}
		for name, path := range all[i].Files {
			all[i].Files[name] = below(directory, path)
		}
	}
}

var (
	roleARN = lazyregexp.New(`^arn:[a-z0-9-]+:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+$`).MatchString
	envName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString
)

// GivenToWorkspace reports whether a variable may come from a workspace's
// credentials: not what says where programs and files are, what would load code
// into the engine, or what changes its behaviour behind our back.
func GivenToWorkspace(name string) bool {
	return envName(name) && !slices.Contains([]string{"PATH", "HOME", "TMPDIR", "GOGC", "GODEBUG", "GORACE"}, name) &&
		!slices.ContainsFunc([]string{"TENDRIL_", "TRELLIS_", "LD_", "TF_"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// checkCredentials finds what is wrong with the tables.
func (l *loader) checkCredentials() {
	for i, entry := range l.config.Credentials {
		wrong := func(key, format string, args ...any) {
			l.problem("credentials[%d] (%q)%s: %s", i+1, entry.Workspace, key, fmt.Sprintf(format, args...))
		}
		if _, err := trust.ParseWorkspaces(entry.Workspace); err != nil {
			wrong(".workspace", `must be a pattern of workspace names such as acme/prod, acme/* or acme/**, "**" a whole segment, and may pin an id: acme/prod id=UUID`)
		}
		switch {
		case len(entry.SecretFiles()) == 0 && entry.AWSRoleARN == "":
			wrong("", "names no credential; set env_file, files, aws_role_arn with web_identity_token_file, or service_account_token_file")
		case (entry.AWSRoleARN == "") != (entry.WebIdentityTokenFile == ""):
			wrong("", "aws_role_arn and web_identity_token_file go together: who has the token may take the role")
		case entry.AWSRoleARN != "" && !roleARN(entry.AWSRoleARN):
			wrong(".aws_role_arn", "must be the ARN of a role, arn:aws:iam::ACCOUNT:role/NAME")
		}
		for _, name := range slices.Sorted(maps.Keys(entry.Files)) {
			if !GivenToWorkspace(name) {
				wrong(".files."+name, "is no name that may be set; never PATH, HOME, TMPDIR, TENDRIL_*, TRELLIS_*, LD_* or TF_*")
			}
		}
		files := entry.SecretFiles()
		for _, key := range slices.Sorted(maps.Keys(files)) {
			if _, err := ReadOwned(files[key]); err != nil {
				wrong("."+key, "%q %v", files[key], err)
			}
		}
	}
}

// ReadOwned is secretfile.Read for a file that decides what runs may do: nobody but
// root and this process's user may write it either.
func ReadOwned(path string) (string, error) {
	text, err := secretfile.Read(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	if info.Size() > int64(len(text)) {
		return "", fmt.Errorf("is larger than %d bytes", len(text))
	}
	if mode := info.Mode().Perm(); mode&0o020 != 0 {
		return "", fmt.Errorf("others may write it (mode %04o); run: chmod 0600 %s", mode, strconv.Quote(path))
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return "", fmt.Errorf("belongs to uid %d; it must belong to root or to the agent's user, uid %d", stat.Uid, os.Geteuid())
	}
	return text, nil
}

// maxKeyFile is the most bytes of a file with keys of people.
const maxKeyFile = 1 << 20

// Requesters is what policy.requester_keys say now: files are read for each run, so
// that people come and go without a restart.
func (c Config) Requesters() (*trust.Keyring, error) {
	keys, err := trust.ParseKeys(c.Policy.RequesterKeys, readUnwritable)
	if err != nil {
		return nil, fmt.Errorf("policy.requester_keys: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return keys, nil
}

// readUnwritable reads a file that decides what runs may do and holds no secret:
// nobody but root and this process's user may write it.
func readUnwritable(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("is no regular file")
	case info.Mode().Perm()&0o022 != 0:
		return "", fmt.Errorf("can be written by others (mode %04o); run: chmod go-w %q", info.Mode().Perm(), path)
	case ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return "", fmt.Errorf("belongs to uid %d; it must belong to root or to the agent's user, uid %d", stat.Uid, os.Geteuid())
	}
	text, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err == nil && len(text) > maxKeyFile {
		err = fmt.Errorf("it has more than %d bytes", maxKeyFile)
	}
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	return string(text), nil
}

// neverPassed is, in words, what forbidden refuses.
const neverPassed = "TENDRIL_*, TRELLIS_*, SUPABASE_*, PG*, DATABASE_URL, LD_* or TF_* (TF_CLI_CONFIG_FILE may be named)"

// engineConfig is the one TF_ variable that an operator may pass on, by its
// full name: it points to provider mirrors and credentials helpers.
const engineConfig = "TF_CLI_CONFIG_FILE"

// usual lists the variables that a child gets without being asked for: what
// programs need to run and to reach the network.
func usual() []string {
	return []string{
		"PATH", "HOME", "USER", "LANG", "LC_*", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	}
}

// cloud lists those that sign in to a cloud. A child gets them where
// credentials are not told apart by workspace.
func cloud() []string {
	return []string{
		"AWS_*", "AZURE_*", "ARM_*", "GOOGLE_*", "CLOUDSDK_*", "KUBE*", "KUBERNETES_*",
		"DIGITALOCEAN_*", "HCLOUD_TOKEN", "PROXMOX_*", "PM_*", "OS_*", "VSPHERE_*", "VAULT_*", "CLOUDFLARE_*",
	}
}

// forbidden reports whether a variable never reaches a child, whatever pass_env
// says: our own and the database's credentials, what would change Terraform's
// behaviour behind our back, and what would load code into it.
func forbidden(name string) bool {
	return name == "DATABASE_URL" || slices.ContainsFunc(
		[]string{"TENDRIL_", "TRELLIS_", "SUPABASE_", "PG", "LD_", "TF_"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// passable reports whether a pattern of pass_env can match anything that may
// be passed on.
func passable(pattern string) bool {
	if !envPattern(pattern) {
		return false
	}
	return pattern == engineConfig || !forbidden(strings.TrimSuffix(pattern, "*"))
}

// matches reports whether a variable's name fits a pattern, in which * may
// stand at the end.
func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// ChildEnv returns, of an environment such as os.Environ gives, what may reach
// a provision's process and Terraform.
func (c Config) ChildEnv(environ []string) []string { return pass(environ, c.PassedEnv()) }

// PassedEnv are the names of ChildEnv, with * at most at the end.
func (c Config) PassedEnv() []string {
	allowed := slices.Concat(usual(), c.Run.PassEnv)
	if len(c.Credentials) == 0 {
		allowed = append(allowed, cloud()...)
	}
	return allowed
}

// OverEnv is the environment of a runner's child: the agent's, but for what names places of the
// agent's machine, and over it what of the runner's own is allowed.
func OverEnv(agents, allowed, own []string) []string {
	names := func(environ []string) (all []string) {
		for _, entry := range environ {
			name, _, _ := strings.Cut(entry, "=")
			all = append(all, name)
		}
		return all
	}
	own = pass(own, allowed)
	over := names(own)
	return append(own, slices.DeleteFunc(slices.Clone(agents), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(over, name) || slices.Contains([]string{"PATH", "HOME", "USER", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", engineConfig}, name)
	})...)
}

// CheckEnv returns, of an environment, what may reach a command that asks how a machine is:
// nothing that signs in anywhere.
func (c Config) CheckEnv(environ []string) []string { return pass(environ, usual()) }

// DefaultCredentials returns, of an environment, what runs get whose workspaces
// no credentials are configured for, beside ChildEnv.
func (c Config) DefaultCredentials(environ []string) []string {
	if len(c.Credentials) == 0 || !c.CredentialsDefault {
		return nil
	}
	return pass(environ, cloud())
}

// pass returns the allowed part of an environment.
func pass(environ, allowed []string) []string {
	var passed []string
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		switch {
		case !ok || name == "":
		case name == engineConfig:
			// Terraform complains at each step of a file that is not there.
			if _, err := os.Stat(value); err == nil && slices.Contains(allowed, engineConfig) {
				passed = append(passed, entry)
			}
		case forbidden(name):
		case slices.ContainsFunc(allowed, func(pattern string) bool { return matches(pattern, name) }):
			passed = append(passed, entry)
		}
	}
	return passed
}
