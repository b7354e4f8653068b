package providers

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const h1A = "h1:AjY2lOPKEES+bHE7rbeXuwJGz2qmkwgh0kt1jHz3RGY="

func TestParseLockFile(t *testing.T) {
	t.Parallel()
	sum, _ := parseChecksum(h1A)
	entry := func(address, version, hashes string) string {
		return "provider \"" + address + "\" {\n  version = \"" + version + "\"\n  constraints = \">= 1.0.0\"\n  hashes = [" + hashes + "]\n}\n"
	}
	tests := []struct {
		name, content string
		want          locked
	}{
		{"as Terraform writes it", "# comment\n" + entry("registry.terraform.io/hashicorp/time", "0.14.2", `"`+h1A+`", "zh:00aa",`),
			locked{"registry.terraform.io/hashicorp/time/0.14.2/" + slot(platform): {sum}}},
		{"a host with a port", entry("localhost:8443/acme/x", "1.0.0-beta.1", `"`+h1A+`"`),
			locked{"localhost:8443/acme/x/1.0.0-beta.1/" + slot(platform): {sum}}},
		{"other checksums only", entry("registry.terraform.io/a/b", "1.0.0", `"zh:00aa", "h1:short", "h1:%%%"`),
			locked{"registry.terraform.io/a/b/1.0.0/" + slot(platform): {}}},
		{"no hashes", "provider \"h/a/b\" {\n version = \"1.0.0\"\n}\n", locked{"h/a/b/1.0.0/" + slot(platform): {}}},
		{"paths that lead elsewhere", entry("../a/b", "1.0.0", "") + entry("h/a/..", "1.0.0", "") + entry("h/a/b", "..", "") +
			entry("h/a/b", "1/2", "") + entry("h/a", "1.0.0", "") + entry("h/a/b/c", "1.0.0", "") + entry("h//b", "1.0.0", "") +
			entry(".trash-1/a/b", "1.0.0", "") + entry("h/a/b", strings.Repeat("1", 300), ""), locked{}},
		{"nothing", "", locked{}},
		{"not HCL", "provider {{", nil},
		{"no version", "provider \"h/a/b\" {}\n", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := parseLockFile([]byte(test.content)); !reflect.DeepEqual(got, test.want) {
				t.Errorf("parseLockFile() = %v, want %v", got, test.want)
			}
		})
	}
}

// Whatever a template ships, it names places in the store only.
func FuzzParseLockFile(f *testing.F) {
	f.Add([]byte("provider \"registry.terraform.io/hashicorp/time\" {\n  version = \"0.14.2\"\n  hashes = [\"" + h1A + "\"]\n}\n"))
	f.Add([]byte("provider \"../../etc\" {\n  version = \"/x\"\n}\n"))
	f.Add([]byte("provider \"a/b/c\" {\n  version = \"..\"\n  hashes = [\"h1:../../x\"]\n}\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		for at, sums := range parseLockFile(content) {
			if !filepath.IsLocal(string(at)) || filepath.Clean(string(at)) != string(at) || strings.Count(string(at), "/") != slotDepth-1 {
				t.Errorf("slot %q leads elsewhere", at)
			}
			for _, sum := range sums {
				if len(sum) != 64 || strings.Trim(string(sum), "0123456789abcdef") != "" {
					t.Errorf("checksum %q is no file name", sum)
				}
			}
		}
	})
}
