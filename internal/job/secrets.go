package job

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
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
	for _, config := range j.Settings.State.Config {
		for name, value := range config {
			all = append(all, environmentSecrets([]string{name + "=" + value})...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.SealedVars)) {
		eachLeaf(j.SealedVars[name], func(_, text string) { all = append(all, text) })
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
