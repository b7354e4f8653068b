package executor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// meddling is a template of which OpenTofu starts a program in each step.
const meddling = `
terraform {
  encryption {
    key_provider "external" "key" { command = ["/bin/sh", "KEYS", "DIR"] }
    method "aes_gcm" "method" { keys = key_provider.external.key }
    plan { method = method.aes_gcm.method }
  }
}
resource "terraform_data" "a" {}
`

// keys gives a key, and does what else it is told first; $DIR is the test's.
const keys = `DIR=$1
step=$(tr '\0' ' ' </proc/$PPID/cmdline)
%
echo '{"magic":"OpenTofu-External-Key-Provider","version":1}'
read -r stored
key=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=
echo '{"keys":{"encryption_key":"'$key'","decryption_key":"'$key'"},"meta":{"external_data":{}}}'
`

// meddle asks for a template that does something in each step of the engine.
func (s *site) meddle(script string) (dir string) {
	s.t.Helper()
	dir = s.t.TempDir()
	path := filepath.Join(dir, "keys.sh")
	if err := os.WriteFile(path, []byte(strings.Replace(keys, "%", script, 1)), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.template(map[string]string{"main.tf": strings.NewReplacer("KEYS", path, "DIR", dir).Replace(meddling)}, nil)
	return dir
}

// What a plan's own programs have left, running or as files, is not about the
// hook that judges the plan: it could answer for it.
func TestPolicyHookIsAlone(t *testing.T) {
	t.Parallel()
	s := newSiteOf(t, "tofu")
	dir := s.meddle(`setsid sh -c 'echo $$ >'$DIR'/pid; exec sleep 60' </dev/null >/dev/null 2>&1 &
while [ ! -s $DIR/pid ]; do sleep 0.01; done
touch "$TMPDIR/conftest.toml" "$HOME/.checkov.yaml"`)
	s.hook(`grep -qs '^State:.[^Z]' /proc/$(cat ` + dir + `/pid)/status && echo "the template is still there" && exit 1
ls -A . "$HOME" "$TMPDIR" | grep -v : | grep . && exit 1
exit 0`)
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
}

// What is applied is what was shown and judged, whatever becomes of the file that
// the engine saved it to: another run of the same user, or here the hook itself,
// may write there.
func TestPlanThatIsExchanged(t *testing.T) {
	t.Parallel()
	for name, meddle := range map[string]func(*site){
		"while it is shown": func(s *site) {
			s.meddle(`case $step in *" show "*) echo x >"$TMPDIR/../secrets/plan" ;; esac`)
		},
		"while it is judged": func(s *site) {
			s.meddle(":")
			s.hook(`echo x >"$HOME/../plan"; for at in /proc/self/fd/*; do case $(readlink $at) in *memfd:plan*) { echo x >$at; } 2>/dev/null && exit 1; esac; done; exit 0`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSiteOf(t, "tofu")
			meddle(s)
			got, c := s.run()
			wantEnd(t, got, provision.Success, "")
			if !applied(c) {
				t.Error("nothing was applied, want the plan that was judged")
			}
		})
	}
}
