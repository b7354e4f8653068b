package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/job"
)

// mostHeld is how many states are listed; the rest are counted.
const mostHeld = 10

// states lists the states that are nowhere but on this agent's disk: those on their way to
// the database, those that an engine could not store, and those that a person must decide
// about.
func (d *doctor) states(context.Context) verdict {
	waiting, unsaved, rejected, err := heldStates(d.Config.DataDir)
	held := slices.Concat(waiting, unsaved, rejected)
	shown := strings.Join(held[:min(len(held), mostHeld)], "; ")
	if more := len(held) - mostHeld; more > 0 {
		shown += fmt.Sprintf("; and %d more", more)
	}
	switch {
	case err != nil:
		return warn("run this as the user that the agent runs as", "what the agent keeps cannot be listed: %v", err)
	case len(rejected) > 0:
		return warn("compare each with the database's (trellis state versions), and bring in what is newer: docs/OPERATIONS.md, What the database refuses",
			"states that only this agent has: %s", shown)
	case len(unsaved) > 0:
		return warn("make the backend work again: the next run in the workspace stores it first. Keep this data directory until then", "states that only this agent has: %s", shown)
	case len(waiting) > 0 && d.agentRuns:
		return ok("on their way to the database: %s", shown)
	case len(waiting) > 0:
		return warn("start the agent: it stores them before anything else. Keep this data directory until then", "states that only this agent has: %s", shown)
	}
	return ok("every state is stored")
}

// heldStates names the states that a data directory has and that may be nowhere else.
func heldStates(dir string) (waiting, unsaved, rejected []string, err error) {
	walk := func(pattern string, add func(path string, info fs.FileInfo)) {
		paths, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are well formed
		for _, path := range paths {
			info, failed := os.Lstat(path)
			if errors.Is(failed, fs.ErrNotExist) {
				continue // stored just now
			}
			if failed != nil {
				err = failed
				continue
			}
			if info.Mode().IsRegular() && info.Size() > 0 {
				add(path, info)
			}
		}
	}
	about := func(info fs.FileInfo) string {
		return fmt.Sprintf("%s, since %s", size(uint64(info.Size())), info.ModTime().UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	for _, name := range []string{"spool", "rejected", "state"} {
		if _, failed := os.ReadDir(filepath.Join(dir, name)); failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			return nil, nil, nil, failed
		}
	}
	walk("spool/*.state[01]", func(path string, info fs.FileInfo) {
		waiting = append(waiting, fmt.Sprintf("%s (%s)", ofRun(strings.TrimSuffix(path, filepath.Ext(path))+".json"), about(info)))
	})
	walk(filepath.Join("state", "*", "errored*"), func(path string, info fs.FileInfo) {
		unsaved = append(unsaved, fmt.Sprintf("workspace %s (%s)", filepath.Base(filepath.Dir(path)), about(info)))
	})
	walk(filepath.Join("work", "*", job.UnsavedState), func(path string, info fs.FileInfo) {
		unsaved = append(unsaved, fmt.Sprintf("workspace %s (%s)", filepath.Base(filepath.Dir(path)), about(info)))
	})
	walk("rejected/*.state.age", func(path string, info fs.FileInfo) {
		rejected = append(rejected, fmt.Sprintf("%s (%s)", path, about(info)))
	})
	return waiting, unsaved, rejected, err
}

// ofRun names the run that a spool's description is of.
func ofRun(path string) string {
	var about struct {
		Number int64  `json:"number"`
		Name   string `json:"workspace_name"`
	}
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &about) != nil || about.Number == 0 {
		return "claim " + strings.TrimSuffix(filepath.Base(path), ".json")
	}
	return fmt.Sprintf("run #%d of workspace %q", about.Number, about.Name)
}
