package providers

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// stock puts the packages of two versions into the store, used so long ago.
func (s *site) stock(ages map[string]time.Duration) {
	s.t.Helper()
	if err := os.MkdirAll(s.store.dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	for version, age := range ages {
		dir := filepath.Join(s.t.TempDir(), version)
		sum, ok := parseChecksum(s.mirror.Unpack(s.t, version, dir))
		at, sane := newSlot("registry.terraform.io/hashicorp/time", version)
		if !ok || !sane {
			s.t.Fatal("no checksum or no slot")
		}
		if err := s.store.publish(s.t.Context(), dir, at, sum, unheld); err != nil {
			s.t.Fatal(err)
		}
		used := time.Now().Add(-age)
		if err := os.Chtimes(s.store.path(at, sum), used, used); err != nil {
			s.t.Fatal(err)
		}
	}
}

// pruned sets how long ago the store was looked through.
func (s *site) pruned(ago time.Duration) {
	s.t.Helper()
	then := time.Now().Add(-ago)
	path := filepath.Join(s.store.dir, useLock)
	if err := firstOf(os.MkdirAll(s.store.dir, 0o700), os.WriteFile(path, nil, 0o600), os.Chtimes(path, then, then)); err != nil {
		s.t.Fatal(err)
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	tests := []struct {
		name  string
		last  time.Duration
		inUse bool
		want  []string
	}{
		{"what is unused for a month goes", 2 * day, false, []string{newest}},
		{"looked through an hour ago", time.Hour, false, []string{"0.14.1", newest}},
		{"an init is going on", 2 * day, true, []string{"0.14.1", newest}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "0.14.1", newest)
			s.pruned(test.last)
			s.stock(map[string]time.Duration{"0.14.1": 31 * day, newest: 29 * day})
			if test.inUse {
				done, err := s.store.use(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer done()
			}
			s.store.prune(time.Now())
			s.wantStored(test.want...)
			gone := filepath.Join(s.store.dir, "registry.terraform.io", "hashicorp", "time", "0.14.1")
			if _, err := os.Stat(gone); os.IsNotExist(err) == slices.Contains(test.want, "0.14.1") {
				t.Errorf("Stat(%s) error = %v, want the directory to go with its package", gone, err)
			}
		})
	}
}

func TestPruneSweepsTrash(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.pruned(48 * time.Hour)
	if err := os.MkdirAll(filepath.Join(s.store.dir, trashPrefix+"1", "package"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.store.prune(time.Now())
	s.wantStored()
}

// A run marks what it uses, and prunes the rest when its time has come. What
// was pruned, a workspace downloads again.
func TestRunsPrune(t *testing.T) {
	t.Parallel()
	for name, lockedTo := range map[string]string{"locked": newest, "lockless": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "0.14.1", newest)
			old := s.workspace("0.14.1")
			s.run(old)
			s.stock(map[string]time.Duration{"0.14.1": 40 * 24 * time.Hour, newest: 40 * 24 * time.Hour})
			aged := time.Now().Add(-40 * 24 * time.Hour)
			if err := os.Chtimes(s.path("0.14.1"), aged, aged); err != nil {
				t.Fatal(err)
			}
			s.pruned(48 * time.Hour)
			s.run(s.workspace(lockedTo))
			s.wantStored(newest)
			s.wantDownloads(1)
			s.run(old)
			s.wantStored("0.14.1", newest)
			s.wantDownloads(2)
		})
	}
}
