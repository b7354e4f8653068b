package spool

import (
	"os"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// TestResume tears a spool after each of its bytes.
func TestResume(t *testing.T) {
	t.Parallel()
	content := lineA + lineB + lineC + lineD
	for size := range len(content) + 1 {
		spool := newSpool(t)
		if _, err := spool.WriteString(content[:size]); err != nil {
			t.Fatal(err)
		}
		before := read(t, spool)
		w, err := Resume(spool, Tail{})
		if err != nil {
			t.Fatalf("Resume() = %v", err)
		}
		w.System("the child died")
		if err := w.Update(ended(provision.Failed)); err != nil {
			t.Fatalf("Update() = %v", err)
		}
		closeWriter(t, w)
		after := read(t, spool)
		if len(after) != len(before)+2 {
			t.Fatalf("spool torn at byte %d: %s, then %s", size, shape(before), shape(after))
		}
		if got, want := shape(after[:len(before)]), shape(before); got != want {
			t.Errorf("spool torn at byte %d: first %s, after Resume %s", size, want, got)
		}
		var last, updates int64
		for _, r := range before {
			last, updates = max(last, r.Chunk), max(updates, r.Update)
		}
		line, update := after[len(before)], after[len(before)+1]
		if line.Chunk != last+1 || line.Text != "the child died\n" || update.Update != updates+1 {
			t.Errorf("spool torn at byte %d: %s, then %s", size, shape(before), shape(after))
		}
	}
}

func TestResumeOfAFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f, err := os.OpenFile(newSpool(t).Name(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := Resume(f, Tail{}); err == nil {
		t.Error("Resume() of a file open for writing only = nil, want an error")
	}
}
