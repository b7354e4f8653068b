package executor_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// tells prints what it is given and keeps none of it in its state. Its second
// command fails unless the ephemeral variable is given to the apply as well.
const tells = `
variable "password" {
  type      = string
  sensitive = true
}
variable "pair" {
  type      = object({ key = string, port = number })
  sensitive = true
}
variable "once" {
  type      = string
  ephemeral = true
}
resource "terraform_data" "a" {
  triggers_replace = sha256("${var.password}${var.pair.key}")
  provisioner "local-exec" {
    command     = "echo password $PASSWORD; echo \"key $KEY\"; echo port $PORT; ls -l $SECRETS"
    environment = { PASSWORD = nonsensitive(var.password), KEY = nonsensitive(var.pair.key), PORT = nonsensitive(var.pair.port), SECRETS = "DIR" }
  }
  provisioner "local-exec" {
    command = "test ${sha256(var.once)} = HASH"
  }
}
`

func TestSealedVariablesReachTerraform(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	hash := sha256.Sum256([]byte("only-for-this-run"))
	fill := strings.NewReplacer("DIR", s.job.Dirs.Secrets, "HASH", hex.EncodeToString(hash[:])).Replace
	s.template(map[string]string{"main.tf": fill(tells)}, nil)
	s.job.SealedVars = map[string]json.RawMessage{
		"password": json.RawMessage(`"sealed-password"`),
		"pair":     json.RawMessage(`{"key": "first-line-of-key\n  second-line-of-key", "port": 98765432}`),
		"once":     json.RawMessage(`"only-for-this-run"`),
	}
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	log := c.text()
	for _, want := range []string{"password ***", "port ***", "-rw------- ", " sealed.tfvars.json"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	secrets := []string{"sealed-password", "first-line-of-key", "second-line-of-key", "98765432", "only-for-this-run"}
	for _, secret := range secrets {
		if strings.Contains(log, secret) {
			t.Errorf("the log shows %q", secret)
		}
	}
	holdsNone(t, s.dirs, secrets)
}

// A run that is over, whatever became of it, leaves no value behind.
func TestSealedVariablesAreGoneAfterwards(t *testing.T) {
	t.Parallel()
	for name, tail := range map[string]string{
		"failed plan": `resource "terraform_data" "b" { input = file("${path.module}/none-${substr(sha256(var.password), 0, 4)}") }`,
		"failed apply": `resource "terraform_data" "b" {
  provisioner "local-exec" {
    command     = "echo $P; exit 3"
    environment = { P = nonsensitive(var.password) }
  }
}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.template(map[string]string{"main.tf": "variable \"password\" {\n  sensitive = true\n}\n" + tail}, nil)
			s.job.SealedVars = map[string]json.RawMessage{"password": json.RawMessage(`"sealed-password"`)}
			got, c := s.run()
			if got.Status != provision.Failed || strings.Contains(c.text()+got.Detail.ErrorMessage, "sealed-password") {
				t.Errorf("run ended %s: %s, want a failure that does not show the value", got.Status, got.Detail.ErrorMessage)
			}
			holdsNone(t, s.dirs, []string{"sealed-password"})
		})
	}
}

// holdsNone looks for texts in all files of a directory.
func holdsNone(t *testing.T, dir string, texts []string) {
	t.Helper()
	looked := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		looked++
		for _, text := range texts {
			if strings.Contains(string(content), text) {
				t.Errorf("%s holds %q", path, text)
			}
		}
		return err
	})
	if err != nil || looked == 0 {
		t.Errorf("looked into %d files, %v, want some", looked, err)
	}
}
