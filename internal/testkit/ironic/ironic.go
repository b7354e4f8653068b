// Package ironic gives tests a real OpenStack Ironic for as long as they run; package localironic has
// what it can. It needs what scripts/metal-deps.sh installs.
//
// It must not know any driver.
package ironic

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/localironic"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

type (
	// Options say how Ironic runs.
	Options = localironic.Options
	// Ironic is one that runs.
	Ironic = localironic.Ironic
	// Node is a server as Ironic has it.
	Node = localironic.Node
	// StatusError is an answer that is no success.
	StatusError = localironic.StatusError
)

// Start starts an Ironic without nodes for the length of a test.
func Start(t testing.TB, options Options) *Ironic {
	t.Helper()
	dir, err := os.MkdirTemp("", "tendril-ironic-") // a test's own may be too long for what is made in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := patience.Context(t.Context(), 2*time.Minute)
	defer cancel()
	i, err := Run(ctx, dir, options)
	if i != nil {
		t.Cleanup(i.Kill)
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// Run starts an Ironic whose files are in dir. The caller ends it by Kill, also where there is an
// error.
func Run(ctx context.Context, dir string, options Options) (*Ironic, error) {
	return localironic.Run(ctx, dir, options)
}
