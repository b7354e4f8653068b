package doctor

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"
)

// leastSecret is the length below which a value is not hidden: it would be found
// in every second word, and tells nobody anything.
const leastSecret = 6

// scrub hides the secrets of the configuration wherever they stand. The checks
// name none; what others said, a server or a library, might.
func (d *doctor) scrub(results []Result) []Result {
	var pairs []string
	for _, secret := range d.secretValues() {
		if len(secret) >= leastSecret {
			pairs = append(pairs, secret, "[hidden]")
		}
	}
	hide := strings.NewReplacer(pairs...)
	for i, r := range results {
		results[i].Message, results[i].Action = hide.Replace(r.Message), hide.Replace(r.Action)
	}
	return results
}

// hide adds secrets to those that are hidden.
func (d *doctor) hide(secrets ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read = append(d.read, secrets...)
}

func (d *doctor) secretValues() []string {
	token := d.Config.Queue.Token.Reveal()
	d.mu.Lock()
	secrets := append([]string{d.Config.Queue.APIKey}, d.read...)
	d.mu.Unlock()
	if token != "" {
		sum := sha256.Sum256([]byte(token))
		secrets = append(secrets, token, hex.EncodeToString(sum[:]))
	}
	for _, address := range []string{d.Config.Queue.URL, d.Config.Queue.ListenURL, d.Config.Engine.MirrorURL} {
		if parsed, err := url.Parse(address); err == nil {
			if password, has := parsed.User.Password(); has {
				secrets = append(secrets, password, url.QueryEscape(password))
			}
			secrets = append(secrets, parsed.Query().Get("password"))
		}
	}
	for _, table := range d.Config.State.Config {
		for key, value := range table {
			if secretKey(key) {
				secrets = append(secrets, value)
			}
		}
	}
	return secrets
}

// secretKey reports whether a backend's argument is one that holds a secret.
func secretKey(key string) bool {
	for _, part := range []string{"password", "secret", "token", "access_key", "conn_str", "credentials", "private_key", "sas"} {
		if strings.Contains(key, part) {
			return key != "secret_suffix"
		}
	}
	return false
}
