package templates_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/templates"
)

func TestAllNamesAreUnique(t *testing.T) {
	t.Parallel()
	var names []string
	for _, sample := range templates.All() {
		names = append(names, sample.Name)
		if sample.Description == "" {
			t.Errorf("template %s has no description", sample.Name)
		}
	}
	if want := []string{"hello", "fleet", "script-vm", "hand-made"}; !slices.Equal(names, want) {
		t.Errorf("All() = %v, want %v", names, want)
	}
}

func TestSamplesAreFormatted(t *testing.T) {
	t.Parallel()
	for _, sample := range templates.All() {
		if out, err := terraform(t, checkout(t, sample.Name), "fmt", "-check", "-recursive"); err != nil {
			t.Errorf("terraform fmt of %s: %v\n%s", sample.Name, err, out)
		}
	}
}

// The plug-in directory is empty, so an init that wanted a provider would fail.
func TestHelloAppliesWithoutNetwork(t *testing.T) {
	t.Parallel()
	dir := checkout(t, "hello")
	initialise(t, dir)
	name := `O'Neil "x" $(touch pwned)`
	out, err := terraform(t, dir, "apply", "-auto-approve", "-no-color", "-var", "name="+name, "-var", "pause_seconds=0", "-var", "steps=2", "-var", "passphrase=s3cret-phrase")
	if err != nil {
		t.Fatalf("apply: %v\n%s", err, out)
	}
	for _, want := range []string{"Hello, " + name + "!\n", "step 2 of 2: growing\n", "token = <sensitive>"} {
		if !strings.Contains(out, want) {
			t.Errorf("apply printed no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "s3cret-phrase") {
		t.Errorf("apply printed the passphrase:\n%s", out)
	}
	if _, err := os.Stat(dir + "/pwned"); err == nil {
		t.Error("the name was run as a command")
	}
	outputs := outputsOf(t, dir)
	if got := outputs["message"].Value; got != "Hello, "+name+"!" {
		t.Errorf("output message = %v, want the greeting", got)
	}
	if !outputs["token"].Sensitive {
		t.Error("output token is not sensitive")
	}
}

func TestFleetAppliesWithoutNetwork(t *testing.T) {
	t.Parallel()
	dir := checkout(t, "fleet")
	initialise(t, dir)
	if out, err := terraform(t, dir, "apply", "-auto-approve", "-no-color", "-var", "ships=3", "-var", "pause_seconds=0"); err != nil || !strings.Contains(out, "ship-003: at berth 3") {
		t.Fatalf("apply = %v, want success and the third ship's line\n%s", err, out)
	}
	if got := outputsOf(t, dir)["ships"].Value; got != 3.0 {
		t.Errorf("output ships = %v, want 3", got)
	}
}

func TestBadVariablesAreRefused(t *testing.T) {
	t.Parallel()
	tests := []struct{ template, variable, want string }{
		{"hello", "name= ", "1 to 100 characters"},
		{"hello", "steps=1.5", "whole number"},
		{"fleet", "ships=0", "from 1 to 500"},
		{"fleet", "ships=501", "from 1 to 500"},
		{"fleet", "prefix=A b", "lower-case"},
	}
	dirs := map[string]string{}
	for _, tt := range tests {
		if dirs[tt.template] == "" {
			dirs[tt.template] = checkout(t, tt.template)
			initialise(t, dirs[tt.template])
		}
		args := []string{"plan", "-no-color", "-input=false", "-var", tt.variable}
		if !strings.HasPrefix(tt.variable, "name=") && tt.template == "hello" {
			args = append(args, "-var", "name=Ada")
		}
		if out, err := terraform(t, dirs[tt.template], args...); err == nil || !strings.Contains(out, tt.want) {
			t.Errorf("plan of %s with %q = %v, want it refused with %q\n%s", tt.template, tt.variable, err, tt.want, out)
		}
	}
}

func checkout(t *testing.T, name string) string {
	t.Helper()
	for _, sample := range templates.All() {
		if sample.Name == name {
			dir := t.TempDir()
			if err := os.CopyFS(dir, sample.Files); err != nil {
				t.Fatal(err)
			}
			return dir
		}
	}
	t.Fatalf("no template %s", name)
	return ""
}

func initialise(t *testing.T, dir string) {
	t.Helper()
	if out, err := terraform(t, dir, "init", "-input=false", "-no-color", "-plugin-dir", t.TempDir()); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
}

type output struct {
	Value     any
	Sensitive bool
}

func outputsOf(t *testing.T, dir string) map[string]output {
	t.Helper()
	text, err := terraform(t, dir, "output", "-json")
	if err != nil {
		t.Fatalf("output: %v\n%s", err, text)
	}
	var outputs map[string]output
	if err := json.Unmarshal([]byte(text), &outputs); err != nil {
		t.Fatalf("outputs: %v", err)
	}
	return outputs
}

func terraform(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "terraform", args...)
	cmd.Dir = dir
	// No configuration of the machine's own: it may point at a mirror.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "CHECKPOINT_DISABLE=1", "TF_CLI_CONFIG_FILE=/dev/null"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// The script of script-vm makes a machine once, however often it is asked, and destroys it.
func TestScriptMakesAMachine(t *testing.T) {
	t.Parallel()
	dir, cloud := checkout(t, "script-vm"), t.TempDir()+"/cloud"
	ask := func(action string) (answer struct {
		Success  bool
		Instance struct {
			ExternalID   string `json:"external_id"`
			RootPassword string `json:"root_password"`
		}
	}) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "machine.sh")
		cmd.Dir = dir
		cmd.Stdin = strings.NewReader(`{"action":"` + action + `","contract_id":"abc123","instance_config":{"cloud":"` + cloud + `"}}` + "\n")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &answer); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		return answer
	}
	for range 2 {
		if got := ask("provision"); !got.Success || got.Instance.ExternalID != "vm-abc123" || got.Instance.RootPassword == "" {
			t.Errorf("provision = %+v, want the machine vm-abc123", got)
		}
	}
	if found, err := os.ReadDir(cloud); err != nil || len(found) != 1 {
		t.Errorf("the cloud has %v, %v, want one machine", found, err)
	}
	if got := ask("terminate"); !got.Success {
		t.Errorf("terminate = %+v, want success", got)
	}
	if found, err := os.ReadDir(cloud); err != nil || len(found) != 0 {
		t.Errorf("the cloud has %v, %v, want no machine", found, err)
	}
	if got := ask("dance"); got.Success {
		t.Errorf("dance = %+v, want a failure", got)
	}
}
