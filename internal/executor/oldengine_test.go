package executor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// An engine that the agent's policy finds too old runs nothing of the template,
// also where the template asks for it.
func TestOldEnginesAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		version, policy string
		code            provision.Code
		want            []string
	}{
		"the agent's":  {"0.13.7", "0.14.0", provision.CodePolicyRefused, []string{"0.13.7", "0.14.0 or newer", "policy.oldest_terraform"}},
		"what is here": {"", "99.0.0", provision.CodeEngineMissing, []string{"99.0.0 or newer", "policy.oldest_terraform"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			ran := filepath.Join(t.TempDir(), "ran")
			s.template(map[string]string{"main.tf": `
data "external" "x" { program = ["touch", "` + ran + `"] }
`}, nil)
			s.job.Settings.Engine.OldestTerraform = test.policy
			s.job.Settings.Engine.Version = test.version
			result, c := s.run()
			wantEnd(t, result, provision.Failed, test.code)
			for _, want := range test.want {
				if !strings.Contains(result.Detail.ErrorMessage, want) {
					t.Errorf("the error is %q, want %q in it", result.Detail.ErrorMessage, want)
				}
			}
			if _, err := os.Stat(ran); err == nil || strings.Contains(c.text(), "Initializing") {
				t.Errorf("the template was run:\n%s", c.text())
			}
		})
	}
}
