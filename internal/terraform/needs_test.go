package terraform

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

func TestReadNeeds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind  string
		files map[string]string
		want  string // "<constraint>@<place> … | <module>=<source>@<place> …"
	}{
		"several files": {Terraform, map[string]string{
			"a.tf":      "terraform {\n  required_version = \">= 1.5\"\n}\nmodule \"net\" {\n  source = \"./net\"\n}\n",
			"b.tf.json": `{"terraform": {"required_version": "< 2"}, "module": {"db": {"source": "acme/db/aws"}}}`,
		}, "[{>= 1.5 a.tf:2 false} {< 2 b.tf.json:1 false}] [{net ./net a.tf:5} {db acme/db/aws b.tf.json:1}]"},
		"an override's version replaces, its module comes beside": {Terraform, map[string]string{
			"a.tf":        "terraform {\n  required_version = \">= 1.5\"\n}\nmodule \"net\" {\n  source = \"./net\"\n}\n",
			"override.tf": "terraform {\n  required_version = \">= 1.9\"\n}\nmodule \"net\" {\n  source = \"git::https://example.com/net\"\n}\n",
		}, "[{>= 1.9 override.tf:2 false}] [{net ./net a.tf:5} {net git::https://example.com/net override.tf:5}]"},
		"OpenTofu's files are not Terraform's": {Terraform, map[string]string{
			"a.tf": "terraform { required_version = \">= 1.5\" }\n", "b.tofu": "terraform { required_version = \">= 1.9\" }\n",
		}, "[{>= 1.5 a.tf:1 false}] []"},
		"OpenTofu prefers its own file": {OpenTofu, map[string]string{
			"a.tf": "terraform { required_version = \">= 1.14\" }\n", "a.tofu": "terraform { required_version = \">= 1.9\" }\n",
		}, "[{>= 1.9 a.tofu:1 false}] []"},
		"OpenTofu's own, old and new": {OpenTofu, map[string]string{
			"a.tf": "terraform { required_version = \">= 1.14\" }\n", "b.tf": "language {\n  compatible_with {\n    opentofu = \">= 1.12\"\n  }\n}\n",
		}, "[{>= 1.14 a.tf:1 true} {>= 1.12 b.tf:3 false}] []"},
		"what is no literal": {OpenTofu, map[string]string{"a.tf": "module \"net\" {\n  source = var.from\n}\nmodule \"none\" {}\n"},
			"[] [{net  a.tf:2} {none  a.tf:4}]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, content := range test.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := ReadNeeds(dir, test.kind)
			if text := fmt.Sprint(got.Versions, got.Modules); err != nil || text != test.want {
				t.Errorf("ReadNeeds() = %s, %v, want %s", text, err, test.want)
			}
		})
	}
}

func TestReadNeedsOfABrokenModule(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte("module \"x\" {\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := ReadNeeds(dir, Terraform)
	wantContains(t, "message", wantCode(t, err, provision.CodeTemplateInvalid).Message, "main.tf")
}
