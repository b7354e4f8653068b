package planbundle_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

const snapshot = `{"template_source": {"repo": "https://h/r", "version": "v1"}, "terraform_vars": {"n": 1.50, "s": "<é>"}}`

func bundle(t testing.TB) planbundle.Bundle {
	t.Helper()
	digest, err := planbundle.SnapshotDigest(json.RawMessage(snapshot))
	if err != nil {
		t.Fatal(err)
	}
	return planbundle.Bundle{
		Provision: uuid.New(), Workspace: uuid.New(), Name: "dev/x", Operation: provision.OperationApply,
		Commit: strings.Repeat("a", 40), Snapshot: digest, Engine: "terraform", EngineVersion: "1.11.4", State: "the <http> backend",
		Lock: []byte("# lock\n"), Plan: []byte("PK\x00plan\n"),
	}
}

func encode(t testing.TB, b planbundle.Bundle) []byte {
	t.Helper()
	content, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestDecode(t *testing.T) {
	t.Parallel()
	b := bundle(t)
	for name, change := range map[string]func(*planbundle.Bundle){
		"whole": func(*planbundle.Bundle) {}, "no lock": func(b *planbundle.Bundle) { b.Lock = nil },
		"no plan": func(b *planbundle.Bundle) { b.Plan = nil },
	} {
		changed := b
		change(&changed)
		got, err := planbundle.Decode(encode(t, changed))
		if err != nil {
			t.Fatalf("%s: Decode error: %v", name, err)
		}
		if again := encode(t, got); !bytes.Equal(again, encode(t, changed)) || !bytes.Equal(got.Plan, changed.Plan) || !bytes.Equal(got.Lock, changed.Lock) {
			t.Errorf("%s: Decode = %+v, want %+v", name, got, changed)
		}
	}
	good := string(encode(t, b))
	for name, bad := range map[string]string{
		"nothing":              "",
		"another version":      strings.Replace(good, "plan 2", "plan 3", 1),
		"cut short":            good[:len(good)-1],
		"longer":               good + "x",
		"a space more":         strings.Replace(good, `{"provision"`, `{ "provision"`, 1),
		"an unknown field":     strings.Replace(good, `{"provision"`, `{"x":1,"provision"`, 1),
		"a field twice":        strings.Replace(good, `"engine":`, `"engine":"tofu","engine":`, 1),
		"a negative length":    strings.Replace(good, `"lock":7`, `"lock":-7`, 1),
		"a length beyond":      strings.Replace(good, `"lock":7`, `"lock":700`, 1),
		"lengths exchanged":    strings.Replace(good, `"lock":7,"plan":8`, `"lock":8,"plan":8`, 1),
		"a header without end": "tendril plan 2\n{",
		"too large":            strings.Replace(good, `"plan":8`, fmt.Sprintf(`"plan":%d`, 8+planbundle.MaxContent), 1) + strings.Repeat("x", planbundle.MaxContent),
	} {
		if bad == good {
			t.Fatalf("%s: nothing was changed", name)
		}
		if got, err := planbundle.Decode([]byte(bad)); err == nil {
			t.Errorf("%s: Decode = a bundle of %s, want an error", name, got.Name)
		}
	}
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	b := bundle(t)
	b.Plan = nil
	b.Plan = make([]byte, planbundle.MaxContent-len(encode(t, b))-len("1234567")+len("0"))
	content := encode(t, b)
	identities, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	if sealed, _, err := planbundle.Seal(identities, content); err != nil {
		t.Errorf("Seal(%d bytes) = %d bytes, %v, want what the database takes", len(content), len(sealed), err)
	}
	b.Plan = make([]byte, planbundle.MaxContent)
	_, err = b.Encode()
	failure := provision.AsFailure(err)
	if failure.Code != provision.CodePlanFailed || !strings.Contains(failure.Message, "8.0 MiB") || !strings.Contains(failure.Message, "targets") {
		t.Errorf("Encode(too large) = %v, want %s with the sizes and what to do", err, provision.CodePlanFailed)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	own, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	newer, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	rotated := append(newer[:1:1], own...)
	content := encode(t, bundle(t))
	digest := planbundle.Digest(content)
	sealed, proof, err := planbundle.Seal(own, content)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, []byte("PK\x00plan")) {
		t.Error("the sealed bundle holds the plan in clear")
	}
	if got, err := planbundle.Open(rotated, uuid.Nil, sealed, proof, digest); err != nil || !bytes.Equal(got, content) {
		t.Errorf("Open = %q, %v, want what an older identity has sealed", got, err)
	}

	// What somebody can make who has the public key and may write rows.
	recipient, err := seal.ParseRecipient(own.Public())
	if err != nil {
		t.Fatal(err)
	}
	other := encode(t, bundle(t))
	forged, err := seal.To(recipient, other)
	if err != nil {
		t.Fatal(err)
	}
	_, theirs, err := planbundle.Seal(newer, other)
	if err != nil {
		t.Fatal(err)
	}
	otherSealed, otherProof, err := planbundle.Seal(own, other)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(sealed)
	damaged[len(damaged)-1] ^= 1
	for name, tc := range map[string]struct {
		identities seal.Identities
		sealed     []byte
		proof      string
		digest     string
		want       string
	}{
		"forged, its digest approved": {own, forged, string(proof), planbundle.Digest(other), "no agent of this cluster"},
		"forged without a proof":      {own, forged, `{}`, planbundle.Digest(other), "no agent of this cluster"},
		"forged, proof is no JSON":    {own, forged, ``, planbundle.Digest(other), "no agent of this cluster"},
		"proof under another key":     {own, forged, string(theirs), planbundle.Digest(other), "no agent of this cluster"},
		"another genuine one":         {own, otherSealed, string(otherProof), digest, "another plan than the one that was approved"},
		"another cluster's agent":     {newer, sealed, string(proof), digest, "identity_file"},
		"damaged":                     {own, damaged, string(proof), digest, "cannot be opened"},
		"nothing":                     {own, nil, string(proof), digest, "cannot be opened"},
		"too large":                   {own, make([]byte, planbundle.MaxSealed+1), string(proof), digest, "at most 8388608"},
	} {
		_, err := planbundle.Open(tc.identities, uuid.Nil, tc.sealed, json.RawMessage(tc.proof), tc.digest)
		failure := provision.AsFailure(err)
		if err == nil || failure.Code != provision.CodePlanInvalid || !strings.Contains(failure.Message, tc.want) || !strings.Contains(failure.Message, "Nothing was changed") {
			t.Errorf("%s: Open = %v, want %s with %q", name, err, provision.CodePlanInvalid, tc.want)
		}
	}
}

func TestServes(t *testing.T) {
	t.Parallel()
	b := bundle(t)
	fits := provision.Assignment{ProvisionID: b.Provision, WorkspaceID: b.Workspace, Workspace: "dev/x", Operation: b.Operation, Snapshot: json.RawMessage(snapshot)}
	// As another transport writes it.
	reordered := fits
	reordered.Snapshot = json.RawMessage(`{"terraform_vars":{"s":"\u003c\u00e9>","n":1.50},"template_source":{"version":"v1","repo":"https://h/r"}}`)
	for name, a := range map[string]provision.Assignment{"the same": fits, "the same, written otherwise": reordered} {
		if err := b.Serves(a); err != nil {
			t.Errorf("%s: Serves = %v, want nil", name, err)
		}
	}
	for name, change := range map[string]func(*provision.Assignment){
		"another provision": func(a *provision.Assignment) { a.ProvisionID = uuid.New() },
		"another workspace": func(a *provision.Assignment) { a.WorkspaceID = uuid.New() },
		"another name":      func(a *provision.Assignment) { a.Workspace = "prod" },
		"another operation": func(a *provision.Assignment) { a.Operation = provision.OperationDestroy },
		"another snapshot": func(a *provision.Assignment) {
			a.Snapshot = json.RawMessage(strings.Replace(snapshot, "1.50", "1.51", 1))
		},
	} {
		a := fits
		change(&a)
		if err := b.Serves(a); err == nil || provision.AsFailure(err).Code != provision.CodePlanInvalid {
			t.Errorf("%s: Serves = %v, want %s", name, err, provision.CodePlanInvalid)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(f, bundle(f)))
	f.Add([]byte("tendril plan 2\n{}\n"))
	f.Add([]byte("tendril plan 2\n{\"lock\":-1}\n\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		b, err := planbundle.Decode(content)
		if err != nil {
			return
		}
		if again, err := b.Encode(); err != nil || !bytes.Equal(again, content) {
			t.Fatalf("Encode(Decode(%q)) = %q, %v, want the same", content, again, err)
		}
	})
}
