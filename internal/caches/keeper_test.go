package caches

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// shelf is a cache of plain directories.
type shelf struct {
	dir      string
	kind     string
	busy     string // the name of one that is in use
	outdated string
	failing  string
	removed  []string
}

func (s *shelf) Kind() string { return s.kind }

func (s *shelf) Items() (items []Item, err error) {
	entries, err := os.ReadDir(s.dir)
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return nil, err
		}
		items = append(items, Item{
			Path: filepath.Join(s.dir, entry.Name()), Used: info.ModTime(),
			Busy: entry.Name() == s.busy, Outdated: entry.Name() == s.outdated,
		})
	}
	return items, err
}

func (s *shelf) Remove(_ context.Context, item Item) (bool, error) {
	name := filepath.Base(item.Path)
	if name == s.failing {
		return false, errors.New("not today")
	}
	s.removed = append(s.removed, name)
	return true, os.RemoveAll(item.Path)
}

func (s *shelf) Sweep(context.Context) error { return nil }

// put makes a directory of some MiB that was used so long ago.
func (s *shelf) put(t *testing.T, name string, size int, ago time.Duration) {
	t.Helper()
	dir := filepath.Join(s.dir, name)
	err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "below"), 0o700),
		os.WriteFile(filepath.Join(dir, "below", "file"), make([]byte, size*mib), 0o600),
		os.Chtimes(dir, time.Time{}, time.Now().Add(-ago)))
	if err != nil {
		t.Fatal(err)
	}
}

// room is a Keeper of two shelves, each with things of 1 MiB by their age in
// hours.
func room(t *testing.T, limits Limits) (*Keeper, *shelf, *shelf) {
	t.Helper()
	root := t.TempDir()
	left, right := &shelf{dir: filepath.Join(root, "left"), kind: "left"}, &shelf{dir: filepath.Join(root, "right"), kind: "right"}
	for hours := range 6 {
		[]*shelf{left, right}[hours%2].put(t, fmt.Sprint(hours), 1, time.Duration(hours)*time.Hour)
	}
	return NewKeeper(root, limits, left, right), left, right
}

func pass(t *testing.T, k *Keeper) Pass {
	t.Helper()
	p, err := k.Pass(t.Context())
	if err != nil {
		t.Fatalf("Pass() error = %v", err)
	}
	return p
}

func TestWhatWasUsedLongestAgoGoesFirst(t *testing.T) {
	t.Parallel()
	// Directories take some as well.
	k, left, right := room(t, Limits{Most: 3*mib + mib/2})
	p := pass(t, k)
	if !slices.Equal(left.removed, []string{"4"}) || !slices.Equal(right.removed, []string{"5", "3"}) {
		t.Errorf("removed %q and %q, want 5, 4 and 3 in that order", left.removed, right.removed)
	}
	var got []string
	for _, r := range p.Removed {
		got = append(got, fmt.Sprint(r.Kind, " ", r.Why, " ", r.Items, " ", r.Bytes/mib))
	}
	if want := []string{"right over the limit 2 2", "left over the limit 1 1"}; !slices.Equal(got, want) {
		t.Errorf("Removed = %q, want %q", got, want)
	}
	for kind, want := range map[string]int64{"left": 2, "right": 1} {
		if got := p.Bytes[kind] / mib; got != want {
			t.Errorf("%s takes %d MiB, want %d", kind, got, want)
		}
	}
	if p.Over != 0 || p.Total() > 3*mib+mib/2 {
		t.Errorf("Total() = %d, Over = %d, want it within the limit", p.Total(), p.Over)
	}
	if again := pass(t, k); len(again.Removed) > 0 || !maps.Equal(again.Bytes, p.Bytes) {
		t.Errorf("a second pass = %+v, want nothing removed", again)
	}
}

func TestNothingIsRemovedThatMayBeWanted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limits Limits
		set    func(left, right *shelf)
		left   []string // what stays of 0, 2, 4
		right  []string // what stays of 1, 3, 5
		over   bool
		err    string
	}{
		"without limits":      {Limits{}, nil, []string{"0", "2", "4"}, []string{"1", "3", "5"}, false, ""},
		"within the limit":    {Limits{Most: 7 * mib}, nil, []string{"0", "2", "4"}, []string{"1", "3", "5"}, false, ""},
		"used a while ago":    {Limits{Most: 1, Keep: 150 * time.Minute}, nil, []string{"0", "2"}, []string{"1"}, true, ""},
		"in use":              {Limits{Most: 1}, func(_, right *shelf) { right.busy = "5" }, nil, []string{"5"}, false, ""},
		"outdated":            {Limits{}, func(left, _ *shelf) { left.outdated = "2" }, []string{"0", "4"}, []string{"1", "3", "5"}, false, ""},
		"outdated and in use": {Limits{}, func(left, _ *shelf) { left.outdated, left.busy = "2", "2" }, []string{"0", "2", "4"}, []string{"1", "3", "5"}, false, ""},
		"outdated too soon":   {Limits{Keep: 3 * time.Hour}, func(left, _ *shelf) { left.outdated = "2" }, []string{"0", "2", "4"}, []string{"1", "3", "5"}, false, ""},
		"cannot be removed":   {Limits{Most: 1}, func(_, right *shelf) { right.failing = "5" }, nil, []string{"5"}, true, "not today"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, left, right := room(t, c.limits)
			if c.set != nil {
				c.set(left, right)
			}
			p, err := k.Pass(t.Context())
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("Pass() error = %v, want %q", err, c.err)
			}
			if got := names(t, left.dir); !slices.Equal(got, c.left) {
				t.Errorf("left holds %q, want %q", got, c.left)
			}
			if got := names(t, right.dir); !slices.Equal(got, c.right) {
				t.Errorf("right holds %q, want %q", got, c.right)
			}
			if p.Over > 0 != c.over {
				t.Errorf("Over = %d, want it over the limit: %v", p.Over, c.over)
			}
		})
	}
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// A full disk has caches removed whatever their limit, one by one until there is
// room, and none that would make none.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limits Limits
		free   Free
		left   []string
		right  []string
	}{
		"full":             {Limits{MinFree: 10 * mib}, Free{Bytes: 7*mib + mib/2}, []string{"0", "2"}, []string{"1"}},
		"few inodes":       {Limits{MinFree: 10 * mib}, Free{Bytes: 100 * mib, FewInodes: true}, []string{}, []string{}},
		"room enough":      {Limits{MinFree: 10 * mib}, Free{Bytes: 10 * mib}, []string{"0", "2", "4"}, []string{"1", "3", "5"}},
		"nobody minds":     {Limits{}, Free{}, []string{"0", "2", "4"}, []string{"1", "3", "5"}},
		"used a while ago": {Limits{MinFree: 10 * mib, Keep: 210 * time.Minute}, Free{Bytes: 0}, []string{"0", "2"}, []string{"1", "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, left, right := room(t, c.limits)
			k.free = func(string) (Free, error) {
				gone := int64(len(left.removed) + len(right.removed))
				return Free{Bytes: c.free.Bytes + gone*mib, FewInodes: c.free.FewInodes}, nil
			}
			p := pass(t, k)
			if got := names(t, left.dir); !slices.Equal(got, c.left) && len(got)+len(c.left) > 0 {
				t.Errorf("left holds %q, want %q", got, c.left)
			}
			if got := names(t, right.dir); !slices.Equal(got, c.right) && len(got)+len(c.right) > 0 {
				t.Errorf("right holds %q, want %q", got, c.right)
			}
			for _, r := range p.Removed {
				if r.Why != DiskFull {
					t.Errorf("Removed = %+v, want it said that the disk is full", r)
				}
			}
		})
	}
}

func TestWhatIsOnAnotherDiskMakesNoRoom(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("another disk is a tmpfs, and only root can mount one")
	}
	k, left, right := room(t, Limits{MinFree: 1})
	k.free = func(string) (Free, error) { return Free{}, nil }
	elsewhere := &shelf{dir: filepath.Join(k.root, "elsewhere"), kind: "elsewhere"}
	if err := errors.Join(os.Mkdir(elsewhere.dir, 0o700), unix.Mount("tmpfs", elsewhere.dir, "tmpfs", 0, "size=8m")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(elsewhere.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	elsewhere.put(t, "old", 1, 100*time.Hour)
	k.caches = append(k.caches, elsewhere)
	if pass(t, k); elsewhere.removed != nil || len(left.removed)+len(right.removed) != 6 {
		t.Errorf("removed %q, %q and of another disk %q, want all and nothing", left.removed, right.removed, elsewhere.removed)
	}
}

// A template may have set the time of what it can write to.
func TestATimeToComeCountsAsNone(t *testing.T) {
	t.Parallel()
	k, left, _ := room(t, Limits{Most: 6*mib + mib/2, Keep: time.Minute})
	left.put(t, "to come", 1, -100*time.Hour)
	if pass(t, k); !slices.Equal(left.removed, []string{"to come"}) {
		t.Errorf("removed %q, want what will have been used", left.removed)
	}
}

// What was used has its size looked at again, and nothing else.
func TestSizesAreRemembered(t *testing.T) {
	t.Parallel()
	k, left, _ := room(t, Limits{})
	before := pass(t, k)
	grow := func(name string, used time.Time) {
		t.Helper()
		dir := filepath.Join(left.dir, name)
		err := errors.Join(os.WriteFile(filepath.Join(dir, "below", "more"), make([]byte, mib), 0o600), os.Chtimes(dir, time.Time{}, used))
		if err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(left.dir, "2"))
	if err != nil {
		t.Fatal(err)
	}
	grow("2", info.ModTime())
	left.busy = "4"
	grow("4", time.Now())
	if now := pass(t, k); now.Bytes["left"] != before.Bytes["left"] {
		t.Errorf("left takes %d after %d, want what has not been used, and what is in use, not checked", now.Bytes["left"], before.Bytes["left"])
	}
	left.busy = ""
	grow("2", time.Now())
	if now := pass(t, k); now.Bytes["left"] < before.Bytes["left"]+2*mib {
		t.Errorf("left takes %d after %d, want 2 MiB more", now.Bytes["left"], before.Bytes["left"])
	}
}

func TestPassEndsWithItsContext(t *testing.T) {
	t.Parallel()
	k, left, right := room(t, Limits{Most: 1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Pass(ctx); !errors.Is(err, context.Canceled) || left.removed != nil || right.removed != nil {
		t.Errorf("Pass(cancelled) = %v and removed %q and %q, want nothing removed", err, left.removed, right.removed)
	}
}
