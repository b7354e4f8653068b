package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/identity"
	"github.com/tendril-run/tendril/internal/testkit/accounttest"
	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// withoutToken has an agent begin by other means than the cluster's token.
func withoutToken(a *site.Agent) {
	a.Env = slices.DeleteFunc(a.Env, func(entry string) bool { return strings.HasPrefix(entry, "TENDRIL_API_TOKEN=") })
}

// trellisAs runs trellis as a person of the site.
func trellisAs(t *testing.T, people []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), site.Program("trellis"), args...)
	var out, err bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = people, &out, &err
	failed := cmd.Run()
	return out.String() + err.String(), failed
}

var shownCode = regexp.MustCompile(`Code +([A-Z]{4}-[A-Z]{4})\n +Fingerprint +([a-z ]+)\n`)

// An agent shows a code, an admin types it and compares the words; the agent is online within a
// second, works, and does so again after a restart, by tendril run alone. Revoked it is refused.
func TestJoin(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	s.Serve()
	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, instance.LocalUser)
	people := s.People()
	a := s.NewAgent("one", 2, "")
	withoutToken(a)
	a.Verb = strings.Fields(pages.Code(t, "docs/GUIDE.md", "tendril join https://tendril.example", "https://tendril.example", s.QueueURL))[1:]
	a.Start()
	a.AwaitOutput("compares the fingerprint")
	shown := shownCode.FindStringSubmatch(a.Out.String())
	if shown == nil {
		t.Fatalf("tendril join shows %q, want a code and words", a.Out.String())
	}
	code, words := shown[1], shown[2]
	if out, err := trellisAs(t, people, "clusters", "join", code, "--fingerprint", "grid duck problem valid cloth roof rate wealth"); err == nil || !strings.Contains(out, words) {
		t.Errorf("trellis clusters join with another fingerprint = %v, %q, want a refusal that shows the agent's", err, out)
	}
	out, err := trellisAs(t, people, "clusters", "join", strings.ToLower(code), "--fingerprint", words)
	if err != nil || !strings.Contains(out, "has joined cluster") || !strings.Contains(out, "plan, apply") {
		t.Fatalf("trellis clusters join = %v, %q, want an agent that has joined", err, out)
	}
	s.Await("the agent online", "SELECT count(*) > 0 FROM public.agents WHERE last_heartbeat_at > now() - interval '45 seconds'")
	// By the database's clock, so neither trellis nor this test counts: from the yes to the agent's
	// registration, without a restart. A busy machine gets a multiple of the second.
	seconds, err := strconv.ParseFloat(s.Text(t, "SELECT extract(epoch FROM a.registered_at - k.created_at)::text FROM public.agents a, tendril.agent_keys k WHERE a.name = k.name"), 64)
	took := time.Duration(seconds * float64(time.Second))
	t.Logf("online %s after the yes", took)
	if err != nil || !patience.Within(took, time.Second) {
		t.Errorf("the agent is online %s after the yes, %v, want within a second", took, err)
	}
	repo := s.Template("hello", map[string]string{"main.tf": `resource "terraform_data" "x" {}`})
	if status := s.AwaitEnd(s.DeployTemplate(repo, "joined/one", map[string]any{})); status != "SUCCESS" {
		t.Errorf("a run of the agent = %s, want SUCCESS", status)
	}
	key, err := os.Stat(filepath.Join(a.Dir, agentkey.File))
	if err != nil || key.Mode().Perm() != 0o600 {
		t.Errorf("the key's file = %v, %v, want 0600", key, err)
	}

	a.Terminate()
	a.Verb = nil
	a.Env = slices.DeleteFunc(a.Env, func(entry string) bool { return strings.HasPrefix(entry, "TENDRIL_QUEUE_URL=") })
	a.Start()
	a.AwaitOutput("registered")
	if status := s.AwaitEnd(s.DeployTemplate(repo, "joined/two", map[string]any{})); status != "SUCCESS" {
		t.Errorf("a run after a restart = %s, want SUCCESS", status)
	}

	out, err = trellisAs(t, people, "clusters", "keys", "-o", "json")
	var keys []struct{ ID, Words, Name string }
	if err != nil || json.Unmarshal([]byte(out), &keys) != nil || len(keys) != 1 || keys[0].Words != words || keys[0].Name != "one" {
		t.Fatalf("trellis clusters keys = %v, %q, want the agent's", err, out)
	}
	cluster := s.Text(t, "SELECT name FROM public.clusters WHERE id = $1", s.Cluster)
	if out, err := trellisAs(t, people, "clusters", "keys", "revoke", cluster, keys[0].ID); err != nil {
		t.Fatalf("trellis clusters keys revoke = %v, %q", err, out)
	}
	a.AwaitOutput("is revoked")
}

// An agent replaces its key when it is old, without a run noticing, and one that was killed while
// it did so signs with whichever key counts.
func TestKeyIsReplaced(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	s.Serve()
	a := s.NewAgent("one", 1, "")
	withoutToken(a)
	a.Set("TENDRIL_JOIN_TOKEN", s.Text(t, "SELECT token FROM public.create_join_token($1)", s.Cluster))
	a.Start()
	a.AwaitOutput("registered")
	a.Terminate()
	first, err := agentkey.Load(a.Dir)
	if err != nil {
		t.Fatal(err)
	}
	grow := func() {
		t.Helper()
		long := time.Now().Add(-91 * 24 * time.Hour)
		if err := os.Chtimes(filepath.Join(a.Dir, agentkey.File), long, long); err != nil {
			t.Fatal(err)
		}
	}
	counts := func(key agentkey.Key) bool {
		t.Helper()
		return s.Text(t, "SELECT (expires_at IS NULL AND revoked_at IS NULL)::text FROM tendril.agent_keys WHERE encode(public_key, 'hex') = $1", fmt.Sprintf("%x", key.Public())) == "true"
	}
	grow()
	a.Start()
	a.AwaitOutput("signs with a new key")
	second, err := agentkey.Load(a.Dir)
	if err != nil || second.Fingerprint() == first.Fingerprint() || !counts(second) || counts(first) {
		t.Fatalf("the agent's key = %s, %v, want another than %s, which alone counts for good", second.Fingerprint(), err, first.Fingerprint())
	}
	repo := s.Template("hello", map[string]string{"main.tf": `resource "terraform_data" "x" {}`})
	if status := s.AwaitEnd(s.DeployTemplate(repo, "rotated/one", map[string]any{})); status != "SUCCESS" {
		t.Errorf("a run after the key was replaced = %s, want SUCCESS", status)
	}
	a.Terminate()

	// Killed before the database heard of the next key, and after.
	unheard, err := agentkey.Next(a.Dir)
	if err != nil {
		t.Fatal(err)
	}
	a.Start()
	a.AwaitOutput("registered")
	a.Terminate()
	if now, err := agentkey.Load(a.Dir); err != nil || now.Fingerprint() != second.Fingerprint() {
		t.Errorf("the key after a start with one that the database does not know = %s, %v, want %s", now.Fingerprint(), err, second.Fingerprint())
	}
	heard, err := agentkey.Next(a.Dir)
	if err != nil || heard.Fingerprint() == unheard.Fingerprint() {
		t.Fatalf("the next key = %s, %v, want a new one", heard.Fingerprint(), err)
	}
	s.Exec(t, "INSERT INTO tendril.agent_keys (cluster_id, public_key, name, parent) SELECT cluster_id, $1, name, id FROM tendril.agent_keys WHERE public_key = $2", []byte(heard.Public()), []byte(second.Public()))
	s.Exec(t, "UPDATE tendril.agent_keys SET expires_at = now() WHERE public_key = $1", []byte(second.Public()))
	a.Start()
	a.AwaitOutput("registered")
	if now, err := agentkey.Load(a.Dir); err != nil || now.Fingerprint() != heard.Fingerprint() {
		t.Errorf("the key after a start with one that the database knows = %s, %v, want %s", now.Fingerprint(), err, heard.Fingerprint())
	}
	if status := s.AwaitEnd(s.DeployTemplate(repo, "rotated/two", map[string]any{})); status != "SUCCESS" {
		t.Errorf("a run after that = %s, want SUCCESS", status)
	}
}

// A new agent gets the identity of its cluster by a certificate, with nobody at the agent that shares
// it: each of the two names the certifying key in its own configuration.
func TestIdentityComesByCertificate(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	s.Serve()
	dir := t.TempDir()
	certifier, file := filepath.Join(dir, "certifier"), filepath.Join(dir, "certificate")
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", certifier).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v, %s", err, out)
	}
	public, err := os.ReadFile(certifier + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	one, two := s.NewAgent("one", 1, ""), s.NewAgent("two", 1, "")
	for _, a := range []*site.Agent{one, two} {
		a.Set("TENDRIL_POLICY_IDENTITY_CERTIFIERS", strings.TrimSpace(string(public)))
		withoutToken(a)
		a.Set("TENDRIL_JOIN_TOKEN", s.Text(t, "SELECT token FROM public.create_join_token($1)", s.Cluster))
	}
	one.Start()
	one.AwaitOutput("registered")
	held, err := identity.Read(filepath.Join(one.Dir, identity.File))
	if err != nil {
		t.Fatal(err)
	}
	one.Terminate()

	if err := os.MkdirAll(two.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	key, err := agentkey.Create(two.Dir)
	if err != nil {
		t.Fatal(err)
	}
	cluster := s.Text(t, "SELECT name FROM public.clusters WHERE id = $1", s.Cluster)
	tendril := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), site.Program("tendril"), append([]string{"identity"}, args...)...)
		cmd.Env = append(slices.Clone(two.Env), "TENDRIL_DATA_DIR="+two.Dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("tendril identity %q: %v, %s", args, err, out)
		}
		return string(out)
	}
	certificate := tendril("certify", key.Words(), "--key", certifier, "--cluster", cluster, "--identity", identity.Fingerprint(held.Public()))
	if err := os.WriteFile(file, []byte(certificate), 0o600); err != nil {
		t.Fatal(err)
	}
	tendril("accept", "--certificate", file)
	two.Start()
	s.Await("the certificate", "SELECT count(*) > 0 FROM tendril.identity_shares")
	one.Start()
	one.AwaitOutput("shared with another agent, by its certificate")
	two.Terminate() // it asks once a minute, and at its start
	two.Start()
	two.AwaitOutput("this agent has the cluster's identity now")
	if got, err := identity.Read(filepath.Join(two.Dir, identity.File)); err != nil || got.Public() != held.Public() {
		t.Errorf("the new agent's identity = %v, %v, want the cluster's", got, err)
	}
}

// A one-time token lets one agent join at its start, and no other.
func TestJoinByToken(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	s.Serve()
	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, instance.LocalUser)
	cluster := s.Text(t, "SELECT name FROM public.clusters WHERE id = $1", s.Cluster)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), site.Program("trellis"), "clusters", "join-token", cluster, "--valid", "10m")
	cmd.Env = s.People()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("trellis clusters join-token: %v", err)
	}
	token := strings.TrimSpace(string(out))
	one, two := s.NewAgent("one", 1, ""), s.NewAgent("two", 1, "")
	for _, a := range []*site.Agent{one, two} {
		withoutToken(a)
		a.Set("TENDRIL_JOIN_TOKEN", token)
	}
	one.Start()
	one.AwaitOutput("registered")
	one.Terminate()
	one.Start() // with a token that is used
	one.AwaitOutput("registered")
	two.Start()
	if code, said := two.Exit(); code != 1 || !strings.Contains(said, "used, revoked or expired") || strings.Contains(said, token) {
		t.Errorf("a second agent with the token ends with %d and %q, want 1 and a refusal", code, said)
	}
}

// An admin trusts the service account of a Kubernetes cluster, by its keys alone; a pod's agent joins
// with its token and works. The pod that replaces it has no data of it, joins, and ends its key.
func TestJoinByServiceAccount(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	s.Serve()
	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, instance.LocalUser)
	people, cluster := s.People(), s.Text(t, "SELECT name FROM public.clusters WHERE id = $1", s.Cluster)
	kubernetes, keys := accounttest.New(t, jose.RS256), filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(keys, []byte(kubernetes.Keys(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := trellisAs(t, people, "clusters", "trust", "add", cluster, "--keys", keys, "--issuer", accounttest.Issuer, "--service-account", accounttest.Account, "-o", "json")
	var made struct {
		ID       string `json:"trust_id"`
		Audience string
	}
	if err != nil || json.Unmarshal([]byte(out), &made) != nil || !strings.Contains(made.Audience, s.Cluster.String()) {
		t.Fatalf("trellis clusters trust add = %v, %q, want the audience of the cluster", err, out)
	}
	pod := func(name, pod string) *site.Agent {
		file := filepath.Join(t.TempDir(), "account")
		if err := os.WriteFile(file, []byte(kubernetes.Sign(t, accounttest.Claims(made.Audience, pod))), 0o600); err != nil {
			t.Fatal(err)
		}
		a := s.NewAgent(name, 1, "")
		withoutToken(a)
		a.Set("TENDRIL_QUEUE_JOIN_SERVICE_ACCOUNT_TOKEN_FILE", file)
		a.Start()
		a.AwaitOutput("registered")
		return a
	}
	first, other := pod("one", "tendril-0"), pod("two", "tendril-1")
	repo := s.Template("hello", map[string]string{"main.tf": `resource "terraform_data" "x" {}`})
	if status := s.AwaitEnd(s.DeployTemplate(repo, "pods/one", map[string]any{})); status != "SUCCESS" {
		t.Errorf("a run of a pod = %s, want SUCCESS", status)
	}
	if out, err := trellisAs(t, people, "clusters", "trust", "list", cluster); err != nil || !strings.Contains(out, accounttest.Issuer) || !strings.Contains(out, accounttest.Subject) || !strings.Contains(out, kubernetes.KeyID) {
		t.Errorf("trellis clusters trust list = %v, %q, want what is trusted", err, out)
	}

	// A container that starts again has its key still, and needs no trust for that.
	if out, err := trellisAs(t, people, "clusters", "trust", "remove", cluster, made.ID); err != nil {
		t.Errorf("trellis clusters trust remove = %v, %q", err, out)
	}
	other.Terminate()
	other.Start()
	other.AwaitOutput("registered")
	if out, err := trellisAs(t, people, "clusters", "trust", "add", cluster, "--keys", keys, "--issuer", accounttest.Issuer, "--service-account", accounttest.Account); err != nil || !strings.Contains(out, made.Audience) {
		t.Fatalf("trellis clusters trust add once more = %v, %q, want the same audience", err, out)
	}
	pod("one-again", "tendril-0")
	first.AwaitOutput("is revoked")
	if n := s.Text(t, "SELECT count(*)::text FROM tendril.agent_keys WHERE revoked_at IS NULL"); n != "2" {
		t.Errorf("%s keys count, want those of two pods", n)
	}
}

// Without a file the keys are asked of the issuer, which has to call itself what the tokens do.
func TestTrustAsksTheIssuer(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	s.Serve()
	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, instance.LocalUser)
	cluster := s.Text(t, "SELECT name FROM public.clusters WHERE id = $1", s.Cluster)
	kubernetes := accounttest.New(t, jose.ES256)
	var issuer *httptest.Server
	issuer = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		about := map[string]string{"issuer": issuer.URL + strings.TrimSuffix(r.URL.Path, "/.well-known/openid-configuration"), "jwks_uri": issuer.URL + "/keys"}
		switch r.URL.Path {
		case "/plain/.well-known/openid-configuration":
			about["jwks_uri"] = "http://127.0.0.1/keys"
		case "/other/.well-known/openid-configuration":
			about["issuer"] = "https://other.example"
		case "/large/.well-known/openid-configuration":
			_, _ = io.Copy(w, io.LimitReader(rand.Reader, 1<<20))
			return
		case "/down/.well-known/openid-configuration":
			http.Redirect(w, r, "http://127.0.0.1/", http.StatusFound)
			return
		case "/keys":
			_, _ = io.WriteString(w, kubernetes.Keys(t))
			return
		case "/.well-known/openid-configuration":
		default:
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(about)
	}))
	t.Cleanup(issuer.Close)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	people := append(s.People(), "SSL_CERT_FILE="+roots, "NO_PROXY=127.0.0.1")
	add := func(more ...string) (string, error) {
		return trellisAs(t, people, append([]string{"clusters", "trust", "add", cluster, "--service-account", accounttest.Account}, more...)...)
	}
	for _, more := range [][]string{{"--issuer", issuer.URL}, {"--issuer", accounttest.Issuer, "--keys", issuer.URL + "/keys"}} {
		if out, err := add(more...); err != nil {
			t.Errorf("trellis clusters trust add %q = %v, %q", more, err, out)
		}
	}
	if out, err := trellisAs(t, people, "clusters", "trust", "list", cluster); err != nil || strings.Count(out, kubernetes.KeyID) != 2 || !strings.Contains(out, issuer.URL) {
		t.Errorf("trellis clusters trust list = %v, %q, want both with the key %s", err, out, kubernetes.KeyID)
	}
	for path, want := range map[string]string{
		"/plain": "does not begin with https://", "/other": `calls itself "https://other.example"`, "/large": "too large", "/down": "302", "/none": "404",
	} {
		if out, err := add("--issuer", issuer.URL+path); err == nil || !strings.Contains(out, want) {
			t.Errorf("trellis clusters trust add --issuer …%s = %v, %q, want an error with %q", path, err, out, want)
		}
	}
}
