package agent

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/durable"
)

// maxHostIdentity is the longest host identity that the database takes, in characters.
const maxHostIdentity = 300

// hostIdentity is where an agent says that it is: its machine's name and its data
// directory. An agent with the same instance and another host identity has a copy
// of that directory. It cannot know what the original still runs, for locks are
// not copied: the database refuses it while the original is heard of, and does
// not let it end the original's claims after that.
//
// A container that takes over another's volume has another name and no copy. Who
// holds the very lock that the last agent held, on the same kernel, knows that
// nobody else does, and keeps that one's identity.
func hostIdentity(d *dataDir) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find this machine's name: %w", err)
	}
	identity := host + ":" + d.root
	if len(identity) > maxHostIdentity {
		identity = fmt.Sprintf("%s:%x", host, sha256.Sum256([]byte(d.root)))
	}
	lock := lockID(d)
	if lock == "" {
		return identity, nil
	}
	if last, ok := lastHostIdentity(d, lock); ok {
		return last, nil
	}
	// Without the file the next agent is taken for a copy, at worst: no reason not
	// to start on a full disk.
	_ = durable.WriteFile(d.path("place"), []byte(lock+"\n"+identity+"\n"))
	return identity, nil
}

// lockID tells the lock that this agent holds from all others of this kernel, a
// copy's among them: while somebody holds it, no other file has its number. It is
// empty where that cannot be told.
func lockID(d *dataDir) string {
	kernel := dirlock.Kernel()
	if kernel == "" {
		return ""
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(d.lock.File().Fd()), &stat); err != nil {
		return ""
	}
	return fmt.Sprintf("%s %d %d", kernel, stat.Dev, stat.Ino)
}

// lastHostIdentity is that of the last agent, if that held this lock.
func lastHostIdentity(d *dataDir, lock string) (string, bool) {
	content, err := readFile(d.path("place"))
	if err != nil {
		return "", false
	}
	held, identity, _ := strings.Cut(strings.TrimSuffix(string(content), "\n"), "\n")
	host, directory, both := strings.Cut(identity, ":")
	if held != lock || !both || host == "" || directory == "" || len(identity) > maxHostIdentity || !utf8.ValidString(identity) || strings.ContainsFunc(identity, unicode.IsControl) {
		return "", false
	}
	return identity, true
}

// uptime is for how many seconds the machine has been up, its sleep included; nil where
// that is not told. Clocks that are set do not change it.
func uptime() *float64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return nil
	}
	seconds := time.Duration(now.Nano()).Seconds()
	return &seconds
}
