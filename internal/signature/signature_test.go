package signature_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/signature"
)

var (
	seed   = bytes.Repeat([]byte{7}, ed25519.SeedSize)
	key    = ed25519.NewKeyFromSeed(seed)
	public = key.Public().(ed25519.PublicKey)
	moment = time.Unix(1_800_000_000, 0)
)

const address = "https://Trellis.example:443/rest/v1/rpc/agent_heartbeat"

// signed is a request as the server has it.
func signed(t testing.TB, body string) *http.Request {
	t.Helper()
	sent, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := signature.Sign(sent, []byte(body), key, moment); err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), sent.Method, "/rest/v1/rpc/agent_heartbeat", strings.NewReader(body))
	r.Host, r.Header = "trellis.example", sent.Header
	return r
}

func verify(r *http.Request, body string, now time.Time) (signature.Signed, error) {
	return signature.Verify(r, []byte(body), []string{"trellis:8080", "trellis.example"}, now)
}

func TestSignedRequestIsVerified(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"p_claims": []}`, ""} {
		got, err := verify(signed(t, body), body, moment.Add(30*time.Second))
		if err != nil || !got.Key.Equal(public) || !got.Created.Equal(moment) || len(got.Nonce) < 16 {
			t.Errorf("Verify(body %q) = %+v, %v, want what was signed", body, got, err)
		}
	}
}

// Each alteration of a signed request, or of its signature, is refused with a sentence.
func TestAlteredRequestIsRefused(t *testing.T) {
	t.Parallel()
	const body = `{"p_claims": []}`
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{8}, ed25519.SeedSize))
	swap := func(field, old, new string) func(*http.Request) {
		return func(r *http.Request) {
			was := r.Header.Get(field)
			r.Header.Set(field, strings.Replace(was, old, new, 1))
			if r.Header.Get(field) == was {
				t.Errorf("%s does not have %q: %s", field, old, was)
			}
		}
	}
	for name, c := range map[string]struct {
		alter func(*http.Request)
		body  string
		now   time.Duration
		want  string
	}{
		"method":                {alter: func(r *http.Request) { r.Method = http.MethodPut }, want: "does not match the request"},
		"path":                  {alter: func(r *http.Request) { r.URL.Path = "/rest/v1/rpc/put_blob" }, want: "does not match the request"},
		"path, spelt otherwise": {alter: func(r *http.Request) { r.URL.RawPath = "/rest/v1/rpc/agent%5Fheartbeat" }, want: "does not match the request"},
		"query":                 {alter: func(r *http.Request) { r.URL.RawQuery = "a=1" }, want: "does not match the request"},
		"body":                  {body: `{"p_claims": [1]}`, want: "not the sha-256 of the body"},
		"body and digest": {body: "x", alter: func(r *http.Request) {
			sum := sha256.Sum256([]byte("x"))
			r.Header.Set(signature.Digest, "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
		}, want: "does not match the request"},
		"no digest":          {alter: func(r *http.Request) { r.Header.Del(signature.Digest) }, want: "not the sha-256 of the body"},
		"another digest":     {alter: swap(signature.Digest, "sha-256", "md5"), want: "not the sha-256 of the body"},
		"digest not covered": {alter: swap(signature.Input, ` "content-digest"`, ""), want: "does not cover content-digest"},
		"path not covered":   {alter: swap(signature.Input, ` "@path"`, ""), want: "does not cover @path"},
		"more covered":       {alter: swap(signature.Input, `"@path"`, `"@path" "date"`), want: "it covers date"},
		"covered twice":      {alter: swap(signature.Input, `"@path"`, `"@path" "@path"`), want: "it covers @path"},
		"covered in part":    {alter: swap(signature.Input, `"@query"`, `"@query";name="a"`), want: "it covers @query"},
		"another key":        {alter: swap(signature.Input, base64.RawURLEncoding.EncodeToString(public), base64.RawURLEncoding.EncodeToString(other.Public().(ed25519.PublicKey))), want: "does not match the request"},
		"no key":             {alter: swap(signature.Input, base64.RawURLEncoding.EncodeToString(public), "agent-1"), want: "keyid"},
		"another algorithm":  {alter: swap(signature.Input, "ed25519", "rsa-v1_5-sha256"), want: "alg"},
		"another tag":        {alter: swap(signature.Input, signature.Tag, "web-bot-auth"), want: "has 0 signatures"},
		"another nonce":      {alter: swap(signature.Input, `nonce="`, `nonce="A`), want: "does not match the request"},
		"a short nonce":      {alter: swap(signature.Input, `nonce="`, `nonce="A";x="`), want: "nonce"},
		"created later":      {alter: swap(signature.Input, "created=1800000000", "created=1800000001"), want: "does not match the request"},
		"good for long":      {alter: swap(signature.Input, "expires=1800000060", "expires=1800009999"), want: "longer than allowed"},
		"no end":             {alter: swap(signature.Input, "expires=", "until="), want: "created and expires"},
		"too old":            {now: 61 * time.Second, want: "set the clock"},
		"from the future":    {now: -61 * time.Second, want: "set the clock"},
		"no signature":       {alter: func(r *http.Request) { r.Header.Del(signature.Value) }, want: "no Ed25519 signature"},
		"a cut signature":    {alter: func(r *http.Request) { r.Header.Set(signature.Value, "agent=:AAAA:") }, want: "no Ed25519 signature"},
		"another signature": {alter: func(r *http.Request) {
			r.Header.Set(signature.Value, "agent=:"+base64.StdEncoding.EncodeToString(make([]byte, 64))+":")
		}, want: "does not match"},
		"another label": {alter: swap(signature.Value, "agent=", "other="), want: "no Ed25519 signature"},
		"two": {alter: func(r *http.Request) {
			r.Header.Set(signature.Input, r.Header.Get(signature.Input)+", b"+strings.TrimPrefix(r.Header.Get(signature.Input), "agent"))
		}, want: "has 2 signatures"},
		"nonsense":         {alter: func(r *http.Request) { r.Header.Set(signature.Input, "(((") }, want: "can't be read"},
		"too large":        {alter: func(r *http.Request) { r.Header.Set(signature.Input, "a="+strings.Repeat("1", 3000)) }, want: "more than"},
		"an item, no list": {alter: func(r *http.Request) { r.Header.Set(signature.Input, `agent=1;tag="tendril-agent"`) }, want: "has 0 signatures"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := signed(t, body)
			if c.alter != nil {
				c.alter(r)
			}
			sent := body
			if c.body != "" {
				sent = c.body
			}
			if _, err := verify(r, sent, moment.Add(c.now)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Verify() = %v, want an error with %q", err, c.want)
			}
		})
	}
	if _, err := signature.Verify(signed(t, body), []byte(body), []string{"other.example"}, moment); err == nil || !strings.Contains(err.Error(), "must be made to other.example") {
		t.Errorf("Verify(for another server) = %v, want an error", err)
	}
}

// The primitive and the reading of keys are fixed by RFC 9421, B.2.6.
func TestSignatureOfTheRFC(t *testing.T) {
	t.Parallel()
	block, _ := pem.Decode([]byte("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n-----END PRIVATE KEY-----\n"))
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	base := `"date": Tue, 20 Apr 2021 02:07:55 GMT
"@method": POST
"@path": /foo
"@authority": example.com
"content-type": application/json
"content-length": 18
"@signature-params": ("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519"`
	got := base64.StdEncoding.EncodeToString(ed25519.Sign(parsed.(ed25519.PrivateKey), []byte(base)))
	if want := "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="; got != want {
		t.Errorf("signature = %s, want %s", got, want)
	}
}

// What a client signs that has nothing of ours but the RFC: the text below is the whole
// signature base. Its parts may stand in any order, and other signatures beside it.
func TestFormOfTheSignatureBase(t *testing.T) {
	t.Parallel()
	var (
		keyID  = base64.RawURLEncoding.EncodeToString(public)
		list   = `("@query" "@authority" "@method" "@path" "content-digest");created=1800000000;keyid="` + keyID + `";alg="ed25519";expires=1800000060;nonce="0123456789abcdef";tag="tendril-agent"`
		digest = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"
		base   = `"@query": ?page=2&x=%20` + "\n" + `"@authority": trellis.example:8443` + "\n" + `"@method": POST` + "\n" + `"@path": /a%2Fb/c` + "\n" +
			`"content-digest": ` + digest + "\n" + `"@signature-params": ` + list
	)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/a%2Fb/c?page=2&x=%20", nil)
	r.Header.Set("Content-Digest", digest)
	r.Header.Add("Signature-Input", `proxy=("@method");created=1;tag="other"`)
	r.Header.Add("Signature-Input", "mine="+list)
	r.Header.Set("Signature", "proxy=:AAAA:, mine=:"+base64.StdEncoding.EncodeToString(ed25519.Sign(key, []byte(base)))+":")
	if got, err := signature.Verify(r, []byte(`{"hello": "world"}`), []string{"Trellis.example:8443"}, moment); err != nil || got.Nonce != "0123456789abcdef" {
		t.Errorf("Verify() = %+v, %v, want it accepted", got, err)
	}
}
