package doctor_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/doctor"
)

func TestCaches(t *testing.T) {
	t.Parallel()
	put := func(t *testing.T, p *patient, name string, size int) {
		t.Helper()
		path := filepath.Join(p.Config.DataDir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	faults{
		"nothing yet": {func(_ *testing.T, p *patient) {
			p.Config.DataDir, p.Config.Cache.Limit = filepath.Dir(p.Config.DataDir)+"/none", config.Size{Bytes: 10 << 30}
		}, "caches", doctor.OK, []string{"nothing is kept yet", "10 GiB"}},
		"by kind": {func(t *testing.T, p *patient) {
			p.Config.Cache.Limit = config.Size{}
			put(t, p, "repos/a/git/pack", 3<<20)
			put(t, p, "providers/p", 20<<20)
			put(t, p, "work/w/data", 5<<20)
			put(t, p, "state/w/terraform.tfstate", 4<<20)
		}, "caches", doctor.OK, []string{"28 MiB in caches", "repos 3.0 MiB", "providers 20 MiB", "work 5.0 MiB", "state 4.0 MiB", "limit none", "free"}},
		"over the limit": {func(t *testing.T, p *patient) {
			p.Config.Cache.Limit = config.Size{Bytes: 64 << 20}
			put(t, p, "providers/p", 65<<20)
		}, "caches", doctor.Warn, []string{"over their limit", "limit 64 MiB", "cache.limit"}},
		"a limit beyond the disk": {func(t *testing.T, p *patient) {
			small(t, p, 64<<20)
			p.Config.Cache.Limit = config.Size{Bytes: 128 << 20}
		}, "caches", doctor.Warn, []string{"full before the caches reach their limit", "limit 128 MiB", "64 MiB free", "cache.limit"}},
		"something to decide": {func(t *testing.T, p *patient) { put(t, p, "rejected/claim.ndjson", 1) },
			"caches", doctor.Warn, []string{"files in rejected/ that wait for a person: 1", "remove it"}},
	}.run(t, machine)
}
