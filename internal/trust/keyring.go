package trust

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/seal"
)

// Keyring is what an agent's policy.requester_keys say. The zero value trusts
// nobody.
type Keyring struct {
	keys        []grant // public keys of people
	authorities []grant // fingerprints of keys that issue certificates
	revoked     map[string]bool
}

// grant is something that counts for the workspaces that match all of where.
type grant struct {
	what  string
	where []Workspaces
}

func (g grant) match(name string, id uuid.UUID) bool {
	return !slices.ContainsFunc(g.where, func(w Workspaces) bool { return !w.Match(name, id) })
}

// maxKeys bounds what is read of one file.
const maxKeys = 10_000

// ParseKeys reads entries "WORKSPACES: WHAT", or WHAT for all workspaces. WHAT is
//
//	age1…                   a key that may be sealed to
//	ssh-ed25519 AAAA…       the same, and its orders count
//	authority SHA256:…      certificates count that the key of this fingerprint has signed
//	revoked ID              the certificate of that id, or the key of that fingerprint, does not count
//	/PATH                   a file with such entries, one a line, "#" begins a comment
//
// read reads a file.
func ParseKeys(entries []string, read func(path string) (string, error)) (*Keyring, error) {
	k := &Keyring{revoked: map[string]bool{}}
	var problems []error
	for _, entry := range entries {
		where, what, err := cutWorkspaces(entry)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if !filepath.IsAbs(what) {
			problems = append(problems, k.add(what, where))
			continue
		}
		text, err := read(what)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s %w", what, err))
			continue
		}
		lines := strings.Split(text, "\n")
		if len(lines) > maxKeys {
			problems = append(problems, fmt.Errorf("%s has more than %d lines", what, maxKeys))
			continue
		}
		for n, line := range lines {
			if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			narrower, what2, err := cutWorkspaces(line)
			if err == nil {
				err = k.add(what2, append(slices.Clone(where), narrower...))
			}
			if err != nil {
				problems = append(problems, fmt.Errorf("%s, line %d: %w", what, n+1, err))
			}
		}
	}
	return k, errors.Join(problems...)
}

// cutWorkspaces takes "WORKSPACES: WHAT" apart.
func cutWorkspaces(entry string) ([]Workspaces, string, error) {
	entry = strings.TrimSpace(entry)
	before, after, cut := strings.Cut(entry, ": ")
	if !cut || strings.HasPrefix(before, "ssh-") || strings.HasPrefix(before, "/") {
		return nil, entry, nil
	}
	w, err := ParseWorkspaces(before)
	return []Workspaces{w}, strings.TrimSpace(after), err
}

func (k *Keyring) add(what string, where []Workspaces) error {
	kind, rest, _ := strings.Cut(what, " ")
	rest = strings.TrimSpace(rest)
	switch {
	case kind == "authority" && strings.HasPrefix(rest, "SHA256:") && len(rest) == len("SHA256:")+43:
		k.authorities = append(k.authorities, grant{rest, where})
		return nil
	case kind == "revoked" && rest != "" && !strings.Contains(rest, " "):
		k.revoked[rest] = true
		return nil
	case kind == "authority" || kind == "revoked":
		return fmt.Errorf("%q: after %s comes %s", what, kind, map[string]string{"authority": "a fingerprint, SHA256:…", "revoked": "a certificate's id or a key's fingerprint"}[kind])
	}
	if _, err := seal.ParseRecipient(what); err != nil {
		return fmt.Errorf("%q is none of age1…, ssh-ed25519 AAAA…, authority SHA256:…, revoked ID and the absolute path of a file", what)
	}
	k.keys = append(k.keys, grant{bare(what), where})
	return nil
}

// bare is a public key without the comment that an SSH key may have.
func bare(key string) string {
	fields := strings.Fields(key)
	return strings.Join(fields[:min(2, len(fields))], " ")
}

// ErrNotTrusted is in the chain of the errors of Recipient and Signer.
var ErrNotTrusted = errors.New("policy.requester_keys")

// Recipient returns the public key to seal to for a workspace, for who asks with
// a public key or a certificate. Its error is a clause for people.
func (k *Keyring) Recipient(asked, name string, id uuid.UUID, now time.Time) (string, error) {
	if !IsCertificate(asked) {
		return bare(asked), k.trusts(asked, name, id)
	}
	c, err := k.certified(asked, name, id, now)
	return c.Recipient, err
}

// Signer checks that an order counts: that a key has signed it which may, for this
// workspace, now. What it orders is for the caller to compare.
func (k *Keyring) Signer(text, name string, id uuid.UUID, now time.Time) (Order, error) {
	o, err := ParseOrder(text)
	switch {
	case err != nil:
		return o, fmt.Errorf("%w: the order %w", ErrNotTrusted, err)
	case o.Workspace != id || o.Name != name:
		return o, fmt.Errorf("%w: the order is for workspace %s (%s)", ErrNotTrusted, o.Name, o.Workspace)
	case !now.Before(o.Until):
		return o, fmt.Errorf("%w: the order counted until %s: give it again", ErrNotTrusted, o.Until.Format(time.RFC3339))
	case o.Until.Sub(now) > MaxOrder:
		return o, fmt.Errorf("%w: the order counts until %s, which is too long", ErrNotTrusted, o.Until.Format(time.RFC3339))
	case o.Certificate == "":
		return o, k.trusts(o.Signer, name, id)
	}
	c, err := k.certified(o.Certificate, name, id, now)
	if err == nil && (c.Signer == "" || bare(c.Signer) != bare(o.Signer)) {
		err = fmt.Errorf("%w: the certificate %s is not for the key that signed the order", ErrNotTrusted, c.ID)
	}
	return o, err
}

// trusts fails unless a public key is named for a workspace.
func (k *Keyring) trusts(key, name string, id uuid.UUID) error {
	fingerprint := seal.Fingerprint(key)
	switch {
	case k == nil:
	case k.revoked[fingerprint]:
		return fmt.Errorf("%w: the key %s is revoked", ErrNotTrusted, fingerprint)
	case slices.ContainsFunc(k.keys, func(g grant) bool { return g.what == bare(key) && g.match(name, id) }):
		return nil
	}
	return fmt.Errorf("%w in this agent's configuration does not name the key %s for workspace %s", ErrNotTrusted, fingerprint, name)
}

// certified fails unless a certificate counts for a workspace.
func (k *Keyring) certified(text, name string, id uuid.UUID, now time.Time) (Certificate, error) {
	c, err := ParseCertificate(text)
	if err != nil {
		return c, fmt.Errorf("%w: the certificate %w", ErrNotTrusted, err)
	}
	authority := seal.Fingerprint(c.Authority)
	switch {
	case k == nil || !slices.ContainsFunc(k.authorities, func(g grant) bool { return g.what == authority && g.match(name, id) }):
		return c, fmt.Errorf("%w in this agent's configuration does not name the authority %s for workspace %s", ErrNotTrusted, authority, name)
	case k.revoked[c.ID], k.revoked[authority], k.revoked[seal.Fingerprint(c.Recipient)], c.Signer != "" && k.revoked[seal.Fingerprint(c.Signer)]:
		return c, fmt.Errorf("%w: the certificate %s of %s is revoked", ErrNotTrusted, c.ID, c.Name)
	}
	if err := c.counts(name, id, now); err != nil {
		return c, fmt.Errorf("%w: %w", ErrNotTrusted, err)
	}
	return c, nil
}

// Person is somebody's secret: an age identity, to which others seal, and a key
// derived from it, with which the person signs.
type Person struct {
	identity seal.Identities
	signer   ed25519.PrivateKey
}

// NewPerson makes a secret.
func NewPerson() (Person, error) {
	identity, err := seal.Generate()
	if err != nil {
		return Person{}, err
	}
	return person(identity)
}

// ParsePerson reads what Secret wrote. Path is for its errors, which quote nothing.
func ParsePerson(path, text string) (Person, error) {
	identity, err := seal.ParseIdentities(path, text)
	if err != nil {
		return Person{}, err
	}
	return person(identity)
}

func person(identity seal.Identities) (Person, error) {
	seed, err := hkdf.Key(sha256.New, []byte(identity[0].String()), nil, "tendril person signs", ed25519.SeedSize)
	if err != nil {
		return Person{}, fmt.Errorf("derive the signing key: %w", err)
	}
	return Person{identity: identity, signer: ed25519.NewKeyFromSeed(seed)}, nil
}

// Secret is the file in which a person keeps it, a file of age identities.
func (p Person) Secret() string {
	return fmt.Sprintf("# public key: %s\n# signs as: %s\n%s\n", p.Recipient(), p.SignerKey(), p.identity[0])
}

// Recipient is the public key age1… to which others seal.
func (p Person) Recipient() string { return p.identity.Public() }

// SignerKey is the public key ssh-ed25519 … of the person's signatures.
func (p Person) SignerKey() string {
	text, err := SignerText(p.signer.Public().(ed25519.PublicKey))
	if err != nil { // only for a key of another kind
		panic(err)
	}
	return text
}

// Fingerprint is that of the person's signing key: what an agent names to trust
// the certificates that the person issues.
func (p Person) Fingerprint() string { return seal.Fingerprint(p.SignerKey()) }

// Open opens what was sealed to the person, at most limit bytes.
func (p Person) Open(message []byte, limit int64) ([]byte, error) {
	return p.identity.Open(message, limit)
}

// Workspaces says for which workspaces something is: a pattern of names, "*"
// within a segment and "**" for any number of segments, and, if it is pinned, the
// id that the workspace must have. A name is what a row says; an id is in what
// agents authenticate.
type Workspaces struct {
	Pattern string
	ID      uuid.UUID // uuid.Nil: any
}

// All is every workspace.
var All = Workspaces{Pattern: "**"}

var pattern = lazyregexp.New(`^(\*\*|[A-Za-z0-9*][A-Za-z0-9._*-]*)(/(\*\*|[A-Za-z0-9._*-]+))*$`)

// ParseWorkspaces reads PATTERN or "PATTERN id=UUID".
func ParseWorkspaces(text string) (Workspaces, error) {
	name, rest, pinned := strings.Cut(strings.TrimSpace(text), " ")
	w := Workspaces{Pattern: name}
	if !pattern.MatchString(name) {
		return w, fmt.Errorf("%q is no pattern of workspace names such as acme/prod, acme/* or acme/**", name)
	}
	for segment := range strings.SplitSeq(name, "/") {
		if strings.Contains(segment, "**") && segment != "**" {
			return w, fmt.Errorf(`%q: "**" must be a whole segment`, name)
		}
	}
	if !pinned {
		return w, nil
	}
	id, is := strings.CutPrefix(strings.TrimSpace(rest), "id=")
	var err error
	if w.ID, err = uuid.Parse(id); !is || err != nil || w.ID == uuid.Nil || len(id) != 36 {
		return w, fmt.Errorf("%q: after the pattern comes id= and a workspace's id", text)
	}
	return w, nil
}

// Match reports whether a workspace is meant.
func (w Workspaces) Match(name string, id uuid.UUID) bool {
	return (w.ID == uuid.Nil || w.ID == id) && doublestar.MatchUnvalidated(w.Pattern, name) // which has no wildcard but *
}

func (w Workspaces) String() string {
	if w.ID == uuid.Nil {
		return w.Pattern
	}
	return w.Pattern + " id=" + w.ID.String()
}
