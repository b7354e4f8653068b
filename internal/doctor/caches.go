package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/caches"
)

// measureFor bounds how long sizes are added up: a directory may have millions of
// files, or be on a slow file system.
const measureFor = 3 * time.Second

// caches says what the data directory holds, and whether what could be fetched
// again is within its limit.
func (d *doctor) caches(ctx context.Context) verdict {
	dir, limits := d.Config.DataDir, d.Config.Cache.Limits()
	if _, err := os.Stat(dir); err != nil {
		return ok("nothing is kept yet; the limit is %s", limitText(limits.Most))
	}
	measuring, cancel := context.WithTimeout(ctx, measureFor)
	defer cancel()
	sizes, err := caches.Sizes(measuring, dir, nil)
	cached, text := tell(sizes, limits.Most)
	if err != nil {
		text = "at least " + text // too much to look at, or not ours to see
	}
	free, err := caches.FreeAt(dir)
	if err == nil {
		text += fmt.Sprintf("; %s free", size(uint64(free.Bytes)))
	}
	switch waiting := entries(filepath.Join(dir, "rejected")); {
	case waiting > 0:
		return warn("look at what is in rejected/, which the database would not take, and remove it when it is of no more use",
			"files in rejected/ that wait for a person: %d. Kept: %s", waiting, text)
	case limits.Most > 0 && cached > limits.Most:
		return warn("the agent removes what was used longest ago, after a run or within the hour, and never what is in use or was used within cache.keep; raise cache.limit if it stays like this",
			"the caches are over their limit: %s", text)
	case err == nil && limits.Most > 0 && limits.Most-cached > free.Bytes:
		return warn("set cache.limit to less than the disk has room for, or give the data directory a larger one",
			"the disk is full before the caches reach their limit: %s", text)
	}
	return ok("%s", text)
}

// tell adds up what can be fetched again, and says what takes how much.
func tell(sizes map[string]int64, limit int64) (cached int64, text string) {
	var kept, others []string
	for _, kind := range caches.Kinds() {
		part := fmt.Sprintf("%s %s", kind, size(uint64(sizes[kind])))
		if caches.Fetched(kind) {
			cached += sizes[kind]
			kept = append(kept, part)
		} else {
			others = append(others, part)
		}
	}
	return cached, fmt.Sprintf("%s in caches (%s), limit %s; %s",
		size(uint64(cached)), strings.Join(kept, ", "), limitText(limit), strings.Join(others, ", "))
}

func limitText(limit int64) string {
	if limit == 0 {
		return "none"
	}
	return size(uint64(limit))
}

// entries is how many files a directory has that this process may look into.
func entries(dir string) int {
	names, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	return len(names)
}
