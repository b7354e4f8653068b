package templatefile

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each example of the documentation is accepted.
func TestDocumentedExamples(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/TEMPLATES.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?ms)^```hcl\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	if len(examples) < 4 {
		t.Errorf("%d examples were found, want them all", len(examples))
	}
	for _, example := range examples {
		files := map[string]string{Name: example[1], "INSTRUCTIONS.md": "", "provision.sh": ""}
		f, err := Read(writeFiles(t, files))
		if err != nil {
			t.Errorf("%v\n%s", err, example[1])
			continue
		}
		if !strings.Contains(example[1], string(f.Kind)) {
			t.Errorf("the provisioner is %s in\n%s", f.Kind, example[1])
		}
	}
}
