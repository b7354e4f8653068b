package config

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/tendril-run/tendril/internal/secretfile"
)

// queueURLs is, in words, what names a queue.
const queueURLs = "postgres://USER:PASSWORD@HOST/DATABASE, or https://HOST of a Supabase project or of trellis serve"

// listenURLs is, in words, what names a session that listens.
const listenURLs = "postgres://USER:PASSWORD@HOST/DATABASE, off, or nothing"

// The names that Supabase gives to a project's address and public key. They
// count where our own are not set, for other programs read them, too.
const (
	supabaseURL = "SUPABASE_URL"
	supabaseKey = "SUPABASE_ANON_KEY"
)

// OverHTTP reports whether the queue is reached by HTTPS RPC rather than
// straight.
func (q Queue) OverHTTP() bool { return !postgresURL(q.URL) }

// rpcURL accepts an address without anything that may be a secret: it is shown
// in errors.
func rpcURL(text string) bool {
	if !webURL(text) || strings.ContainsFunc(text, notVisible) || strings.ContainsAny(text, "?#") {
		return false
	}
	parsed, err := url.Parse(text)
	return err == nil && parsed.User == nil && parsed.Opaque == "" && parsed.Hostname() != ""
}

// readURLFiles takes the URLs from their files, unless the environment has them.
func (l *loader) readURLFiles() {
	q := &l.config.Queue
	l.readURLFile("queue.url", &q.URL, q.URLFile, &q.from.url, queueURLs)
	l.readURLFile("queue.listen_url", &q.ListenURL, q.ListenURLFile, &q.from.listenURL, listenURLs)
}

func (l *loader) readURLFile(name string, into *string, file string, from *string, allowed string) {
	inEnv := func(name string) bool { return l.fromEnv[name] != "" }
	switch {
	case file == "" || inEnv(name):
		return
	case *into != "" && !inEnv(name+"_file"):
		l.problem("%s_file: %s is set as well; keep one of them", name, name)
		return
	}
	text, err := readURL(file, allowed)
	if err != nil {
		l.problem("%s_file = %q: %v", name, file, err)
		*into = unreadURL
		return
	}
	*into, *from, l.fromEnv[name] = text, file, file
}

// readURL reads the file of a URL, which may be any.
func readURL(file, allowed string) (string, error) {
	text, err := secretfile.Read(file)
	if err != nil {
		return "", err
	}
	if text = strings.TrimSpace(text); text == "" {
		return "", errors.New("is empty; it must hold " + allowed)
	}
	return text, nil
}

// unreadURL stands for what could not be read: one complaint is enough.
const unreadURL = "postgres://unread"

// readSupabase takes from the names of Supabase's what is not set by ours.
func (l *loader) readSupabase() {
	q := &l.config.Queue
	if address := l.env[supabaseURL]; q.URL == "" && address != "" {
		q.URL, l.fromEnv["queue.url"] = address, supabaseURL
	}
	if apiKey := l.env[supabaseKey]; q.APIKey == "" && apiKey != "" && rpcURL(q.URL) {
		q.APIKey, l.fromEnv["queue.api_key"] = apiKey, supabaseKey
	}
}

// misread reports whether a postgres:// URL would be taken apart in another way
// than it was meant, for a character of the password that is not encoded. Part of
// it would then be a host name, which errors and the machine's DNS get to see.
func misread(text string) bool {
	authority, _, _ := strings.Cut(text, "?")
	return postgresURL(text) && (strings.Count(authority, "@") > 1 || strings.Contains(authority, "#"))
}

// unencoded is what to do about a URL that is misread.
const unencoded = "write @ in its user or password as %40, # as %23 and / as %2F"

// checkQueue finds settings that do not go together.
func (l *loader) checkQueue() {
	q := l.config.Queue
	for _, at := range []struct{ name, url string }{{"queue.url", q.URL}, {"queue.listen_url", q.ListenURL}} {
		if misread(at.url) {
			l.problem("%s: %s", at.name, unencoded)
		}
	}
	switch {
	case rpcURL(q.URL):
		l.checkRPC(q)
	case postgresURL(q.URL):
		for _, wrong := range []struct {
			set  bool
			name string
			hint string
		}{
			{q.APIKey != "", "queue.api_key", ""},
			{q.CAFile != "", "queue.ca_file", "; for Postgres put sslrootcert=FILE into the URL"},
			{q.AllowHTTP, "queue.allow_http", ""},
		} {
			if wrong.set {
				l.problem("%s: goes with an https:// queue.url only, and that is postgres://%s", wrong.name, wrong.hint)
			}
		}
	}
}

func (l *loader) checkRPC(q Queue) {
	address, err := url.Parse(q.URL)
	if err != nil {
		return // rpcURL has parsed it
	}
	if address.Scheme == "http" && !q.AllowHTTP && !loopback(address.Hostname()) {
		l.problem("queue.url: http:// would send the cluster's credential in the clear; use https://, or set queue.allow_http where nobody can listen in")
	}
	if q.ListenURL != "" && q.ListenURL != "off" {
		l.problem("queue.listen_url: goes with a postgres:// queue.url only, and that is %s://", address.Scheme)
	}
	if other := l.env[supabaseURL]; other != "" && strings.TrimRight(other, "/") != strings.TrimRight(q.URL, "/") && l.fromEnv["queue.api_key"] == supabaseKey {
		l.problem("queue.api_key: %s is the key of %s, and queue.url says another address; set TENDRIL_QUEUE_API_KEY to that one's, or unset one of the two", supabaseKey, supabaseURL)
	}
	switch role := keyRole(q.APIKey); {
	case q.APIKey == "" && (strings.HasSuffix(address.Hostname(), ".supabase.co") || strings.HasSuffix(address.Hostname(), ".supabase.in")):
		l.problem("queue.api_key: missing; set it, or %s, to the project's publishable (anon) key", supabaseKey)
	case strings.HasPrefix(q.APIKey, "sb_secret_"), role == "service_role":
		l.problem("queue.api_key: is a secret key, which may do everything in the project; an agent needs its publishable (anon) key only")
	case strings.HasPrefix(q.APIKey, tokenPrefix):
		l.problem("queue.api_key: is a cluster's token, which belongs into %s or queue.token_file; the API key is the project's publishable (anon) key", tokenEnv)
	}
}

// keyRole is the role that a legacy API key, a JWT, was made for; "" if it is
// none.
func keyRole(apiKey string) string {
	parts := strings.Split(apiKey, ".")
	if len(parts) != 3 {
		return ""
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var said struct {
		Role string `json:"role"`
	}
	if json.Unmarshal(claims, &said) != nil {
		return ""
	}
	return said.Role
}

// loopback reports whether a host is this machine whatever a resolver says.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// URLNow is URL, read again from its file if it came from one: a password may
// have been changed since. For a URL of Postgres only; errors show nothing of it.
func (q Queue) URLNow() (string, error) { return postgresNow("queue.url", q.URL, q.from.url) }

// ListenURLNow is to ListenURL what URLNow is to URL.
func (q Queue) ListenURLNow() (string, error) {
	return postgresNow("queue.listen_url", q.ListenURL, q.from.listenURL)
}

func postgresNow(name, loaded, file string) (string, error) {
	if file == "" {
		return loaded, nil
	}
	text, err := readURL(file, "postgres://USER:PASSWORD@HOST/DATABASE")
	switch {
	case err != nil:
	case !postgresURL(text):
		err = errors.New("must hold postgres://USER:PASSWORD@HOST/DATABASE, as it did; for another way to the queue restart the agent")
	case misread(text):
		err = errors.New(unencoded)
	default:
		return text, nil
	}
	return "", fmt.Errorf("%s_file = %q: %w", name, file, err)
}

// TokenNow is Token, read again from its file if it came from one. Errors show
// nothing of it.
func (q Queue) TokenNow() (Secret, error) {
	if q.from.token == "" {
		return q.Token, nil
	}
	text, err := secretfile.Read(q.from.token)
	if err == nil {
		text, err = tokenIn(text)
	}
	if err != nil {
		return Secret{}, fmt.Errorf("queue.token_file = %q: %w", q.from.token, err)
	}
	return NewSecret(text), nil
}
