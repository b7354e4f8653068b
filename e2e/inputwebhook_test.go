package e2e

import (
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/webhook"
)

// An agent whose configuration has a webhook says there, in Slack's form, that a run of a
// manual template waits for a person. It refuses to start with a secret that is none.
func TestAgentsOwnWebhookForManualWork(t *testing.T) {
	t.Parallel()
	type message struct{ body, signature string }
	arrived := make(chan message, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		arrived <- message{string(body), r.Header.Get("Webhook-Signature")}
	}))
	defer receiver.Close()
	secret := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(secret, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := site.New(t)
	repo := s.Template("mount", map[string]string{
		"variables.tf": "", "INSTRUCTIONS.md": "Mount it, the code is 4711.",
		"tendril.hcl": "provisioner \"manual\" {\n  instructions = \"INSTRUCTIONS.md\"\n  machine { name = \"db\" }\n}\n",
	})
	a := s.NewAgent("one", 1, "")
	a.ManageState(s.IdentityFile())
	a.Set("TENDRIL_MANUAL_NOTIFICATION_WEBHOOK", receiver.URL+"/services/s3cret")
	a.Set("TENDRIL_MANUAL_NOTIFICATION_KIND", "slack")
	a.Set("TENDRIL_MANUAL_SIGNING_SECRET_FILE", secret)
	write("none")
	a.Start()
	if code, said := a.Exit(); code != 2 || !strings.Contains(said, "manual.signing_secret_file") {
		t.Fatalf("the agent ended with %d: %s, want that its secret is none", code, said)
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	write(webhook.WriteSecret(random) + "\n")
	a.Start()
	id := s.DeployTemplate(repo, "acme/prod", map[string]any{})
	s.Await("the run waits for a person", "SELECT status = 'AWAITING_INPUT' FROM public.provisions WHERE id = $1", id)
	m := <-arrived
	if !strings.Contains(m.body, `"text":"Run 1 (apply) waits for a person to do its work: acme/prod on `) || !strings.HasPrefix(m.signature, "v1,") || strings.Contains(m.body, "4711") {
		t.Errorf("the message is %s, with the signature %q", m.body, m.signature)
	}
	a.Terminate()
}
