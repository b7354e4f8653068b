package doctor_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/doctor"
	"github.com/tendril-run/tendril/internal/seal"
)

func TestIdentity(t *testing.T) {
	t.Parallel()
	current, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	old, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	keys := current[0].String() + "\n" + old[0].String() + "\n"
	secret := func(p *patient) { p.secrets = append(p.secrets, current[0].String(), old[0].String()) }
	faults{
		"none yet": {func(*testing.T, *patient) {}, "identity", doctor.OK, []string{"at its first start"}},
		"of the agent's own": {func(t *testing.T, p *patient) {
			secret(p)
			write(t, filepath.Join(p.Config.DataDir, "identity"), keys, 0o600)
		}, "identity", doctor.OK, []string{seal.Fingerprint(current.Public()), current.Public(), "also opens", seal.Fingerprint(old.Public())}},
		"of the cluster": {func(t *testing.T, p *patient) {
			secret(p)
			p.Config.IdentityFile = write(t, t.TempDir()+"/keys", current[0].String(), 0o600)
		}, "identity", doctor.OK, []string{seal.Fingerprint(current.Public()), "identity_file"}},
		"for all to read": {func(t *testing.T, p *patient) {
			secret(p)
			p.Config.IdentityFile = write(t, t.TempDir()+"/keys", keys, 0o604)
		}, "identity", doctor.Fail, []string{"others may read it"}},
		"torn": {func(t *testing.T, p *patient) {
			secret(p)
			p.Config.IdentityFile = write(t, t.TempDir()+"/keys", strings.ToLower(keys), 0o600)
		}, "identity", doctor.Fail, []string{"line 1: no age identity"}},
		"credentials for all to read": {func(t *testing.T, p *patient) {
			p.Config.Credentials = config.Credentials{{Workspace: "acme/*", EnvFile: write(t, t.TempDir()+"/env", "A=b", 0o604)}}
		}, "secrets", doctor.Fail, []string{`credentials."acme/*".env_file`, "0604", "chmod o="}},
	}.run(t, machine)
}
