package scripts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever ends with an error makes .ci/run end with one; but that no database of
// vulnerabilities can be reached.
func TestContinuousIntegrationIsRed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fails string // the target of make that does
		vuln  int    // the exit status of vuln.sh
		red   bool
	}{
		{"", 0, false},
		{"", 75, false},
		{"", 3, true},
		{"", 1, true},
		{"test", 0, true},
		{"test", 75, true},
		{"lint", 0, true},
		{"licenses", 75, true},
		{"bench-check", 0, true},
		{"e2e-vm", 0, true},
		{"e2e-metal", 0, true},
		{"tools-dir", 0, true},
	} {
		t.Run(fmt.Sprintf("%s_%d", c.fails, c.vuln), func(t *testing.T) {
			t.Parallel()
			r := ourRepository(t, ".ci")
			program := func(name, script string) {
				path := filepath.Join(r.dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			program("scripts/vuln.sh", fmt.Sprintf("echo vuln; exit %d\n", c.vuln))
			program("bin/make", `for target; do case $target in -*) ;; *) echo "made $target" ;; esac; done; for target; do [ "$target" != "$FAILS" ] || exit 2; done`+"\n")
			stdout, stderr, code := r.run([]string{"FAILS=" + c.fails, "PATH=" + filepath.Join(r.dir, "bin") + ":" + os.Getenv("PATH")}, ".ci/run")
			if (code != 0) != c.red {
				t.Errorf(".ci/run = %d, want red: %v\n%s%s", code, c.red, stdout, stderr)
			}
			if tests, machines := strings.Index(stdout, "made test"), strings.Index(stdout, "made e2e-vm"); machines < tests {
				t.Errorf(".ci/run does not make virtual machines after the tests\n%s%s", stdout, stderr)
			}
			if !strings.Contains(stdout, "made lint") || !strings.Contains(stdout, "made test") {
				t.Errorf(".ci/run does not show both the tests and the linters\n%s%s", stdout, stderr)
			}
		})
	}
}

// The short forms of the tests with virtual machines and with Ironic name tests that exist and that
// never skip.
func TestShortForms(t *testing.T) {
	t.Parallel()
	shortForm(t, "VM_SHORT", "../internal/pool/libvirt/*_vm_test.go")
	shortForm(t, "KUBE_SHORT", "../e2e/kubejobs/*_test.go")
	shortForm(t, "METAL_SHORT", "../internal/*/*metal_test.go", "../internal/pool/ironic/*metal_test.go", "../e2e/metal/*_test.go")
}

func shortForm(t *testing.T, variable string, patterns ...string) {
	t.Helper()
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(makefile), "\n"+variable+" := ")
	line, _, _ = strings.Cut(line, "\n")
	var files []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for name := range strings.SplitSeq(line, "|") {
		_, body, found := strings.Cut(all.String(), "\nfunc "+name+"(t *testing.T) {\n")
		body, _, _ = strings.Cut(body, "\n}\n")
		if name == "" || !found || strings.Contains(body, "t.Skip") {
			t.Errorf("%s has %q, which is no test or skips", variable, name)
		}
	}
}

// Where no hypervisor can be started, a sentence says why, and nothing is skipped.
func TestNoVirtualMachinesHere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ program, script, want string }{
		"no root":       {"id", "echo 1000", "need root"},
		"no namespaces": {"unshare", "exit 1", "the kernel refuses them"},
		"no Linux":      {"uname", "echo Darwin", "needs Linux, and this is Darwin"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ourRepository(t, "scripts/vm-deps.sh")
			bin := filepath.Join(r.dir, "bin")
			if err := os.MkdirAll(bin, 0o755); err != nil {
				t.Fatal(err)
			}
			for program, script := range map[string]string{"id": "echo 0", "unshare": "exit 0", c.program: c.script} {
				if err := os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			_, stderr, code := r.run([]string{"PATH=" + bin + ":" + os.Getenv("PATH")}, "scripts/vm-deps.sh", filepath.Join(r.dir, "tools"))
			if code == 0 || !strings.Contains(stderr, "No hypervisor can be started on this machine: ") || !strings.Contains(stderr, c.want) {
				t.Errorf("vm-deps.sh = %d, %q; want an error with %q", code, stderr, c.want)
			}
		})
	}
}
