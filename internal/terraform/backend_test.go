package terraform

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

func templateDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestReadBackend(t *testing.T) {
	t.Parallel()
	s3 := "terraform {\n  backend \"s3\" {\n    bucket = \"b\"\n    region = local.r\n  }\n}\n"
	tests := []struct {
		name  string
		kind  string
		files map[string]string
		want  Backend
	}{
		{"none", Terraform, map[string]string{"main.tf": `resource "a" "b" {}`}, Backend{Type: "local"}},
		{"empty directory", Terraform, nil, Backend{Type: "local"}},
		{"partial", Terraform, map[string]string{"a.tf": `terraform { 
  backend "s3" {} 
}`}, Backend{Type: "s3", Declared: true, File: "a.tf"}},
		{"with arguments", Terraform, map[string]string{"a.tf": s3, "b.tf": `terraform { required_version = ">= 1" }`},
			Backend{Type: "s3", Declared: true, File: "a.tf", Keys: []string{"bucket", "region"}, Config: map[string]string{"bucket": "b"}}},
		{"local", Terraform, map[string]string{"a.tf": "terraform {\n backend \"local\" {\n path = \"x\"\n }\n}"},
			Backend{Type: "local", Declared: true, File: "a.tf", Keys: []string{"path"}, Config: map[string]string{"path": "x"}}},
		{"json", Terraform, map[string]string{"a.tf.json": `{"terraform":{"backend":{"gcs":{"bucket":"b"}}}}`},
			Backend{Type: "gcs", Declared: true, File: "a.tf.json", Keys: []string{"bucket"}, Config: map[string]string{"bucket": "b"}}},
		{"cloud", Terraform, map[string]string{"a.tf": "terraform {\n cloud {\n organization = \"o\"\n }\n}"},
			Backend{Type: "cloud", Declared: true, File: "a.tf", Keys: []string{"organization"}, Config: map[string]string{"organization": "o"}}},
		{"overridden", Terraform, map[string]string{"a_override.tf": "terraform {\n backend \"pg\" {}\n}", "z.tf": s3},
			Backend{Type: "pg", Declared: true, File: "a_override.tf"}},
		{"tofu's file for terraform", Terraform, map[string]string{"a.tofu": s3}, Backend{Type: "local"}},
		{"tofu's file hides the other", OpenTofu, map[string]string{"a.tf": s3, "a.tofu": "terraform {\n backend \"pg\" {}\n}"},
			Backend{Type: "pg", Declared: true, File: "a.tofu"}},
		{"hidden and editor's files", Terraform, map[string]string{".a.tf": "not hcl {", "a.tf~": "not hcl {"}, Backend{Type: "local"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := ReadBackend(templateDir(t, test.files), test.kind)
			if err != nil {
				t.Fatal(err)
			}
			same := got.Type == test.want.Type && got.Declared == test.want.Declared && got.File == test.want.File &&
				slices.Equal(got.Keys, test.want.Keys) && len(got.Config) == len(test.want.Config)
			for key, value := range test.want.Config {
				same = same && got.Config[key] == value
			}
			if !same {
				t.Errorf("ReadBackend() = %+v, want %+v", got, test.want)
			}
		})
	}
}

// What init starts of the template's must not meet what init alone may use.
func TestBackendsThatStartCommands(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]bool{
		``:                              {false, false},
		`backend "http" {}`:             {false, false},
		`backend "s3" { bucket = "b" }`: {false, false},
		`backend "s3" { shared_config_files = ["x"] }`:                {true, false},
		`backend "kubernetes" { namespace = "n" }`:                    {false, false},
		"backend \"kubernetes\" {\n exec {\n command = \"sh\"\n }\n}": {true, false},
		`backend "kubernetes" { config_path = "x" }`:                  {true, false},
		`backend "of_next_year" {}`:                                   {true, false},
		`encryption {}`:                                               {false, true},
	} {
		got, err := ReadBackend(templateDir(t, map[string]string{"main.tf": "terraform {\n" + text + "\n}\n"}), OpenTofu)
		if err != nil || got.Starts != want[0] || got.Encrypts != want[1] {
			t.Errorf("ReadBackend(%s) = starts %t, encrypts %t, %v, want %v", text, got.Starts, got.Encrypts, err, want)
		}
	}
	inJSON := `{"terraform":{"backend":{"kubernetes":{"exec":{"command":"sh"}}},"encryption":{}}}`
	if got, err := ReadBackend(templateDir(t, map[string]string{"main.tf.json": inJSON}), OpenTofu); err != nil || !got.Starts || !got.Encrypts {
		t.Errorf("ReadBackend(%s) = %+v, %v, want one that starts and encrypts", inJSON, got, err)
	}
}

func TestReadBackendOfABrokenTemplate(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{
		"main.tf":    "\nresource \"a\" {{\n",
		"x.tf.json":  `{"terraform": [`,
		"labels.tf":  "terraform {\n  backend {}\n}\n",
		"labels2.tf": "terraform \"x\" {\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ReadBackend(templateDir(t, map[string]string{name: file}), Terraform)
			failure := wantCode(t, err, provision.CodeTemplateInvalid)
			wantContains(t, "message", failure.Message, "the template does not parse: "+name+" line ")
		})
	}
}

// A pipe in a hostile checkout must not hang us.
func TestReadBackendReadsRegularFilesOnly(t *testing.T) {
	t.Parallel()
	dir := templateDir(t, map[string]string{"shared": "terraform {\n backend \"pg\" {}\n}"})
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.tf"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"broken.tf": "nowhere", "linked.tf": "shared"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := ReadBackend(dir, Terraform); err != nil || got.Type != "pg" {
		t.Errorf("ReadBackend() = %+v, %v, want the linked file's pg", got, err)
	}
}

func TestReadBackendRefusesAHugeFile(t *testing.T) {
	t.Parallel()
	dir := templateDir(t, map[string]string{"a.tf": ""})
	if err := os.Truncate(filepath.Join(dir, "a.tf"), maxConfigFile+1); err != nil {
		t.Fatal(err)
	}
	_, err := ReadBackend(dir, Terraform)
	wantContains(t, "message", wantCode(t, err, provision.CodeTemplateInvalid).Message, "a.tf", "16777217 bytes")
}

func TestOverrideFollowsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, overrideName+".tf")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time over our own file
		if err := Override(dir, "http", map[string]string{"address": `a"${b}`}); err != nil {
			t.Fatal(err)
		}
	}
	if content, err := os.ReadFile(victim); err != nil || string(content) != "precious" {
		t.Errorf("the link's target = %q, %v, want it untouched", content, err)
	}
	got, err := ReadBackend(dir, Terraform)
	if err != nil || got.Type != "http" || got.Config["address"] != `a"${b}` {
		t.Errorf("ReadBackend() = %+v, %v, want http with the address as given", got, err)
	}
}

func TestOverrideRefusesATemplateThatOverrides(t *testing.T) {
	t.Parallel()
	backend := "terraform {\n backend \"local\" {}\n}"
	for _, name := range []string{"override.tf", "zzz_override.tf", "zzz_override.tf.json", "x_override.tofu", overrideName + ".tofu"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content := backend
			if strings.HasSuffix(name, ".json") {
				content = `{"terraform":{"backend":{"local":{}}}}`
			}
			err := Override(templateDir(t, map[string]string{name: content}), "http", nil)
			wantContains(t, "message", wantCode(t, err, provision.CodeTemplateInvalid).Message, name)
		})
	}
	if err := Override(templateDir(t, map[string]string{"x_override.tf": `resource "a" "b" {}`}), "http", nil); err != nil {
		t.Errorf("Override() beside an override of something else: error = %v, want nil", err)
	}
}
