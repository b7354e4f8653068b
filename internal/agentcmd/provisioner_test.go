package agentcmd

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/conformance"
	"github.com/tendril-run/tendril/internal/testkit/pages"
)

const examples = "../../examples/provisioners/"

// The commands of the specification, on the examples.
func TestProvisionerTest(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "fake-cloud-go")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, examples+"go").CombinedOutput(); err != nil {
		t.Fatalf("build the example in Go: %v\n%s", err, out)
	}
	block := pages.Block(t, "docs/PROVISIONERS.md", "tendril provisioner test", "./my-provisioner", program, "./my-script", examples+"once/fake-cloud")
	for _, line := range pages.Lines(block) {
		out, code := tendril(t, nil, strings.Fields(line)[1:]...)
		skipped := strings.Count(out, ": the program isn't declared detachable\n")
		if code != ExitOK || !strings.Contains(out, "✓ ") || !strings.Contains(out, fmt.Sprintf(" passed, 0 failed, %d skipped\n", skipped)) {
			t.Errorf("%s = %d, want 0:\n%s", line, code, out)
		}
	}

	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	size := file("size.json", `{"image":"debian-12","cores":4,"memory":512,"pool":"lab"}`)
	variables := file("variables.json", `{"class":"a1"}`)
	out, code := tendril(t, nil, "provisioner", "test", "-o", "json", "--case", "a second apply", "--machine", size, "--variables", variables, "--inventory", "ls cloud", program)
	var report conformance.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != ExitOK || report.Passed != 2 || report.Cases[1].Name != "a second apply creates nothing" {
		t.Errorf("provisioner test -o json = %d, %v:\n%s", code, err, out)
	}
	out, code = tendril(t, nil, "provisioner", "test", "false")
	if code != ExitFailure || !strings.Contains(out, "✗ describe\n    wrong  stdout ended without a result (exit status 1)") || !strings.Contains(out, "Error: 1 of ") {
		t.Errorf("provisioner test false = %d, want 1 and what is wrong:\n%s", code, out)
	}
	for args, c := range map[string]struct {
		says string
		code int
	}{
		"test":                                      {"COMMAND is missing", ExitUsage},
		"test --form twice true":                    {"it is lines or once", ExitUsage},
		"test -o xml true":                          {"it is text or json", ExitUsage},
		"test --timeout 0s true":                    {"longer than 0", ExitUsage},
		"test --case levitate true":                 {"no case of --form lines", ExitUsage},
		"test --machine /nowhere/size.json true":    {"--machine: open /nowhere/size.json", ExitUsage},
		"test --variables " + size + "x true":       {"--variables: open", ExitUsage},
		"test --machine " + variables + " true":     {`unknown field "class"`, ExitUsage},
		"test /nowhere/program":                     {`find the provisioner "/nowhere/program"`, ExitFailure},
		"test --list":                               {"killed between intent and machine\n", ExitOK},
		"test --list --form once":                   {"terminate twice\n", ExitOK},
		"":                                          {"docs/PROVISIONERS.md is the specification", ExitOK},
		"test --case describe " + program + " -o x": {"✓ describe", ExitOK}, // what follows is the program's
	} {
		if out, code := tendril(t, nil, append([]string{"provisioner"}, strings.Fields(args)...)...); code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("tendril provisioner %s = %d, %q, want %d and %q", args, code, out, c.code, c.says)
		}
	}
}
