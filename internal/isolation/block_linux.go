package isolation

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// MaxRuns is how many uids for runs a Block has.
	MaxRuns = 64
	size    = 1 + MaxRuns
	// The uids that neither distributions nor systemd give to anybody: above
	// those for people (60000) and systemd-homed (to 60705), below those of
	// dynamic users (from 61184), and within the 65536 that a container in a
	// user namespace has.
	firstUID = 60706
	lastUID  = 61183
	// Where there are more ids than that: what systemd has no use for either,
	// above the ranges of containers.
	firstHighUID = 1879048192
	highBlocks   = 64
)

// LockDir is where the agents of a machine tell each other which uids they have.
const LockDir = "/run/tendril"

// Block is a range of uids that belongs to one agent.
type Block struct {
	// Cache owns the caches; Cache+1 to Cache+MaxRuns are for runs.
	Cache int
	// Lock is held as long as any process has it open, so runs that outlive
	// their agent get it as well.
	Lock *os.File
	held bool
}

// Has reports whether a uid is one of those for runs.
func (b *Block) Has(uid int) bool { return uid > b.Cache && uid <= b.Cache+MaxRuns }

// Take takes a block: that which begins with first, or, if first is 0, one that
// is free, preferably the one that had the caches before. owner names the agent;
// what a run of its own still holds is free for it. lockDir is LockDir.
func Take(lockDir, owner string, first, before int) (*Block, error) {
	if err := os.MkdirAll(lockDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory by which agents tell each other their uids: %w. Let there be a tmpfs at /run, or let runs be root (run.uids = \"off\")", err)
	}
	if first == 0 && !mapped(lastUID) {
		return nil, fmt.Errorf("no uids for runs: this user namespace has none from %d to %d. Give it 65536, or let runs be root (run.uids = \"off\")", firstUID, lastUID)
	}
	candidates := []int{first}
	if first == 0 {
		candidates = automatic(before)
	}
	var refused []error
	for _, cache := range candidates {
		b := &Block{Cache: cache}
		err := b.unused()
		if err == nil {
			err = b.lock(lockDir, owner)
		}
		if err == nil {
			if err = b.alone(lockDir, owner); err == nil {
				return b, nil
			}
			err = errors.Join(err, b.Lock.Close())
		}
		refused = append(refused, err)
	}
	return nil, fmt.Errorf("no uids for runs: %w. Choose %d free ones, by the first of them, in run.uids", errors.Join(refused...), size)
}

// automatic lists where blocks may begin, in the order in which they are tried.
func automatic(before int) (all []int) {
	for cache := firstUID; cache+size-1 <= lastUID; cache += size {
		all = append(all, cache)
	}
	if mapped(firstHighUID + highBlocks*size) {
		for n := range highBlocks {
			all = append(all, firstHighUID+n*size)
		}
	}
	if i := slices.Index(all, before); i > 0 {
		all = append([]int{before}, slices.Delete(all, i, i+1)...)
	}
	return all
}

// mapped reports whether this process's user namespace has an id.
func mapped(id int) bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		var inside, outside, count int
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err == nil && inside <= id && id < inside+count {
			return true
		}
	}
	return false
}

// unused is an error if somebody on this machine has one of the ids, or nobody can.
func (b *Block) unused() error {
	if last := b.Cache + size - 1; !mapped(b.Cache) || !mapped(last) {
		return fmt.Errorf("this user namespace has not all of the uids from %d to %d", b.Cache, last)
	}
	for id := b.Cache; id < b.Cache+size; id++ {
		text := strconv.Itoa(id)
		if u, err := user.LookupId(text); err == nil {
			return fmt.Errorf("uid %d is that of the user %s", id, u.Username)
		}
		if g, err := user.LookupGroupId(text); err == nil {
			return fmt.Errorf("gid %d is that of the group %s", id, g.Name)
		}
	}
	return nil
}

func (b *Block) lock(dir, owner string) error {
	path := filepath.Join(dir, fmt.Sprintf("uids-%d.lock", b.Cache))
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("lock the uids from %d on: %w", b.Cache, err)
	}
	b.Lock = file
	if b.Hold() {
		if err := errors.Join(file.Truncate(0), writeAt(file, owner)); err != nil {
			return errors.Join(fmt.Errorf("lock the uids from %d on: %w", b.Cache, err), file.Close())
		}
		return nil
	}
	if holder, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(holder)) == owner {
		return nil // a run of ours that outlived us; Hold gets it later
	}
	return errors.Join(fmt.Errorf("another agent of this machine has the uids from %d on", b.Cache), file.Close())
}

// alone is an error if another agent has a block that begins elsewhere and shares
// ids with this one, which is locked by now: of two that do this at once, none
// finds itself alone, or only one does.
func (b *Block) alone(dir, owner string) error {
	locks, err := filepath.Glob(filepath.Join(dir, "uids-*.lock"))
	if err != nil {
		return err
	}
	for _, path := range locks {
		var first int
		if _, err := fmt.Sscanf(filepath.Base(path), "uids-%d.lock", &first); err != nil || first == b.Cache || first <= b.Cache-size || first >= b.Cache+size {
			continue
		}
		file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fmt.Errorf("look who has the uids from %d on: %w", first, err)
		}
		free := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil
		_ = file.Close() // nothing was written
		if holder, err := os.ReadFile(path); !free && (err != nil || strings.TrimSpace(string(holder)) != owner) {
			return fmt.Errorf("another agent of this machine has the uids from %d on, some of which are among those from %d on", first, b.Cache)
		}
	}
	return nil
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text+"\n"), 0)
	return err
}

// Hold takes the lock if a run of an earlier start has had it until now.
func (b *Block) Hold() bool {
	if !b.held {
		b.held = unix.Flock(int(b.Lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	}
	return b.held
}

// Close gives the uids back.
func (b *Block) Close() error { return b.Lock.Close() }
