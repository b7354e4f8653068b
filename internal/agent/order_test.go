package agent

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// A runner takes orders only from the agent that started it. Others can seal to its key, too.
func TestOrderOfAnother(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	own := generated(t)
	to, err := seal.ParseRecipient(own.Public())
	if err != nil {
		t.Fatal(err)
	}
	order := Order{Reach: json.RawMessage(`{}`)}
	order.Job.Assignment = provision.Assignment{ClaimID: uuid.New()}
	sealed := func(o Order) []byte {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		message, err := seal.To(to, text)
		if err != nil {
			t.Fatal(err)
		}
		return message
	}
	by := func(key ed25519.PrivateKey, message []byte) []byte {
		return append(ed25519.Sign(key, signedOrder(message)), message...)
	}
	message := sealed(order)
	good := by(private, message)
	if got, err := ReadOrder(good, public, own.Open); err != nil || got.Job.Assignment.ClaimID != order.Job.Assignment.ClaimID {
		t.Fatalf("ReadOrder() = %+v, %v, want the order", got, err)
	}
	changed := bytes.Clone(good)
	changed[len(changed)-1] ^= 1
	for name, tc := range map[string]struct {
		order []byte
		says  string
	}{
		"a stranger's":     {by(stranger, message), "not by the agent"},
		"not signed":       {message, "not by the agent"},
		"changed":          {changed, "not by the agent"},
		"cut":              {good[:ed25519.SignatureSize], "not by the agent"},
		"nothing":          {nil, "not by the agent"},
		"another's text":   {slices.Concat(good[:ed25519.SignatureSize], sealed(order)), "not by the agent"},
		"signed otherwise": {append(ed25519.Sign(private, message), message...), "not by the agent"},
		"without a claim":  {by(private, sealed(Order{Reach: json.RawMessage(`{}`)})), "lacks a claim"},
		"no order":         {by(private, []byte("age")), "open the order"},
	} {
		if _, err := ReadOrder(tc.order, public, own.Open); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("ReadOrder(%s) = %v, want %q", name, err, tc.says)
		}
	}
}
