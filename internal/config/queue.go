package config

import (
	"encoding/base64"
	"encoding/json"
	"net"
	"net/url"
	"strings"
)

// queueURLs is, in words, what names a queue.
const queueURLs = "postgres://USER:PASSWORD@HOST/DATABASE, or https://HOST of a Supabase project or of trellis serve"

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

// readURLFile takes the URL from its file, unless the environment has it.
func (l *loader) readURLFile() {
	q := &l.config.Queue
	inEnv := func(name string) bool { return l.fromEnv[name] != "" }
	switch {
	case q.URLFile == "" || inEnv("queue.url"):
		return
	case q.URL != "" && !inEnv("queue.url_file"):
		l.problem("queue.url_file: queue.url is set as well; keep one of them")
		return
	}
	text, err := ReadPrivate(q.URLFile)
	if err != nil {
		l.problem("queue.url_file = %q: %v", q.URLFile, err)
		q.URL = unreadURL
		return
	}
	if q.URL = strings.TrimSpace(text); q.URL == "" {
		l.problem("queue.url_file = %q: is empty; it must hold %s", q.URLFile, queueURLs)
		q.URL = unreadURL
		return
	}
	l.fromEnv["queue.url"] = q.URLFile
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

// checkQueue finds settings that do not go together.
func (l *loader) checkQueue() {
	q := l.config.Queue
	for _, at := range []struct{ name, url string }{{"queue.url", q.URL}, {"queue.listen_url", q.ListenURL}} {
		if misread(at.url) {
			l.problem("%s: write @ in its user or password as %%40, # as %%23 and / as %%2F", at.name)
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
