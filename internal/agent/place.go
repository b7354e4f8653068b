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
)

// maxPlace is the longest place that the database takes, in characters.
const maxPlace = 300

// place is where an agent says that it is: its machine's name and its data
// directory. Whoever comes with the same instance at another place has a copy
// of that directory. It cannot know what the original still runs, for locks are
// not copied: the database refuses it while the original is heard of, and does
// not let it end the original's claims after that.
//
// A container that takes over another's volume has another name and no copy. Who
// holds the very lock that the last agent held, on the same kernel, knows that
// nobody else does, and goes on saying where that one was.
func (d *dataDir) place() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find this machine's name: %w", err)
	}
	place := host + ":" + d.root
	if len(place) > maxPlace {
		place = fmt.Sprintf("%s:%x", host, sha256.Sum256([]byte(d.root)))
	}
	lock := d.lockID()
	if lock == "" {
		return place, nil
	}
	if last, ok := d.lastPlace(lock); ok {
		return last, nil
	}
	// Without the file the next agent is taken for a copy, at worst: no reason not
	// to start on a full disk.
	_ = writeFile(d.path("place"), []byte(lock+"\n"+place+"\n"))
	return place, nil
}

// lockID tells the lock that this agent holds from all others of this kernel, a
// copy's among them: while somebody holds it, no other file has its number. It is
// empty where that cannot be told.
func (d *dataDir) lockID() string {
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

// lastPlace is the place of the last agent, if that held this lock.
func (d *dataDir) lastPlace(lock string) (string, bool) {
	content, err := readFile(d.path("place"))
	if err != nil {
		return "", false
	}
	held, place, _ := strings.Cut(strings.TrimSuffix(string(content), "\n"), "\n")
	host, directory, both := strings.Cut(place, ":")
	if held != lock || !both || host == "" || directory == "" || len(place) > maxPlace || !utf8.ValidString(place) || strings.ContainsFunc(place, unicode.IsControl) {
		return "", false
	}
	return place, true
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
