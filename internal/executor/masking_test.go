package executor_test

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/gittest"
	"github.com/tendril-run/tendril/internal/provision"
)

// What a template prints and puts out of a secret, in whatever form, is nowhere
// in what leaves the run.
func TestSecretsLeaveInNoForm(t *testing.T) {
	t.Parallel()
	const inEnvironment, inVariable, inState = "env+secret/of=cloud", "variable & secret?", "kept-in-the-state"
	s := newSite(t)
	s.env = []string{"AWS_SECRET_ACCESS_KEY=" + inEnvironment}
	repo := s.template(map[string]string{"main.tf": `
variable "pw" {
  type      = string
  sensitive = true
  default   = "` + inVariable + `"
}
resource "terraform_data" "printed" {
  provisioner "local-exec" {
    command = "echo raw $AWS_SECRET_ACCESS_KEY; printf %s x$AWS_SECRET_ACCESS_KEY | base64; printf %s $AWS_SECRET_ACCESS_KEY | od -An -v -tx1 | tr -d ' \\n'; echo"
  }
}
resource "terraform_data" "kept" { input = sensitive("` + inState + `") }
output "query" { value = nonsensitive(urlencode(var.pw)) }
output "encoded" { value = nonsensitive(base64encode("x${var.pw}")) }
output "nested" { value = { "${nonsensitive(var.pw)}" = [jsonencode({ pw = nonsensitive(var.pw) })] } }
`}, nil)
	result, c := s.run()
	wantEnd(t, result, provision.Success, "")
	wantNowhere(t, c, inEnvironment, inVariable, inState)
	if !strings.Contains(c.text(), "raw ***") {
		t.Error("the template's line is not in the log")
	}

	// The plan prints it before anybody but the state says that it is secret.
	repo.Tag("v2", repo.Commit(gittest.Text(map[string]string{"main.tf": `
resource "terraform_data" "kept" { input = sensitive("` + inState + `") }
output "shown" { value = "` + inState + `!" }
`})))
	s.ask(repo.URL, "v2", "", nil)
	result, c = s.run()
	wantEnd(t, result, provision.Success, "")
	wantNowhere(t, c, inState)
	if !strings.Contains(c.text(), `shown = "***!"`) {
		t.Error("the plan's output is not in the log")
	}
}

func wantNowhere(t *testing.T, c *child, secrets ...string) {
	t.Helper()
	reports, err := json.Marshal(c.reports)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range secrets {
		// Behind one other byte, of which two characters are not known.
		encoded := strings.TrimRight(base64.StdEncoding.EncodeToString([]byte("x"+secret)), "=")[2:]
		for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), encoded[:len(encoded)-1]} {
			for where, text := range map[string]string{"the log": c.text(), "a report": string(reports)} {
				if strings.Contains(text, form) {
					t.Errorf("%s has %q of the secret %q", where, form, secret)
				}
			}
		}
	}
}
