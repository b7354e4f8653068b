package terraform

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Of what a template brings along nothing runs before plan: not its providers,
// which these are, and nothing of its own. Runs rely on it to write the caches
// until then.
func TestInitStartsNoProvider(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	packages := filepath.Join(dir, "mirror", "example.com", "acme", "fake", "1.0.0", runtime.GOOS+"_"+runtime.GOARCH)
	if err := os.MkdirAll(packages, 0o700); err != nil {
		t.Fatal(err)
	}
	provider := "#!/bin/sh\necho \"$$\" > " + started + "\nexit 1\n"
	if err := os.WriteFile(filepath.Join(packages, "terraform-provider-fake_v1.0.0"), []byte(provider), 0o700); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "terraformrc")
	if err := os.WriteFile(config, fmt.Appendf(nil, "provider_installation {\n  filesystem_mirror {\n    path = %q\n  }\n}\n", filepath.Join(dir, "mirror")), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newReal(t, Terraform, `terraform {
  required_providers {
    fake = { source = "example.com/acme/fake" }
  }
}
provider "fake" {}
data "fake_thing" "x" {}
resource "terraform_data" "x" {
  provisioner "local-exec" { command = "touch `+started+`" }
}
`, Options{Env: []string{"TF_CLI_CONFIG_FILE=" + config}})
	if err := r.Init(t.Context(), InitOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("init has started a provider")
	}
	if _, err := r.Plan(t.Context(), PlanOptions{Out: "plan"}); err == nil {
		t.Error("Plan() = nil with a provider that only exits, want an error")
	}
	if _, err := os.Stat(started); err != nil {
		t.Errorf("plan has not started the provider (%v), so the test shows nothing", err)
	}
}

// What is set on the engine's thread is set in the engine, and nowhere else.
func TestConfineConcernsTheEngineAlone(t *testing.T) {
	t.Parallel()
	status := filepath.Join(t.TempDir(), "status")
	r := newReal(t, Terraform, `resource "terraform_data" "x" {
  provisioner "local-exec" { command = "cat /proc/self/status > `+status+`" }
}
`, Options{Confine: func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }})
	planned(t, r, PlanOptions{})
	if _, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(status); err != nil || !strings.Contains(string(text), "NoNewPrivs:\t1") {
		t.Errorf("in what the engine starts: %v\n%s\nwant NoNewPrivs 1", err, text)
	}
	// The engine's threads have ended, or are about to.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := patience.Begin(time.Minute); len(confined(t)) > 0; <-tick.C {
		if limit.Over() {
			t.Fatalf("threads %v of this process have NoNewPrivs as well", confined(t))
		}
	}
}

func confined(t *testing.T) (threads []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(all) == 0 {
		t.Fatalf("no threads: %v", err)
	}
	for _, thread := range all {
		if text, err := os.ReadFile(thread); err == nil && strings.Contains(string(text), "NoNewPrivs:\t1") {
			threads = append(threads, thread)
		}
	}
	return threads
}
