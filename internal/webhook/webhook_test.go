package webhook

import (
	"bytes"
	"strings"
	"testing"
)

func TestReadSecret(t *testing.T) {
	t.Parallel()
	secret := bytes.Repeat([]byte("k"), 32)
	if got, err := ReadSecret(" " + WriteSecret(secret) + "\n"); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("ReadSecret() = %q, %v, want what was written", got, err)
	}
	for _, text := range []string{"", "whsec_", "whsec_????", WriteSecret(secret[:23]), WriteSecret(bytes.Repeat(secret, 3)), strings.TrimPrefix(WriteSecret(secret), "whsec_")} {
		if got, err := ReadSecret(text); err == nil {
			t.Errorf("ReadSecret(%q) = %q, want an error", text, got)
		}
	}
}

// What others have written calls nobody, and without a cluster the message still says where.
func TestSlackMessage(t *testing.T) {
	t.Parallel()
	m := Message{Type: "awaiting_input", Data: Data{Workspace: &Named{Name: "<!channel>/prod"}, Provision: &Provision{Number: 7, Operation: "apply"}}}
	body, err := m.Body(Slack, "https://console.example")
	if err != nil || !strings.Contains(string(body), `Run 7 (apply) waits for a person to do its work: \u0026lt;!channel\u0026gt;/prod`) || !strings.Contains(string(body), "https://console.example/provisions/7") {
		t.Errorf("Body() = %s, %v", body, err)
	}
}
