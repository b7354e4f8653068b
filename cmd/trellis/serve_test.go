package main

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
)

func TestServeUsage(t *testing.T) {
	t.Parallel()
	const database = "postgres://nobody@127.0.0.1:1/none"
	for _, tt := range []struct {
		env, args string
		code      int
		want      string
	}{
		{"", "serve", exitUsage, "--database-url is missing"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database, exitUnreachable, "could not reach the database"},
		{"TRELLIS_DATABASE_URL=" + database, "serve --listen 127.0.0.1:0", exitUnreachable, "could not reach the database"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --tls-cert x", exitUsage, "give both, or neither"},
		{"", "serve --listen :0 --database-url " + database, exitUsage, "in the clear"},
		{"", "serve --listen 0.0.0.0:0 --public-url https://a.example --database-url " + database, exitUsage, "--allow-http"},
		{"", "serve --listen 192.0.2.1:0 --database-url " + database, exitUsage, "--tls-cert"},
		{"", "serve --listen 0.0.0.0:0 --allow-http --database-url " + database, exitUnreachable, "could not reach the database"},
		{"TRELLIS_ALLOW_HTTP=true", "serve --listen :0 --database-url " + database, exitUnreachable, "could not reach the database"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --trusted-proxy 10.0.0.0/8,nonsense", exitUsage, `"nonsense": must be an address or a network`},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --rate 0", exitUsage, "--rate must not be 0"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --max-body 0", exitUsage, "must be above 0"},
		{"TRELLIS_RATE=0", "serve --listen 127.0.0.1:0 --database-url " + database, exitUsage, "--rate must not be 0"},
		{"TRELLIS_RATE=fast", "serve --listen 127.0.0.1:0 --database-url " + database, exitUsage, "TRELLIS_RATE: "},
		{"TRELLIS_RATE=0", "serve --listen 127.0.0.1:0 --database-url " + database + " --rate 1", exitUnreachable, "could not reach the database"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --api-key-file /dev/null", exitFailed, "/dev/null is empty"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --oidc-client-id x", exitUsage, "--oidc-issuer is missing"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --oidc-issuer https://a.example --oidc-client-id x", exitUsage, "--public-url is missing"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --public-url https://b.example/tendril", exitUsage, "--public-url must have no path"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --oidc-issuer a.example --oidc-client-id x", exitUsage, "--oidc-issuer must be a URL"},
		{"TRELLIS_SUPABASE_URL=https://a.example", "serve --listen 127.0.0.1:0 --database-url " + database + " --oidc-issuer https://a.example", exitUsage, "give one of them"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --supabase-url https://a.example --supabase-provider github", exitUsage, "--supabase-key-file is missing"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --first-admin a@b.example", exitUsage, "--first-admin needs an issuer"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --oidc-issuer https://a.example --oidc-client-id x --public-url https://b.example/ --oidc-client-secret-file /dev/null", exitFailed, "/dev/null, is empty"},
		{"", "serve --listen 127.0.0.1:0 --database-url " + database + " --oidc-issuer https://a.example --oidc-client-id x --public-url https://b.example/", exitUnreachable, "could not reach the database"},
		{"", "serve --help", exitOK, "TRELLIS_STATEMENT_TIMEOUT"},
	} {
		var out, err bytes.Buffer
		name, value, _ := strings.Cut(tt.env, "=")
		getenv := func(asked string) string {
			if name != "" && asked == name {
				return value
			}
			return ""
		}
		code := newApp("trellis", getenv, strings.NewReader(""), terminal{Writer: &out}, terminal{Writer: &err}).run(strings.Fields(tt.args))
		result{code, out.String(), err.String()}.want(t, tt.env+" "+tt.args, tt.code, tt.want)
	}
}

// Both up and serve answer agents; serve ends at a SIGTERM.
func testServeBesideUp(t *testing.T, stack *session, runtime instance.Runtime) {
	t.Parallel()
	if !strings.Contains(stack.said.String(), "tendril join "+runtime.URL) {
		t.Errorf("up says %s, want the URL that agents can use", stack.said)
	}
	wantCall(t, runtime.URL)

	s := begin(t, "serve", "--database-url", runtime.DatabaseURL, "--listen", "127.0.0.1:0")
	s.await(t, "serving people and agents")
	wantCall(t, regexp.MustCompile(`http://[0-9.:]+`).FindString(s.said.String()))
	s.await(t, "function=agent_heartbeat status=401")
	s.signal(syscall.SIGTERM)
	if code := s.end(t); code != exitOK || !strings.Contains(s.said.String(), "msg=stopped") {
		t.Errorf("serve ended with %d, want 0; it said:\n%s", code, s.said)
	}
	if text := s.said.String(); strings.Contains(text, strings.Repeat("ab", 32)) {
		t.Errorf("the log has the token's hash:\n%s", text)
	}
}

// wantCall calls a function with a token that nobody has, and wants SQL's no.
func wantCall(t *testing.T, url string) {
	t.Helper()
	body := `{"p_token_hash":"` + strings.Repeat("ab", 32) + `","p_instance":"a6000000-0000-4000-8000-000000000001","p_boot":"b0000000-0000-4000-8000-000000000001","p_claims":[]}`
	status, answer := ask(t, http.MethodPost, url+"/rest/v1/rpc/agent_heartbeat", body)
	if status != http.StatusUnauthorized || !strings.Contains(answer, "token_invalid") {
		t.Errorf("agent_heartbeat of a stranger at %s = %d %s, want 401 token_invalid", url, status, answer)
	}
}
