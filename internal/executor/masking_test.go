package executor_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

// What a template prints and puts out of a secret, in whatever form, is nowhere
// in what leaves the run.
func TestSecretsLeaveInNoForm(t *testing.T) {
	t.Parallel()
	const inEnvironment, inFile, inVariable, inState = "env+secret/of=cloud", "file+secret/of=cloud", "variable & secret?", "kept-in-the-state"
	s := newSite(t)
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, []byte("[default]\naws_secret_access_key = "+inFile+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.env = []string{"AWS_SECRET_ACCESS_KEY=" + inEnvironment, "AWS_SHARED_CREDENTIALS_FILE=" + file}
	repo := s.template(map[string]string{"main.tf": `
variable "pw" {
  type      = string
  sensitive = true
  default   = "` + inVariable + `"
}
resource "terraform_data" "printed" {
  provisioner "local-exec" {
    command = "cat $AWS_SHARED_CREDENTIALS_FILE; echo raw $AWS_SECRET_ACCESS_KEY; printf %s x$AWS_SECRET_ACCESS_KEY | base64; printf %s $AWS_SECRET_ACCESS_KEY | od -An -v -tx1 | tr -d ' \\n'; echo"
  }
}
resource "terraform_data" "kept" { input = sensitive("` + inState + `") }
output "query" { value = nonsensitive(urlencode(var.pw)) }
output "encoded" { value = nonsensitive(base64encode("x${var.pw}")) }
output "nested" { value = { "${nonsensitive(var.pw)}" = [jsonencode({ pw = nonsensitive(var.pw) })] } }
`}, nil)
	result, c := s.run()
	wantEnd(t, result, provision.Success, "")
	wantNowhere(t, c, inEnvironment, inFile, inVariable, inState)
	if !strings.Contains(c.text(), "raw ***") || !strings.Contains(c.text(), "aws_secret_access_key = ***") {
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

// The engine hands an unfinished line over after 100 ms and strips white space
// from its end: a secret in two of its events is hidden as one in one.
func TestSecretsInPiecesAreHidden(t *testing.T) {
	t.Parallel()
	const first, rest = "a secret that is", "printed in pieces"
	s := newSite(t)
	s.env = []string{"AWS_SECRET_ACCESS_KEY=" + first + " " + rest}
	s.template(map[string]string{"main.tf": `
resource "terraform_data" "printed" {
  count = 2
  provisioner "local-exec" {
    command = "printf 'begin ` + first + ` '; sleep 0.${count.index + 2}; printf '` + rest + ` end\\n'; printf kept; sleep 0.4; echo ' as it is'"
    quiet   = true
  }
}
`}, nil)
	result, c := s.run()
	wantEnd(t, result, provision.Success, "")
	wantNowhere(t, c, first, rest)
	// A busy engine may hand over whole what took its time.
	for i := range 2 {
		var printed strings.Builder
		for line := range strings.Lines(c.text()) {
			if text, is := strings.CutPrefix(line, fmt.Sprintf("terraform_data.printed[%d] (local-exec): ", i)); is {
				printed.WriteString(strings.TrimSuffix(text, "\n"))
			}
		}
		if want := "begin *** endkept as it is"; !strings.HasSuffix(printed.String(), want) {
			t.Errorf("what %d printed is shown as %q, want its end %q", i, printed.String(), want)
		}
	}
}

// An output may be sensitive, and what it is made of not. What a plan prints is
// masked all the same, with its own values and those of the state before,
// wherever that is, and so are its errors.
func TestSensitiveOutputsAreKnownBeforeThePlanIsPrinted(t *testing.T) {
	t.Parallel()
	const before, after = "a-value-of-the-state", "a-value-of-the-plan"
	s, _ := newSharedSite(t)
	template := func(value, fate string) map[string]string {
		return map[string]string{"main.tf": `
terraform {
  backend "http" {}
}
resource "terraform_data" "made" {
  input = "` + value + `"
  lifecycle {
    precondition {
      condition     = ` + fate + `
      error_message = "` + before + ` is refused"
    }
  }
}
output "secret" {
  value     = terraform_data.made.input
  sensitive = true
}
`}
	}
	repo := s.template(template(before, `terraform.workspace == "default"`), nil)
	result, c := s.run()
	wantEnd(t, result, provision.Success, "")
	wantNowhere(t, c, before)
	if !strings.Contains(runlog.Plain(c.text()), `+ input  = "***"`) || strings.Index(c.text(), "will perform") > strings.Index(c.text(), "Apply complete") {
		t.Errorf("the plan is not in the log, or not before the apply:\n%s", c.text())
	}
	for version, value := range map[string]string{"v2": after, "v3": before} {
		repo.Tag(version, repo.Commit(gittest.Text(template(value, map[string]string{"v2": `terraform.workspace == "default"`, "v3": `terraform.workspace != "default"`}[version]))))
	}
	s.ask(repo.URL, "v2", "", nil)
	c = s.do(provision.OperationPlan)
	wantNowhere(t, c, before, after)

	s.job.Assignment.Operation = provision.OperationApply
	s.ask(repo.URL, "v3", "", nil)
	result, c = s.run()
	wantEnd(t, result, provision.Failed, provision.CodePlanFailed)
	wantNowhere(t, c, before)
	if !strings.Contains(c.text(), "*** is refused") {
		t.Errorf("the plan's error is not in the log:\n%s", c.text())
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

// Engines break long lines within the frame of an error: a secret of several words is
// found all the same.
func TestSecretInABrokenLine(t *testing.T) {
	t.Parallel()
	const secret = "correct horse battery staple, eleven wooden ladders, a very small lighthouse keeper"
	s := newSite(t)
	s.env = []string{"AWS_SECRET_ACCESS_KEY=" + secret}
	s.template(map[string]string{"main.tf": `
resource "terraform_data" "x" {
  lifecycle {
    precondition {
      condition     = terraform.workspace != "default"
      error_message = "This is refused, for what it was given: ` + secret + `."
    }
  }
}
`}, nil)
	result, c := s.run()
	wantEnd(t, result, provision.Failed, provision.CodePlanFailed)
	if !strings.Contains(runlog.Plain(c.text()), "for what it was given: ***.") {
		t.Errorf("the error is not in the log, or not with its secret hidden:\n%s", c.text())
	}
	for word := range strings.FieldsSeq(secret) {
		if len(word) > 6 && strings.Contains(c.text()+fmt.Sprint(result), word) {
			t.Errorf("the run shows %q of the secret", word)
		}
	}
}
