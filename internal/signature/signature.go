// Package signature signs HTTP requests with an agent's Ed25519 key and verifies such
// signatures: HTTP Message Signatures (RFC 9421) over method, authority, path, query and
// the body's digest (RFC 9530).
//
// A signature names the key that made it by the key itself, so it can be verified without
// asking anybody; whose key that is, and whether it still counts, the database says.
//
// The package must not know what is requested, nor keep what it has seen: a request may be
// repeated for as long as its signature is good.
package signature

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// Tag is the parameter tag of an agent's signatures (RFC 9421, section 2.3): one made for
// something else is not taken.
const Tag = "tendril-agent"

// Skew is by how much two clocks may differ, and how long a signature is good.
const Skew = time.Minute

// The header fields of a signed request.
const (
	Input  = "Signature-Input"
	Value  = "Signature"
	Digest = "Content-Digest"
)

const (
	label     = "agent"
	algorithm = "ed25519"
	sha256Sum = "sha-256"
	// mostField is the largest of these header fields, in bytes.
	mostField = 2 << 10
	// A nonce has so many characters.
	leastNonce, mostNonce = 16, 64
)

// covered are the parts of a request that a signature is over, in the order of ours. The
// digest may be missing where there is no body.
var covered = []string{"@method", "@authority", "@path", "@query", "content-digest"}

// Sign signs a request whose body is given. It sets its header fields.
func Sign(r *http.Request, body []byte, key ed25519.PrivateKey, now time.Time) error {
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return errors.New("sign the request: the key is no Ed25519 key")
	}
	digest, err := httpsfv.Marshal(digestOf(body))
	if err != nil {
		return fmt.Errorf("sign the request: %w", err)
	}
	r.Header.Set(Digest, digest)
	list := httpsfv.InnerList{Params: httpsfv.NewParams()}
	for _, name := range covered {
		list.Items = append(list.Items, httpsfv.NewItem(name))
	}
	list.Params.Add("created", now.Unix())
	list.Params.Add("expires", now.Add(Skew).Unix())
	list.Params.Add("nonce", rand.Text())
	list.Params.Add("keyid", base64.RawURLEncoding.EncodeToString(public))
	list.Params.Add("alg", algorithm)
	list.Params.Add("tag", Tag)
	base, params, err := baseOf(r, r.URL.Host, list)
	if err != nil {
		return fmt.Errorf("sign the request: %w", err)
	}
	r.Header.Set(Input, label+"="+params)
	r.Header.Set(Value, label+"=:"+base64.StdEncoding.EncodeToString(ed25519.Sign(key, base))+":")
	return nil
}

func digestOf(body []byte) *httpsfv.Dictionary {
	sum := sha256.Sum256(body)
	d := httpsfv.NewDictionary()
	d.Add(sha256Sum, httpsfv.NewItem(sum[:]))
	return d
}

// baseOf is the signature base (RFC 9421, section 2.5), and the parameters as it has them.
func baseOf(r *http.Request, authority string, list httpsfv.InnerList) (base []byte, params string, err error) {
	params, err = marshalList(list)
	if err != nil {
		return nil, "", err
	}
	var b bytes.Buffer
	for _, item := range list.Items {
		name, _ := item.Value.(string)
		fmt.Fprintf(&b, "%q: %s\n", name, component(r, authority, name))
	}
	fmt.Fprintf(&b, "%q: %s", "@signature-params", params)
	return b.Bytes(), params, nil
}

func marshalList(list httpsfv.InnerList) (string, error) { return httpsfv.Marshal(httpsfv.List{list}) }

func component(r *http.Request, authority, name string) string {
	switch name {
	case "@method":
		return r.Method
	case "@authority":
		return Authority(authority)
	case "@path":
		if path := r.URL.EscapedPath(); path != "" {
			return path
		}
		return "/"
	case "@query":
		return "?" + r.URL.RawQuery
	default:
		return strings.Join(r.Header.Values(name), ", ")
	}
}

// Authority is host and port as a signature has them: in lower case, without a port that is
// the default of http or https. Which of the two it was, a server behind a proxy can't say.
func Authority(host string) string {
	host = strings.ToLower(host)
	return strings.TrimSuffix(strings.TrimSuffix(host, ":443"), ":80")
}

// Signed is what a good signature says.
type Signed struct {
	Key     ed25519.PublicKey
	Created time.Time
	Nonce   string
}

// Present reports whether a request claims to be signed.
func Present(header http.Header) bool { return len(header.Values(Input)) > 0 }

// Verify verifies a request whose body is given, which must have been made for one of these
// authorities. The error says for people what is wrong.
func Verify(r *http.Request, body []byte, authorities []string, now time.Time) (Signed, error) {
	signed, err := verify(r, body, authorities, now)
	if err != nil {
		return Signed{}, fmt.Errorf("the request's signature is not accepted: %w", err)
	}
	return signed, nil
}

func verify(r *http.Request, body []byte, authorities []string, now time.Time) (s Signed, err error) {
	list, value, err := read(r.Header)
	if err != nil {
		return s, err
	}
	if s, err = parameters(list.Params, now); err != nil {
		return s, err
	}
	if err := checkCovered(list, len(body) > 0); err != nil {
		return s, err
	}
	if err := checkDigest(r.Header, body, slices.ContainsFunc(list.Items, isDigest)); err != nil {
		return s, err
	}
	for _, authority := range authorities {
		base, _, err := baseOf(r, authority, list)
		if err != nil {
			return s, err
		}
		if ed25519.Verify(s.Key, base, value) {
			return s, nil
		}
	}
	return s, fmt.Errorf("it does not match the request, which must be made to %s unchanged", strings.Join(authorities, " or "))
}

func isDigest(item httpsfv.Item) bool { return item.Value == "content-digest" }

// read finds the one signature that is meant for us: others may stand there too.
func read(header http.Header) (list httpsfv.InnerList, value []byte, err error) {
	inputs, err := dictionary(header, Input)
	if err != nil {
		return list, nil, err
	}
	values, err := dictionary(header, Value)
	if err != nil {
		return list, nil, err
	}
	found := 0
	for _, name := range inputs.Names() {
		member, _ := inputs.Get(name)
		one, ok := member.(httpsfv.InnerList)
		if !ok {
			continue
		}
		if tag, _ := one.Params.Get("tag"); tag != Tag {
			continue
		}
		found++
		list = one
		signed, _ := values.Get(name)
		if item, ok := signed.(httpsfv.Item); ok {
			value, _ = item.Value.([]byte)
		}
	}
	switch {
	case found != 1:
		return list, nil, fmt.Errorf("%s has %d signatures with the tag %q, want one", Input, found, Tag)
	case len(value) != ed25519.SignatureSize:
		return list, nil, fmt.Errorf("%s has no Ed25519 signature of %d bytes", Value, ed25519.SignatureSize)
	}
	return list, value, nil
}

func dictionary(header http.Header, name string) (*httpsfv.Dictionary, error) {
	texts := header.Values(name)
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	if size > mostField {
		return nil, fmt.Errorf("%s has more than %d bytes", name, mostField)
	}
	d, err := httpsfv.UnmarshalDictionary(texts)
	if err != nil {
		return nil, fmt.Errorf("%s can't be read: %w", name, err)
	}
	return d, nil
}

func parameters(p *httpsfv.Params, now time.Time) (s Signed, err error) {
	text := func(name string) string { v, _ := p.Get(name); s, _ := v.(string); return s }
	moment := func(name string) (time.Time, bool) {
		v, _ := p.Get(name)
		seconds, ok := v.(int64)
		return time.Unix(seconds, 0), ok
	}
	s.Nonce = text("nonce")
	key, keyErr := base64.RawURLEncoding.Strict().DecodeString(text("keyid"))
	s.Key = key
	created, hasCreated := moment("created")
	expires, hasExpires := moment("expires")
	s.Created = created
	switch {
	case text("alg") != algorithm:
		return s, fmt.Errorf("its parameter alg must be %q", algorithm)
	case keyErr != nil || len(key) != ed25519.PublicKeySize:
		return s, errors.New("its parameter keyid must be an Ed25519 public key, as base64url without padding")
	case !printableNonce(s.Nonce):
		return s, fmt.Errorf("its parameter nonce must be %d to %d letters and digits", leastNonce, mostNonce)
	case !hasCreated || !hasExpires:
		return s, errors.New("its parameters created and expires must be there")
	case created.Sub(now).Abs() > Skew:
		return s, fmt.Errorf("it was made at %s, and it is %s here: set the clock of one of the two machines", created.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case expires.Before(now) || expires.Sub(created) > 2*Skew:
		return s, errors.New("it has expired, or is good for longer than allowed")
	}
	return s, nil
}

func printableNonce(nonce string) bool {
	return len(nonce) >= leastNonce && len(nonce) <= mostNonce && !strings.ContainsFunc(nonce, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_'
	})
}

// checkCovered demands each part, once and whole, and none that is not checked here.
func checkCovered(list httpsfv.InnerList, hasBody bool) error {
	var names []string
	for _, item := range list.Items {
		name, ok := item.Value.(string)
		if !ok || len(item.Params.Names()) > 0 || !slices.Contains(covered, name) || slices.Contains(names, name) {
			return fmt.Errorf("it covers %v, want %s, each once", item.Value, strings.Join(covered, ", "))
		}
		names = append(names, name)
	}
	for _, name := range covered {
		if !slices.Contains(names, name) && (hasBody || name != "content-digest") {
			return fmt.Errorf("it does not cover %s", name)
		}
	}
	return nil
}

func checkDigest(header http.Header, body []byte, isCovered bool) error {
	if !isCovered {
		return nil // there is no body
	}
	digests, err := dictionary(header, Digest)
	if err != nil {
		return err
	}
	member, _ := digests.Get(sha256Sum)
	item, _ := member.(httpsfv.Item)
	got, _ := item.Value.([]byte)
	want := sha256.Sum256(body)
	if !bytes.Equal(got, want[:]) {
		return fmt.Errorf("%s is not the %s of the body that arrived", Digest, sha256Sum)
	}
	return nil
}

// AuthorityOf is that of a URL, "" for none.
func AuthorityOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return Authority(u.Host)
}
