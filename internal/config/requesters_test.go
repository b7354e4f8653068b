package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/trust"
)

// A file with people's keys is read for each run, and not once others may write it.
func TestRequestersFromAFile(t *testing.T) {
	t.Parallel()
	ada, err := trust.NewPerson()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "people")
	c := Config{Policy: Policy{RequesterKeys: []string{"acme/**: " + path}}}
	if _, err := c.Requesters(); err == nil || !strings.Contains(err.Error(), "policy.requester_keys: "+path) {
		t.Errorf("Requesters() without the file = %v, want an error that names it", err)
	}
	for _, step := range []struct {
		text  string
		names bool
	}{{"# nobody\n", false}, {ada.Recipient() + "\n", true}, {"# nobody again\n", false}} {
		if err := os.WriteFile(path, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := c.Requesters()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := keys.Recipient(ada.Recipient(), "acme/prod", uuid.New(), time.Now()); (err == nil) != step.names {
			t.Errorf("Recipient() with %q = %v, want yes: %t", step.text, err, step.names)
		}
	}
	if err := os.Chmod(path, 0o620); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Requesters(); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("Requesters() of a file that others may write = %v, want an error with what to do", err)
	}
}
