package executor

import (
	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/source"
	"github.com/tendril-run/tendril/internal/terraform"
)

// SharedCaches are what the runs of an agent fill in the directories that they share.
// The agent keeps them within limits, and does not know what is in them.
func SharedCaches(dirs job.Dirs, engine job.Engine) []caches.Cache {
	shared := []caches.Cache{source.Mirrors{Dir: dirs.Repos}, providers.Packages{Dir: dirs.Providers}}
	if engine.Install { // else nobody would bring one back
		shared = append(shared, terraform.Installed{Dir: dirs.Engines})
	}
	return shared
}
