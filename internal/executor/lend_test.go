package executor

import (
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/source"
)

// An init that is made up for after a plan gets nothing: by then the template has
// had its chance to leave a process that waits for it.
func TestLendsOnlyBeforeAPlan(t *testing.T) {
	t.Parallel()
	src, err := source.New(source.Options{ReposDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	run := &engineRun{given: given{
		task: &task{}, files: workDir{source: t.TempDir()}, checkout: &checkout{source: src}, gitHelper: []string{"helper"},
	}}
	for reused, want := range map[bool]bool{false: true, true: false} {
		lent := &engineInit{engineRun: run, reused: reused}
		env, done, err := lent.lend(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := slices.ContainsFunc(env, func(entry string) bool { return strings.HasPrefix(entry, "GIT_SSH_COMMAND='helper'") })
		if done(); got != want {
			t.Errorf("lend() after what an earlier init made was reused: %t, gives a way to credentials: %t, want %t", reused, got, want)
		}
	}
}
