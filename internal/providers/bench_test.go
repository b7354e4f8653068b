package providers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/providertest"
)

// What the cache costs a template that needs no provider, by what others have
// left in the store.
func BenchmarkNoProvider(b *testing.B) {
	for _, packages := range []int{0, 50} {
		b.Run(fmt.Sprint(packages, " packages"), func(b *testing.B) {
			dir := b.TempDir()
			c := New(Options{Store: filepath.Join(dir, "store"), Private: filepath.Join(dir, "private"), Template: b.TempDir()})
			for i := range packages {
				at, ok := newSlot(fmt.Sprintf("registry.terraform.io/acme/p%d", i), "1.0.0")
				path := c.store.path(at, checksum(strings.Repeat("0", 64)))
				if err := os.MkdirAll(path, 0o700); err != nil || !ok {
					b.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(path, "terraform-provider-x"), nil, 0o600); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if err := c.Init(b.Context(), func(context.Context) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// One init of a template with a provider.
func BenchmarkInit(b *testing.B) {
	s := newSite(b)
	bench := func(name, lockedTo string, shared, fresh bool) {
		b.Run(name, func(b *testing.B) {
			dir := s.workspace(lockedTo)
			for b.Loop() {
				if fresh {
					dir = s.workspace(lockedTo)
				}
				if lockedTo == "" {
					_ = os.Remove(filepath.Join(dir, "source", LockFileName)) // a new checkout
				}
				options := Options{Store: s.store.dir, Private: filepath.Join(dir, "providers"), Template: filepath.Join(dir, "source")}
				if !shared {
					options.Store = ""
				}
				c := New(options)
				if err := c.Init(b.Context(), func(context.Context) error {
					terraformInit(b, dir, append(s.env(), c.Env()...))
					return nil
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for _, lockedTo := range []string{newest, ""} {
		kind := map[bool]string{true: "lockless", false: "locked"}[lockedTo == ""]
		bench(kind+"/without/new_workspace", lockedTo, false, true)
		bench(kind+"/without/again", lockedTo, false, false)
		bench(kind+"/with/new_workspace", lockedTo, true, true)
		bench(kind+"/with/again", lockedTo, true, false)
	}
	b.Run("hash", func(b *testing.B) {
		for b.Loop() {
			if _, err := hashPackage(s.path(providertest.Version)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
