package rpcgateway_test

import (
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/queue/rpcwire"
	"github.com/tendril-run/tendril/internal/testkit/accounttest"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// pods are agents that join by a gateway.
type pods struct {
	*queuetest.World
	url, apiKey, ca string
	gateway         *rpcgateway.Gateway
}

func newPods(t *testing.T) *pods {
	t.Helper()
	w := queuetest.NewWorld(t)
	g := gatewaytest.ServeForKeys(t, w)
	return &pods{w, g.URL, g.APIKey, g.CAFile, g.Served}
}

// trusts has the control plane trust an API server for a cluster, and returns the audience.
func (p *pods) trusts(t *testing.T, cluster uuid.UUID, s *accounttest.APIServer) string {
	t.Helper()
	return p.Text(t, "SELECT audience FROM public.trust_issuer($1, $2, ARRAY[$3], $4)", cluster, accounttest.Issuer, accounttest.Subject, s.Keys(t))
}

// join asks to join with a new key.
func (p *pods) join(t *testing.T, token string) (rpcwire.JoinStanding, error) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return p.joinAs(t, key, token)
}

func (p *pods) joinAs(t *testing.T, key ed25519.PrivateKey, token string) (rpcwire.JoinStanding, error) {
	t.Helper()
	return p.dial(t, key, queue.Agent{Version: "1"}).RequestJoin(t.Context(), rpcwire.JoinRequest{Name: "one", Host: "tendril-0", Version: "1", Slots: 1, AccountToken: token})
}

func (p *pods) dial(t *testing.T, key ed25519.PrivateKey, agent queue.Agent) *rpcqueue.Queue {
	t.Helper()
	q, err := rpcqueue.New(rpcqueue.Options{URL: p.url, APIKey: p.apiKey, CAFile: p.ca, Key: key, Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return q
}

// wantNoJoin wants a token refused for a reason, and no key to have joined.
func (p *pods) wantNoJoin(t *testing.T, what, token, why string) {
	t.Helper()
	standing, err := p.join(t, token)
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("%s: joining = %+v, %v, want a refusal with %q", what, standing, err, why)
	}
	if err != nil && token != "" && strings.Contains(err.Error(), token) {
		t.Errorf("%s: the refusal has the token: %v", what, err)
	}
}

func TestPodJoins(t *testing.T) {
	t.Parallel()
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.ES256} {
		t.Run(string(alg), func(t *testing.T) {
			t.Parallel()
			p, s := newPods(t), accounttest.New(t, alg)
			token := s.Sign(t, accounttest.Claims(p.trusts(t, p.Cluster, s), "tendril-0"))
			_, key, err := ed25519.GenerateKey(nil)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				standing, err := p.joinAs(t, key, token)
				if err != nil || standing.Status != rpcwire.JoinJoined || standing.ClusterID != p.Cluster {
					t.Fatalf("joining = %+v, %v, want joined", standing, err)
				}
			}
			p.wantNoJoin(t, "another key with the token", token, "another key has joined")
			if alg == jose.ES256 {
				p.wantNoJoin(t, "another key with the token and its other signature", otherSignature(t, token), "another key has joined")
			}
			if n := p.Text(t, "SELECT count(*)::text FROM tendril.agent_keys"); n != "1" {
				t.Errorf("%s keys have joined, want 1", n)
			}
		})
	}
}

// A pod is replaced while its agent waits for work: the agent of the new pod joins under the same
// name, and the call of the old key ends by that, not by its time. From then on the old key is
// refused, and the calls of other pods stay as they are.
func TestReplacedPodIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	p, s := newPods(t), accounttest.New(t, jose.ES256)
	audience := p.trusts(t, p.Cluster, s)
	starts := func(pod, name string) *rpcqueue.Queue {
		t.Helper()
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		if standing, err := p.joinAs(t, key, s.Sign(t, accounttest.Claims(audience, pod))); err != nil || standing.Status != rpcwire.JoinJoined {
			t.Fatalf("joining = %+v, %v, want joined", standing, err)
		}
		agent := queuetest.NewAgent(name)
		agent.Host, agent.Kernel = pod+":/data", "node" // where the pod before it was
		return p.dial(t, key, agent)
	}
	waits := func(q *rpcqueue.Queue) chan error {
		t.Helper()
		if _, err := q.Register(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil { // it learns that calls are held
			t.Fatal(err)
		}
		before, ended := p.gateway.Held().Calls, make(chan error, 1)
		go func() {
			_, err := q.Heartbeat(t.Context(), queue.Beat{Wait: queue.MaxHeld, Free: true})
			ended <- err
		}()
		patience.Await(t, "the call to be held", func() bool { return len(ended) > 0 || p.gateway.Held().Calls > before })
		return ended
	}
	old, other := starts("tendril-0", "one"), starts("tendril-1", "two")
	oldCall, otherCall := waits(old), waits(other)
	woken := p.gateway.Held().Woken["notified"]
	successor := starts("tendril-0", "one")
	select {
	case err := <-oldCall:
		if queue.KindOf(err) != queue.Unauthorized {
			t.Errorf("the old key's held call ends with %v, want it unauthorized", err)
		}
	case <-patience.After(time.Minute):
		t.Fatal("the old key's held call does not end")
	}
	if now := p.gateway.Held().Woken["notified"]; now == woken {
		t.Error("the old key's held call has ended by its time, want it ended by the new pod's joining")
	}
	for name, call := range map[string]func() error{
		"Heartbeat": func() error { _, err := old.Heartbeat(t.Context(), queue.Beat{Wait: queue.MaxHeld}); return err },
		"Claim":     func() error { _, err := old.Claim(t.Context(), uuid.New()); return err },
		"Register":  func() error { _, err := old.Register(t.Context()); return err },
	} {
		if err := call(); queue.KindOf(err) != queue.Unauthorized {
			t.Errorf("%s() of the old key = %v, want it unauthorized", name, err)
		}
	}
	waits(successor)
	select {
	case err := <-otherCall:
		t.Errorf("the held call of another pod ends with %v, want it held still", err)
	default:
	}
}

// otherSignature is a token with the other signature that holds for it: of ECDSA there are two.
func otherSignature(t *testing.T, token string) string {
	t.Helper()
	at := strings.LastIndexByte(token, '.') + 1
	signature, err := base64.RawURLEncoding.DecodeString(token[at:])
	if err != nil {
		t.Fatal(err)
	}
	half := len(signature) / 2
	s := new(big.Int).SetBytes(signature[half:])
	s.Sub(elliptic.P256().Params().N, s).FillBytes(signature[half:])
	return token[:at] + base64.RawURLEncoding.EncodeToString(signature)
}

// Whatever is wrong about a token, nobody joins with it.
func TestTokensThatLetNobodyJoin(t *testing.T) {
	t.Parallel()
	p, s := newPods(t), accounttest.New(t, jose.RS256)
	audience := p.trusts(t, p.Cluster, s)
	pod := func(c map[string]any) map[string]any { return c["kubernetes.io"].(map[string]any) }
	const untrusted = "no admin has let agents join"
	for what, tc := range map[string]struct {
		change func(map[string]any)
		why    string
	}{
		"another issuer":             {func(c map[string]any) { c["iss"] = "https://other.example" }, untrusted},
		"another cluster's audience": {func(c map[string]any) { c["aud"] = []string{"tendril:" + uuid.NewString()} }, untrusted},
		"the API server's audience":  {func(c map[string]any) { c["aud"] = []string{accounttest.Issuer} }, untrusted},
		"two audiences":              {func(c map[string]any) { c["aud"] = []string{audience, accounttest.Issuer} }, "exactly one audience"},
		"no audience":                {func(c map[string]any) { delete(c, "aud") }, "exactly one audience"},
		"another account":            {func(c map[string]any) { c["sub"] = "system:serviceaccount:tendril:default" }, untrusted},
		"a pod of another namespace": {func(c map[string]any) {
			c["sub"] = "system:serviceaccount:other:tendril"
			pod(c)["namespace"] = "other"
		}, untrusted},
		"another namespace's account": {func(c map[string]any) { pod(c)["namespace"] = "other" }, "another account"},
		"expired":                     {func(c map[string]any) { c["exp"] = time.Now().Add(-5 * time.Minute).Unix() }, "expired"},
		"not valid yet":               {func(c map[string]any) { c["nbf"] = time.Now().Add(5 * time.Minute).Unix() }, "not valid yet"},
		"valid for good":              {func(c map[string]any) { delete(c, "exp") }, "never expires"},
		"valid for a year":            {func(c map[string]any) { c["exp"] = time.Now().AddDate(1, 0, 0).Unix() }, "more than a day"},
		"bound to no pod":             {func(c map[string]any) { delete(pod(c), "pod") }, "not bound to a pod"},
		"no claim of Kubernetes":      {func(c map[string]any) { delete(c, "kubernetes.io") }, "not bound to a pod"},
	} {
		t.Run(what, func(t *testing.T) {
			changed := accounttest.Claims(audience, "tendril-0")
			tc.change(changed)
			p.wantNoJoin(t, what, s.Sign(t, changed), tc.why)
		})
	}

	good := accounttest.Claims(audience, "tendril-0")
	thief := accounttest.New(t, jose.RS256)
	p.wantNoJoin(t, "another key", thief.Sign(t, good), "the service account token is refused")
	thief.KeyID = s.KeyID
	p.wantNoJoin(t, "another key of the same name", thief.Sign(t, good), "the service account token is refused")
	p.wantNoJoin(t, "alg none", unsigned(t, `{"alg":"none","kid":"`+s.KeyID+`"}`, good, nil), "the service account token is refused")
	der, err := x509.MarshalPKIXPublicKey(s.Public())
	if err != nil {
		t.Fatal(err)
	}
	p.wantNoJoin(t, "HS256 with the public key", unsigned(t, `{"alg":"HS256","kid":"`+s.KeyID+`"}`, good, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), "the service account token is refused")
	token := s.Sign(t, good)
	p.wantNoJoin(t, "a token cut", token[:len(token)-8], "the service account token is refused")
	p.wantNoJoin(t, "what is no token", "hello", "the service account token is refused")
	p.wantNoJoin(t, "a huge token", strings.Repeat("x", 9000), "it is no token")
	if n := p.Text(t, "SELECT count(*)::text FROM tendril.agent_keys"); n != "0" {
		t.Errorf("%s keys have joined, want none", n)
	}
	// The same claims, signed as they ought to be, do.
	if standing, err := p.join(t, token); err != nil || standing.Status != rpcwire.JoinJoined {
		t.Errorf("joining with the token itself = %+v, %v, want joined", standing, err)
	}
}

// unsigned is a token with a header of one's own, with an HMAC by a secret that everybody has.
func unsigned(t *testing.T, header string, claims map[string]any, secret []byte) string {
	t.Helper()
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	covered := encode([]byte(header)) + "." + encode(body)
	if secret == nil {
		return covered + "."
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(covered))
	return covered + "." + encode(mac.Sum(nil))
}

// Another organisation may trust the same issuer, whose name is the same in most clusters, or even
// the same keys: a token names the cluster that it is for.
func TestAnotherOrganisationsIssuer(t *testing.T) {
	t.Parallel()
	p, mine, theirs := newPods(t), accounttest.New(t, jose.ES256), accounttest.New(t, jose.ES256)
	other := uuid.New()
	p.Exec(t, "WITH o AS (INSERT INTO public.orgs (name) VALUES ('others') RETURNING id) INSERT INTO public.clusters (id, org_id, name) SELECT $1, o.id, 'theirs' FROM o", other)
	audience, others := p.trusts(t, p.Cluster, mine), p.trusts(t, other, theirs)
	p.wantNoJoin(t, "a token of theirs for my cluster", theirs.Sign(t, accounttest.Claims(audience, "tendril-0")), "the service account token is refused")
	p.trusts(t, other, mine) // they have got hold of my public keys
	standing, err := p.join(t, mine.Sign(t, accounttest.Claims(audience, "tendril-0")))
	if err != nil || standing.ClusterID != p.Cluster {
		t.Errorf("joining with a token for my cluster = %+v, %v, want my cluster", standing, err)
	}
	if audience == others {
		t.Errorf("both clusters have the audience %s, want each its own", audience)
	}
	p.wantNoJoin(t, "a token of theirs for theirs, by my keys", theirs.Sign(t, accounttest.Claims(others, "tendril-0")), "the service account token is refused")
}

// A signed request is needed, and nobody can say by themselves what a token has said.
func TestAccountsInTheRequest(t *testing.T) {
	t.Parallel()
	p, s := newPods(t), accounttest.New(t, jose.ES256)
	audience := p.trusts(t, p.Cluster, s)
	url := serve(t, rpcgateway.Options{DatabaseURL: p.URL})
	body := fmt.Sprintf(`{"p_request": {"name": "n", "host": "h", "version": "1", "slots": 1, "service_account_token": %q}}`, s.Sign(t, accounttest.Claims(audience, "tendril-0")))
	if got := post(t, url, "request_join", body); got.status != 401 || !strings.Contains(string(got.body), "signature_missing") {
		t.Errorf("request_join that is not signed = %d %s, want 401", got.status, got.body)
	}
	if got := post(t, url, "trusted_keys", `{"p_issuer": "a", "p_audience": "b", "p_subject": "c"}`); got.status != 404 {
		t.Errorf("trusted_keys by the gateway = %d %s, want 404", got.status, got.body)
	}
}
