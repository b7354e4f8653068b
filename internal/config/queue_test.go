package config

import (
	"encoding/base64"
	"path/filepath"
	"strings"
	"testing"
)

// jwt is a legacy API key of a project for a role.
func jwt(role string) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + part([]byte(`{"iss":"supabase","role":"`+role+`"}`)) + ".c2lnbmF0dXJl"
}

const project = "https://abcdefghijkl.supabase.co"

func TestQueueOverHTTPS(t *testing.T) {
	t.Parallel()
	anon := jwt("anon")
	for _, tc := range []struct {
		about   string
		environ []string
		file    string // of table queue
		want    Queue  // without the token and the lifetime of keys
	}{
		{"by our names", []string{"TENDRIL_QUEUE_URL=" + project, "TENDRIL_QUEUE_API_KEY=sb_publishable_x"}, "",
			Queue{URL: project, APIKey: "sb_publishable_x"}},
		{"by Supabase's names", []string{"SUPABASE_URL=" + project, "SUPABASE_ANON_KEY=" + anon}, "",
			Queue{URL: project, APIKey: anon}},
		{"ours before Supabase's", []string{"SUPABASE_URL=https://other.example", "SUPABASE_ANON_KEY=" + anon, "TENDRIL_QUEUE_URL=" + project, "TENDRIL_QUEUE_API_KEY=k"}, "",
			Queue{URL: project, APIKey: "k"}},
		{"the file's before Supabase's", []string{"SUPABASE_URL=" + project, "SUPABASE_ANON_KEY=" + anon}, `url = "https://trellis.example/base"` + "\n" + `api_key = "k"`,
			Queue{URL: "https://trellis.example/base", APIKey: "k"}},
		{"key from the environment for an address in the file", []string{"SUPABASE_ANON_KEY=" + anon}, `url = "` + project + `"`,
			Queue{URL: project, APIKey: anon}},
		{"same address twice", []string{"SUPABASE_URL=" + project + "/", "SUPABASE_ANON_KEY=" + anon, "TENDRIL_QUEUE_URL=" + project}, "",
			Queue{URL: project, APIKey: anon}},
		{"Supabase's names beside a Postgres URL", []string{"SUPABASE_URL=" + project, "SUPABASE_ANON_KEY=" + anon, "TENDRIL_QUEUE_URL=" + testURL}, "",
			Queue{URL: testURL}},
		{"trellis serve without a key", []string{"TENDRIL_QUEUE_URL=https://trellis.example:8443/"}, "",
			Queue{URL: "https://trellis.example:8443/"}},
		{"HTTP to this machine", []string{"TENDRIL_QUEUE_URL=http://127.0.0.1:8080"}, "",
			Queue{URL: "http://127.0.0.1:8080"}},
		{"HTTP that is allowed", []string{"TENDRIL_QUEUE_URL=http://trellis.tendril.svc", "TENDRIL_QUEUE_ALLOW_HTTP=true"}, "",
			Queue{URL: "http://trellis.tendril.svc", AllowHTTP: true}},
	} {
		path := write(t, "tendril.toml", "[queue]\n"+tc.file, 0o600)
		got, err := Load(path, append([]string{"HOME=/h", "TENDRIL_NAME=a", "TENDRIL_API_TOKEN=" + testToken}, tc.environ...))
		tc.want.Token, tc.want.KeyLifetime = NewSecret(testToken), defaults(nil).Queue.KeyLifetime
		if err != nil || got.Queue != tc.want {
			t.Errorf("%s: Load() queue = %+v, %v, want %+v", tc.about, got.Queue, err, tc.want)
		}
		if over := strings.HasPrefix(tc.want.URL, "http"); err == nil && got.Queue.OverHTTP() != over {
			t.Errorf("%s: OverHTTP() = %t, want %t", tc.about, got.Queue.OverHTTP(), over)
		}
	}
}

func TestContradictoryQueue(t *testing.T) {
	t.Parallel()
	ca := write(t, "ca.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0o600)
	for _, tc := range []struct {
		environ []string
		want    []string
	}{
		{[]string{"TENDRIL_QUEUE_URL=" + testURL, "TENDRIL_QUEUE_API_KEY=hunter2", "TENDRIL_QUEUE_CA_FILE=" + ca, "TENDRIL_QUEUE_ALLOW_HTTP=1"}, []string{
			"queue.api_key: goes with an https:// queue.url only, and that is postgres://",
			"queue.ca_file: goes with an https:// queue.url only, and that is postgres://; for Postgres put sslrootcert=FILE into the URL",
			"queue.allow_http: goes with an https:// queue.url only, and that is postgres://",
		}},
		{[]string{"TENDRIL_QUEUE_URL=https://trellis.example", "TENDRIL_QUEUE_LISTEN_URL=" + testURL}, []string{
			"queue.listen_url: goes with a postgres:// queue.url only, and that is https://",
		}},
		{[]string{"TENDRIL_QUEUE_URL=postgres://a:hunt@er2@db.example/x", "TENDRIL_QUEUE_LISTEN_URL=postgres://a:hunt#er2@db.example/x"}, []string{
			"queue.url: write @ in its user or password as %40, # as %23 and / as %2F",
			"queue.listen_url: write @ in its user or password as %40, # as %23 and / as %2F",
		}},
		{[]string{"TENDRIL_QUEUE_URL=http://trellis.example"}, []string{
			"queue.url: http:// would send the cluster's credential in the clear; use https://, or set queue.allow_http where nobody can listen in",
		}},
		{[]string{"SUPABASE_URL=" + project}, []string{
			"queue.api_key: missing; set it, or SUPABASE_ANON_KEY, to the project's publishable (anon) key",
		}},
		{[]string{"SUPABASE_URL=" + project, "SUPABASE_ANON_KEY=" + jwt("service_role")}, []string{
			"queue.api_key: is a secret key, which may do everything in the project; an agent needs its publishable (anon) key only",
		}},
		{[]string{"SUPABASE_URL=" + project, "SUPABASE_ANON_KEY=sb_secret_hunter2"}, []string{
			"queue.api_key: is a secret key, which may do everything in the project; an agent needs its publishable (anon) key only",
		}},
		{[]string{"SUPABASE_URL=" + project, "SUPABASE_ANON_KEY=" + testToken}, []string{
			"queue.api_key: is a cluster's token, which belongs into TENDRIL_API_TOKEN or queue.token_file; the API key is the project's publishable (anon) key",
		}},
		{[]string{"SUPABASE_URL=" + project, "SUPABASE_ANON_KEY=hunter2", "TENDRIL_QUEUE_URL=https://trellis.example"}, []string{
			"queue.api_key: SUPABASE_ANON_KEY is the key of SUPABASE_URL, and queue.url says another address; set TENDRIL_QUEUE_API_KEY to that one's, or unset one of the two",
		}},
		{[]string{"SUPABASE_URL=" + project, "SUPABASE_ANON_KEY=hunter2 hunter2"}, []string{
			"queue.api_key (SUPABASE_ANON_KEY): must be one word without spaces, or nothing",
		}},
		{[]string{"SUPABASE_URL=https://hunter2:hunter2@" + strings.TrimPrefix(project, "https://")}, []string{"queue.url (SUPABASE_URL): must be " + queueURLs}},
		{[]string{"SUPABASE_URL=" + project + "/?apikey=hunter2"}, []string{"queue.url (SUPABASE_URL): must be " + queueURLs}},
		{[]string{"TENDRIL_QUEUE_URL=" + project + "#hunter2"}, []string{"queue.url (TENDRIL_QUEUE_URL): must be " + queueURLs}},
		{[]string{"TENDRIL_QUEUE_URL=https://:8443"}, []string{"queue.url (TENDRIL_QUEUE_URL): must be " + queueURLs}},
		{[]string{"TENDRIL_QUEUE_URL=trellis.example"}, []string{"queue.url (TENDRIL_QUEUE_URL): must be " + queueURLs}},
		{[]string{"TENDRIL_QUEUE_URL=https://trellis.example", "TENDRIL_QUEUE_CA_FILE=/none.pem"}, []string{
			`queue.ca_file (TENDRIL_QUEUE_CA_FILE="/none.pem"): must be a readable file of PEM certificates, or nothing`,
		}},
	} {
		_, err := Load("", append([]string{"HOME=/h", "TENDRIL_NAME=a", "TENDRIL_API_TOKEN=" + testToken}, tc.environ...))
		wantProblems(t, "Load("+strings.Join(tc.environ, " ")+")", err, tc.want...)
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Load() error = %v, want one without what may be a secret", err)
		}
	}
}

func TestQueueCAFileStartsAtTheFile(t *testing.T) {
	t.Parallel()
	path := write(t, "tendril.toml", "[queue]\nurl = \"https://trellis.example\"\nca_file = \"tendril.toml\"", 0o600)
	_, err := Load(path, []string{"HOME=/h", "TENDRIL_NAME=a", "TENDRIL_API_TOKEN=" + testToken})
	wantProblems(t, "Load(no certificate)", err,
		`queue.ca_file = "`+filepath.Join(filepath.Dir(path), "tendril.toml")+`": must be a readable file of PEM certificates, or nothing`)
}
