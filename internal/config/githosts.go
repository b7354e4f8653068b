package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/secretfile"
)

// GitHosts are the tables of [git.hosts], by host as in a URL: with its port
// where that is not the scheme's own.
type GitHosts map[string]GitHost

// GitHost is how the agent identifies itself to one git server. Secrets stand in
// files only: what they hold is read for each run, so that a new one serves the
// next run.
type GitHost struct {
	TokenFile string `toml:"token_file"`
	Username  string `toml:"username"`

	SSHKeyFile     string `toml:"ssh_key_file"`
	KnownHostsFile string `toml:"known_hosts_file"`

	AppID             string `toml:"app_id"`
	AppInstallationID string `toml:"app_installation_id"`
	AppKeyFile        string `toml:"app_key_file"`
	AppAPIURL         string `toml:"app_api_url"`

	Repos []string `toml:"repos"`
}

// gitHostKeys says, for the reference, what a table may hold.
const gitHostKeys = "`token_file` with `username` (default `x-access-token`) for HTTPS; " +
	"`ssh_key_file` with `known_hosts_file` (default: the user's and the machine's) for SSH; " +
	"a GitHub App's `app_id`, `app_installation_id`, `app_key_file` and, if its API has another address than the usual one, `app_api_url`; " +
	"`repos`, patterns of repositories whose modules may use these credentials, in addition to `policy.repos`"

// field returns the text or list behind a key of the table, nil for none.
func (h *GitHost) field(key string) any {
	v := reflect.ValueOf(h).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		if f.Tag.Get("toml") == key {
			return v.FieldByIndex(f.Index).Addr().Interface()
		}
	}
	return nil
}

// keys are the names of what the table may hold.
func (h *GitHost) keys() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[GitHost]()) {
		names = append(names, f.Tag.Get("toml"))
	}
	return names
}

// unknownHostKey is unknownKey for a table of GitHosts.
func unknownHostKey(name, key string) string {
	if slices.Contains([]string{"token", "ssh_key", "app_key", "password"}, key) {
		file := strings.Replace(key, "password", "token", 1) + "_file"
		return fmt.Sprintf("%s: a secret does not belong in this file; put it in a file of its own, named by %s", name, file)
	}
	return name + ": unknown key" + provision.DidYouMean(key, new(GitHost).keys())
}

// UnmarshalText reads HOST.KEY=VALUE,… as it stands in the environment. A host
// has dots and a key has none.
func (hosts *GitHosts) UnmarshalText(text []byte) error {
	read := GitHosts{}
	for _, part := range splitList(string(text)) {
		name, value, ok := strings.Cut(part, "=")
		dot := strings.LastIndex(name, ".")
		if !ok || dot < 1 {
			return fmt.Errorf("no HOST.KEY=VALUE")
		}
		host := read[name[:dot]]
		switch field := host.field(name[dot+1:]).(type) {
		case *string:
			*field = value
		case *[]string:
			*field = append(*field, value)
		default:
			return fmt.Errorf("%s: unknown key%s", name, provision.DidYouMean(name[dot+1:], host.keys()))
		}
		read[name[:dot]] = host
	}
	if *hosts = read; len(read) == 0 {
		*hosts = nil
	}
	return nil
}

// absolute makes the relative paths start at directory.
func (hosts GitHosts) absolute(directory string) {
	for name, host := range hosts {
		for _, path := range []*string{&host.TokenFile, &host.SSHKeyFile, &host.KnownHostsFile, &host.AppKeyFile} {
			*path = below(directory, *path)
		}
		hosts[name] = host
	}
}

var (
	gitHostName = lazyregexp.New(`^(\[[0-9a-f:.]+\]|[a-z0-9]([a-z0-9.-]*[a-z0-9])?)(:[1-9][0-9]{0,4})?$`).MatchString
	// An App's client id, which GitHub recommends as issuer, has letters.
	gitAppID = lazyregexp.New(`^[A-Za-z0-9.]{1,64}$`).MatchString
	digits   = lazyregexp.New(`^[0-9]{1,20}$`).MatchString
)

// checkGitHosts finds what is wrong with the tables.
func (l *loader) checkGitHosts() {
	for _, name := range slices.Sorted(maps.Keys(l.config.Git.Hosts)) {
		host := l.config.Git.Hosts[name]
		wrong := func(key, format string, args ...any) {
			if key != "" {
				key = "." + key
			}
			l.problem("git.hosts.%q%s: %s", name, key, fmt.Sprintf(format, args...))
		}
		if !gitHostName(name) {
			wrong("", "must be a host in small letters, such as github.com, with its port if that is not the usual one, and nothing else of a URL")
			continue
		}
		app := host.AppID != "" || host.AppInstallationID != "" || host.AppKeyFile != "" || host.AppAPIURL != ""
		switch {
		case host.TokenFile == "" && host.SSHKeyFile == "" && host.KnownHostsFile == "" && !app:
			wrong("", "names no credential; set token_file, ssh_key_file or app_id with app_installation_id and app_key_file")
		case strings.HasSuffix(name, ":443") && (host.TokenFile != "" || app), strings.HasSuffix(name, ":22") && host.SSHKeyFile != "":
			wrong("", "leave the port out, for it is the usual one")
		case host.TokenFile != "" && app:
			wrong("", "has both a token_file and a GitHub App; keep one of them")
		case app && (host.AppID == "" || host.AppInstallationID == "" || host.AppKeyFile == ""):
			wrong("", "a GitHub App needs app_id, app_installation_id and app_key_file")
		case app && !gitAppID(host.AppID):
			wrong("app_id", "must be the App's id or its client id")
		case app && !digits(host.AppInstallationID):
			wrong("app_installation_id", "must be a number, the last part of the installation's URL")
		case host.AppAPIURL != "" && (!webURL(host.AppAPIURL) || !strings.HasPrefix(host.AppAPIURL, "https://")):
			wrong("app_api_url", "must be an https:// URL")
		}
		if strings.ContainsFunc(host.Username, func(r rune) bool { return r <= ' ' || r == ':' || r == 0x7f }) {
			wrong("username", "must have no blanks, colons or control characters")
		}
		if !every(host.Repos, repoPattern) {
			wrong("repos", "must be patterns of repository URLs without white space")
		} else if !every(host.Repos, func(pattern string) bool { return strings.Contains(strings.ToLower(pattern), name) }) {
			wrong("repos", "must name repositories of this host: its credentials are for no other")
		}
		for _, file := range []struct{ key, path string }{
			{"token_file", host.TokenFile}, {"ssh_key_file", host.SSHKeyFile}, {"app_key_file", host.AppKeyFile},
		} {
			if file.path == "" {
				continue
			}
			if _, err := secretfile.Read(file.path); err != nil {
				wrong(file.key, "%q %v", file.path, err)
			}
		}
		if path := host.KnownHostsFile; path != "" && !regularFile(path) {
			wrong("known_hosts_file", "%q is no file that can be read", path)
		}
	}
}
