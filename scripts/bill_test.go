package scripts

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// wantBill looks at the bill of materials beside a program: it is as CycloneDX
// wants it, and says what the program's own build information says. Whether the
// console's bundles are in it differs.
func wantBill(t *testing.T, r repository, program, name string, bundles bool) {
	t.Helper()
	content := []byte(r.must("cat", program+".cdx.json"))
	valid(t, content)
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(content), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if bom.SerialNumber != "" || bom.Metadata.Timestamp != "" {
		t.Errorf("the bill of %s is of a moment: %q, %q", program, bom.SerialNumber, bom.Metadata.Timestamp)
	}
	binary, err := os.ReadFile(filepath.Join(r.dir, program))
	if err != nil {
		t.Fatal(err)
	}
	self := bom.Metadata.Component
	if sum := fmt.Sprintf("%x", sha256.Sum256(binary)); self.Name != name || self.Version != "1.2.3" || (*self.Hashes)[0].Value != sum {
		t.Errorf("the bill is of %s %s, %s, want %s 1.2.3, %s", self.Name, self.Version, (*self.Hashes)[0].Value, name, sum)
	}

	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Go standard library " + info.GoVersion}
	for _, m := range info.Deps {
		want = append(want, m.Path+" "+m.Version)
	}
	var got, bundled, refs []string
	for _, c := range *bom.Components {
		refs = append(refs, c.BOMRef)
		if strings.HasPrefix(c.PackageURL, "pkg:npm/") {
			bundled = append(bundled, c.Name)
		} else {
			got = append(got, c.Name+" "+c.Version)
		}
		if c.Licenses == nil || len(*c.Licenses) == 0 {
			t.Errorf("the bill of %s has no licence of %s", program, c.Name)
		} else if c.Name == "github.com/jackc/pgx/v5" && (*c.Licenses)[0].License.ID != "MIT" {
			t.Errorf("the bill of %s has pgx under %s, want MIT", program, (*c.Licenses)[0].License.ID)
		}
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("the bill of %s has\n%s\nwant what it was built of:\n%s", program, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if slices.Contains(bundled, "htmx.org") != bundles || slices.Contains(bundled, "@noble/ciphers") != bundles {
		t.Errorf("the bill of %s has of the console's bundles %q, want them: %v", program, bundled, bundles)
	}
	if edges := *bom.Dependencies; len(edges) != 1 || edges[0].Ref != self.BOMRef || !slices.Equal(*edges[0].Dependencies, refs) {
		t.Errorf("the bill of %s does not say that the program consists of all its parts", program)
	}
}

// schema is CycloneDX's own, of the version that the bills are written in.
var schema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	compiler := jsonschema.NewCompiler()
	module, err := moduleDir("github.com/CycloneDX/cyclonedx-go")
	if err != nil {
		return nil, err
	}
	const site = "http://cyclonedx.org/schema/"
	for name, file := range map[string]string{"bom-1.6.schema.json": "bom-1.6.schema.json", "spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json"} {
		content, err := os.ReadFile(filepath.Join(module, "schema", file))
		if err != nil {
			return nil, err
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
		if err != nil {
			return nil, err
		}
		if err := compiler.AddResource(site+name, document); err != nil {
			return nil, err
		}
	}
	return compiler.Compile(site + "bom-1.6.schema.json")
})

func valid(t *testing.T, bill []byte) {
	t.Helper()
	s, err := schema()
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(bill))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(document); err != nil {
		t.Error(err)
	}
}

// moduleDir is where a module that go.mod names lies.
func moduleDir(module string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}
