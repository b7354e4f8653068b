package job

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Secrets lists what must appear in no line of a run, as far as it is known
// before anything runs: the credentials of git, of the workspace and of state
// backends, sealed variables, and what the child's environment holds.
func (j Job) Secrets(environ []string) []string {
	all := slices.Concat(j.Credentials.Secrets(), environmentSecrets(environ))
	for _, host := range j.Settings.Git.Hosts {
		if host.Token != "" {
			all = append(all, host.Token, basicAuth(host.Username, host.Token))
		}
		all = append(all, host.Key)
	}
	for _, p := range j.Pools {
		_, secret, _ := strings.Cut(p.Token, "=") // Proxmox's USER@REALM!ID=SECRET
		all = append(all, strings.TrimSpace(p.Token), strings.TrimSpace(secret))
	}
	for _, config := range j.Settings.State.Config {
		for name, value := range config {
			all = append(all, environmentSecrets([]string{name + "=" + value})...)
		}
	}
	for _, opened := range []map[string]json.RawMessage{j.SealedVars, j.SealedInput} {
		for _, name := range slices.Sorted(maps.Keys(opened)) {
			eachLeaf(opened[name], func(_, text string) { all = append(all, text) })
		}
	}
	return slices.DeleteFunc(all, harmless)
}

// basicAuth is how HTTP carries a user's password.
func basicAuth(user, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

// harmless reports whether a text is a setting, whatever its name says.
func harmless(text string) bool {
	return text == "" || slices.Contains([]string{"true", "false", "null", "none", "default", "enabled", "disabled"}, strings.ToLower(text))
}

// environmentSecrets lists the credentials among the variables that the agent
// hands down: values of names that say so, keys in JSON (GOOGLE_CREDENTIALS may
// be a file's content), and the passwords of URLs, such as a proxy's.
func environmentSecrets(environ []string) (all []string) {
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		value = strings.TrimSpace(value)
		all = append(all, urlSecrets(value)...)
		switch {
		case strings.HasPrefix(value, "{"):
			eachLeaf([]byte(value), func(key, text string) {
				if isCredential(key) {
					all = append(all, text)
				}
			})
		case isCredential(name) && !strings.HasPrefix(value, "/") && !strings.Contains(value, "://"):
			all = append(all, value)
		}
	}
	return all
}

// isCredential reports whether a name is that of something secret, rather than
// of the place where it is or of how it is made.
func isCredential(name string) bool {
	name = strings.ToUpper(name)
	for _, end := range []string{"_FILE", "_PATH", "_DIR", "_URL", "_URI", "_ENDPOINT", "_ID", "_TYPE", "_NAME", "_MODE", "_TTL", "_EXPIRATION", "_HELPER"} {
		// AWS calls it AWS_ACCESS_KEY_ID, and Google private_key_id.
		if strings.HasSuffix(name, end) && !strings.HasSuffix(name, "ACCESS_KEY"+end) {
			return false
		}
	}
	for _, part := range []string{"SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "TOKEN", "CREDENTIAL", "PRIVATE_KEY", "KEY_DATA", "ACCESS_KEY", "API_KEY", "APIKEY", "AUTH_KEY"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return strings.HasSuffix(name, "_PASS") || strings.HasSuffix(name, "_PAT") || strings.HasSuffix(name, "_KEY") || name == "KEY"
}

// urlSecrets are the password of a URL, and how HTTP carries it with its user.
func urlSecrets(value string) []string {
	if !strings.Contains(value, "://") {
		return nil
	}
	u, err := url.Parse(value)
	if err != nil || u.User == nil {
		return nil
	}
	password, ok := u.User.Password()
	if !ok || password == "" {
		return nil
	}
	return []string{password, basicAuth(u.User.Username(), password)}
}

// eachLeaf calls found with every string and number in JSON, and with the name
// it has there.
func eachLeaf(raw []byte, found func(key, text string)) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return
	}
	var walk func(key string, value any)
	walk = func(key string, value any) {
		switch value := value.(type) {
		case string:
			found(key, value)
		case json.Number:
			found(key, value.String())
		case []any:
			for _, element := range value {
				walk(key, element)
			}
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(value)) {
				walk(name, value[name])
			}
		}
	}
	walk("", value)
}

// Credentials are what a run signs in to clouds with. They go down the control
// pipe, to the engine and nowhere else.
type Credentials struct {
	// Note says in the log where they are from, or that there are none.
	Note string `json:"note,omitempty"`
	// Env are variables of the engine's environment.
	Env map[string]string `json:"env,omitempty"`
	// Files are contents, by the variable that is to name the file.
	Files map[string]string `json:"files,omitempty"`
}

// minCredential is the fewest bytes of a word that is taken for a credential:
// shorter ones, and those of files that are part words of a format, would blot
// out half a log.
const (
	minCredential = 8
	minFileWord   = 16
)

// Secrets are the texts to mask: the values of variables, but for those that by
// their names say where something is, and the longer words of files.
func (c Credentials) Secrets() []string {
	found := map[string]bool{}
	for name, value := range c.Env {
		if value = strings.TrimSpace(value); len(value) >= minCredential && !tellsPlace(name) {
			found[value] = true
		}
	}
	for _, text := range c.Files {
		for _, word := range words(text) {
			found[word] = true
		}
		eachLeaf([]byte(text), func(_, leaf string) {
			if len(leaf) >= minFileWord {
				found[leaf] = true
			}
		})
	}
	return slices.Sorted(maps.Keys(found))
}

// tellsPlace reports whether a variable says where or whose something is. Such
// values are in every plan.
func tellsPlace(name string) bool {
	return slices.ContainsFunc([]string{"REGION", "ZONE", "LOCATION", "PROJECT", "PROFILE", "ROLE_ARN", "SESSION_NAME", "ENVIRONMENT", "ENDPOINT"},
		func(end string) bool { return name == end || strings.HasSuffix(name, "_"+end) })
}

// words are the parts of a file between blanks, without quotes, and what
// follows a sign of assignment in one.
func words(text string) (all []string) {
	for _, field := range strings.Fields(text) {
		for _, word := range []string{field, after(field, "="), after(field, ":")} {
			if word = strings.Trim(word, `"',;{}[]`); len(word) >= minFileWord {
				all = append(all, word)
			}
		}
	}
	return all
}

func after(text, sign string) string {
	_, rest, _ := strings.Cut(text, sign)
	return rest
}

// maxCredentialFile is how large a file of credentials may be that is looked
// through, in bytes.
const maxCredentialFile = 1 << 20

// namesFile reports whether a variable names files of credentials that clouds'
// programs read.
func namesFile(name string) bool {
	switch name {
	case "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CREDENTIALS", "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE",
		"AZURE_FEDERATED_TOKEN_FILE", "ARM_OIDC_TOKEN_FILE_PATH", "ARM_CLIENT_SECRET_FILE_PATH",
		"KUBECONFIG", "KUBE_CONFIG_PATH", "KUBE_CONFIG_PATHS", "OS_CLIENT_CONFIG_FILE":
		return true
	}
	return false
}

// FileSecrets lists what must appear in no line of a run of the files that its
// environment names, as far as this process may read them: else the engine may
// not either.
func FileSecrets(environ []string) (all []string) {
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !namesFile(name) {
			continue
		}
		for _, path := range filepath.SplitList(value) {
			if text, err := readCredentials(path); err == nil {
				all = append(all, secretsIn(text)...)
			}
		}
	}
	return all
}

// readCredentials waits for nobody, as reading a pipe would.
func readCredentials(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", errors.New("no absolute path")
	}
	file, err := os.OpenFile(filepath.Clean(path), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // only read
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxCredentialFile {
		return "", errors.New("no file of credentials")
	}
	text, err := io.ReadAll(io.LimitReader(file, maxCredentialFile))
	return string(text), err
}

// secretsIn are what in a file goes by a name of something secret, be it JSON,
// YAML or what AWS has; of one in which nothing does, the longer words. So the
// address of a cluster stays to be read, which is in every plan.
func secretsIn(text string) (found []string) {
	add := func(name, value string) {
		if value = strings.Trim(strings.TrimSpace(value), `"',`); len(value) >= minCredential && isCredential(strings.ReplaceAll(name, "-", "_")) {
			found = append(found, value)
		}
	}
	eachLeaf([]byte(text), add)
	for line := range strings.Lines(text) {
		if at := strings.IndexAny(line, "=:"); at > 0 {
			add(strings.Trim(strings.TrimSpace(line[:at]), `"'- `), line[at+1:])
		}
	}
	if found == nil {
		return words(text)
	}
	return found
}
