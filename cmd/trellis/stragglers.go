//go:build linux

package main

import (
	"context"
	"os"
	"time"

	"github.com/tendril-run/tendril/internal/process"
)

const (
	// stragglerGrace is how long processes that outlived their agent may take:
	// a run that has lost its agent interrupts its engine and waits for it.
	stragglerGrace = 40 * time.Second
	// stragglerLook is how often they are looked for.
	stragglerLook = 100 * time.Millisecond
	// killLimit is how long killed ones may take to be gone.
	killLimit = 5 * time.Second
)

// endStragglers returns when no process lives that we, or something we
// started, started: usually at once.
func endStragglers() error {
	tick := time.NewTicker(stragglerLook)
	defer tick.Stop()
	for deadline := time.Now().Add(stragglerGrace); time.Now().Before(deadline); <-tick.C {
		left, err := process.Descendants(os.Getpid())
		if err != nil {
			return err
		}
		living := false
		for _, p := range left {
			living = living || !p.Zombie
		}
		if !living {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	return process.KillDescendants(ctx, nil)
}
