package trust_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/trust"
)

func TestWorkspaces(t *testing.T) {
	t.Parallel()
	for pattern, names := range map[string][2][]string{
		"acme/prod":    {{"acme/prod"}, {"acme/prod2", "acme", "acme/prod/eu", "x/acme/prod"}},
		"acme/*":       {{"acme/prod", "acme/x"}, {"acme", "acme/prod/eu", "acmex/prod"}},
		"acme/prod-*":  {{"acme/prod-eu"}, {"acme/prod", "acme/x-prod-eu", "acme/prod-eu/a"}},
		"acme/**":      {{"acme", "acme/prod", "acme/prod/eu"}, {"acmex", "x/acme"}},
		"**/prod":      {{"prod", "acme/prod", "a/b/prod"}, {"prod/a", "acme/production"}},
		"**":           {{"a", "a/b"}, nil},
		"a/**/b/**/*c": {{"a/b/c", "a/x/b/y/xc"}, {"a/b", "a/c"}},
	} {
		w, err := trust.ParseWorkspaces(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []bool{true, false} {
			for _, name := range names[i] {
				if got := w.Match(name, uuid.New()); got != want {
					t.Errorf("%q matches %q = %t, want %t", pattern, name, got, want)
				}
			}
		}
	}
	id := uuid.New()
	w, err := trust.ParseWorkspaces("acme/** id=" + id.String())
	if err != nil || !w.Match("acme/prod", id) || w.Match("acme/prod", uuid.New()) || w.Match("other", id) {
		t.Errorf("ParseWorkspaces(with an id) = %v, %v, want that workspace of that name alone", w, err)
	}
	for _, wrong := range []string{"", "/a", "a//b", "a/**x", "acme id=", "acme id=x", "acme id=" + uuid.Nil.String(), "acme " + id.String(), "a b", "acme id={" + id.String() + "}"} {
		if w, err := trust.ParseWorkspaces(wrong); err == nil {
			t.Errorf("ParseWorkspaces(%q) = %v, want an error", wrong, w)
		}
	}
}

func person(t *testing.T) trust.Person {
	t.Helper()
	p, err := trust.NewPerson()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func keys(t *testing.T, entries ...string) *trust.Keyring {
	t.Helper()
	k, err := trust.ParseKeys(entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func certify(t *testing.T, by trust.Person, c trust.Certificate) string {
	t.Helper()
	text, err := by.Certify(c)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Only a key that the configuration names, or a certificate of an authority that it
// names, is sealed to: for the workspaces that both are for, while it counts, unless
// it is revoked.
func TestRecipient(t *testing.T) {
	t.Parallel()
	ada, authority, stranger := person(t), person(t), person(t)
	now, id := time.Now(), uuid.New()
	c := trust.Certificate{Name: "ada", Recipient: ada.Recipient(), Signer: ada.SignerKey(), Workspaces: []string{"acme/**"}, From: now.Add(-time.Hour), Until: now.Add(time.Hour)}
	good := certify(t, authority, c)
	parsed, err := trust.ParseCertificate(good)
	if err != nil || parsed.Recipient != ada.Recipient() {
		t.Fatalf("ParseCertificate() = %+v, %v", parsed, err)
	}
	expired, early, elsewhere, pinned := c, c, c, c
	expired.From, expired.Until = now.Add(-2*time.Hour), now.Add(-time.Second)
	early.From = now.Add(time.Minute)
	elsewhere.Workspaces = []string{"other/*"}
	pinned.Workspaces = []string{"acme/** id=" + uuid.NewString()}
	of := "authority " + authority.Fingerprint()
	forged := strings.Replace(good, strings.Split(good, ".")[2], strings.Split(certify(t, stranger, c), ".")[2], 1)
	for _, test := range []struct {
		name, asked string
		keys        *trust.Keyring
		want        string // of the error; "" for a yes
	}{
		{"nobody is named", ada.Recipient(), nil, "does not name the key"},
		{"nobody is named for a certificate", good, keys(t), "does not name the authority"},
		{"named", ada.Recipient(), keys(t, ada.Recipient()), ""},
		{"named for the workspace", ada.Recipient(), keys(t, "acme/*: "+ada.Recipient()), ""},
		{"named for another", ada.Recipient(), keys(t, "other/*: "+ada.Recipient()), "does not name the key"},
		{"named with its id", ada.Recipient(), keys(t, "acme/* id="+id.String()+": "+ada.Recipient()), ""},
		{"named with another id", ada.Recipient(), keys(t, "acme/* id="+uuid.NewString()+": "+ada.Recipient()), "does not name the key"},
		{"somebody else", stranger.Recipient(), keys(t, ada.Recipient()), "does not name the key"},
		{"an SSH key and its comment", ada.SignerKey() + " ada@laptop", keys(t, ada.SignerKey()+" on her laptop"), ""},
		{"revoked key", ada.Recipient(), keys(t, ada.Recipient(), "revoked "+seal.Fingerprint(ada.Recipient())), "is revoked"},
		{"certified", good, keys(t, of), ""},
		{"authority of other workspaces", good, keys(t, "other/**: "+of), "does not name the authority"},
		{"another authority", good, keys(t, "authority "+stranger.Fingerprint()), "does not name the authority"},
		{"a key is no authority", good, keys(t, authority.SignerKey(), authority.Recipient()), "does not name the authority"},
		{"expired", certify(t, authority, expired), keys(t, of), "has expired"},
		{"not yet", certify(t, authority, early), keys(t, of), "counts from"},
		{"for other workspaces", certify(t, authority, elsewhere), keys(t, of), "not for this workspace"},
		{"for another id", certify(t, authority, pinned), keys(t, of), "not for this workspace"},
		{"revoked certificate", good, keys(t, of, "revoked "+parsed.ID), "is revoked"},
		{"revoked authority", good, keys(t, of, "revoked "+authority.Fingerprint()), "is revoked"},
		{"forged", forged, keys(t, of), "was not signed"},
		{"no certificate", "tendril-certificate-1.e30.e30", keys(t, of), "certificate"},
	} {
		got, err := test.keys.Recipient(test.asked, "acme/prod", id, now)
		switch {
		case test.want == "" && (err != nil || got == ""):
			t.Errorf("%s: %q, %v, want the recipient", test.name, got, err)
		case test.want != "" && (err == nil || !errors.Is(err, trust.ErrNotTrusted) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want an error with %q", test.name, err, test.want)
		}
	}
}

// An order counts for one workspace, of one name and id, for a time, and from
// somebody who may give it. An age key gives none.
func TestSigner(t *testing.T) {
	t.Parallel()
	ada, authority, stranger := person(t), person(t), person(t)
	now, id := time.Now(), uuid.New()
	base := trust.Order{Workspace: id, Name: "acme/prod", Command: "push", Over: 3, Digest: "d", Until: now.Add(time.Hour)}
	sign := func(by trust.Person, change func(*trust.Order)) string {
		o := base
		if change != nil {
			change(&o)
		}
		text, err := by.Order(o)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	certificate := func(c trust.Certificate) string {
		c.Name, c.Recipient, c.Workspaces, c.From, c.Until = "ada", ada.Recipient(), []string{"**"}, now.Add(-time.Hour), now.Add(time.Hour)
		return certify(t, authority, c)
	}
	with := certificate(trust.Certificate{Signer: ada.SignerKey()})
	without := certificate(trust.Certificate{})
	certified := func(c string) func(*trust.Order) { return func(o *trust.Order) { o.Certificate = c } }
	named, of := keys(t, ada.SignerKey()), keys(t, "authority "+authority.Fingerprint())
	good := sign(ada, nil)
	if o, err := named.Signer(good, "acme/prod", id, now); err != nil || o.Over != 3 || o.Digest != "d" || o.Command != "push" {
		t.Errorf("Signer() = %+v, %v, want the order", o, err)
	}
	if _, err := of.Signer(sign(ada, certified(with)), "acme/prod", id, now); err != nil {
		t.Errorf("Signer(certified) = %v, want the order", err)
	}
	parts := strings.Split(good, ".")
	for name, test := range map[string]struct {
		keys *trust.Keyring
		text string
	}{
		"nobody is named":                      {nil, good},
		"an age key":                           {keys(t, ada.Recipient()), good},
		"somebody else":                        {named, sign(stranger, nil)},
		"another workspace":                    {named, sign(ada, func(o *trust.Order) { o.Workspace = uuid.New() })},
		"another name":                         {named, sign(ada, func(o *trust.Order) { o.Name = "acme/dev" })},
		"too late":                             {named, sign(ada, func(o *trust.Order) { o.Until = now })},
		"for ever":                             {named, sign(ada, func(o *trust.Order) { o.Until = now.Add(1000 * time.Hour) })},
		"changed":                              {named, parts[0] + "." + strings.Split(sign(ada, func(o *trust.Order) { o.Digest = "e" }), ".")[1] + "." + parts[2]},
		"another's certificate":                {of, sign(stranger, certified(with))},
		"a certificate for no orders":          {of, sign(ada, certified(without))},
		"a certificate in its place":           {of, with},
		"a certificate, and no such authority": {named, sign(stranger, certified(with))},
	} {
		if _, err := test.keys.Signer(test.text, "acme/prod", id, now); !errors.Is(err, trust.ErrNotTrusted) {
			t.Errorf("%s: Signer() = %v, want a refusal", name, err)
		}
	}
}

// A file says the same as entries do, for no more than the entry that names it.
func TestKeyFile(t *testing.T) {
	t.Parallel()
	ada, bob := person(t), person(t)
	id := uuid.New()
	text := fmt.Sprintf("# people\n\n%s\nacme/prod: %s\n", ada.Recipient(), bob.Recipient())
	read := func(path string) (string, error) {
		if path != "/etc/keys" {
			return "", errors.New("cannot be read")
		}
		return text, nil
	}
	k, err := trust.ParseKeys([]string{"acme/*: /etc/keys"}, read)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		who       trust.Person
		workspace string
		want      bool
	}{{ada, "acme/dev", true}, {ada, "other/dev", false}, {bob, "acme/prod", true}, {bob, "acme/dev", false}} {
		if _, err := k.Recipient(test.who.Recipient(), test.workspace, id, time.Now()); (err == nil) != test.want {
			t.Errorf("Recipient(%s) = %v, want yes: %t", test.workspace, err, test.want)
		}
	}
	for _, wrong := range []string{"age1x", "AGE-SECRET-KEY-1X", "a b: " + ada.Recipient(), "authority x", "revoked", "relative/file", "/nowhere", ""} {
		if k, err := trust.ParseKeys([]string{wrong}, read); err == nil {
			t.Errorf("ParseKeys(%q) = %+v, want an error", wrong, k)
		}
	}
}

// One secret is a person's both keys, and is read as it was written.
func TestPerson(t *testing.T) {
	t.Parallel()
	p := person(t)
	again, err := trust.ParsePerson("key", p.Secret())
	if err != nil || again.Recipient() != p.Recipient() || again.SignerKey() != p.SignerKey() {
		t.Fatalf("ParsePerson(Secret()) = %v, want the same person", err)
	}
	recipient, err := seal.ParseRecipient(p.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	message, err := seal.To(recipient, []byte("for you"))
	if err != nil {
		t.Fatal(err)
	}
	if opened, err := again.Open(message, 100); err != nil || string(opened) != "for you" {
		t.Errorf("Open() = %s, %v", opened, err)
	}
}
