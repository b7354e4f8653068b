package terraform

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// stateLock is who holds a state's lock, from the block "Lock Info" that every
// backend prints. The engine has no code for it.
type stateLock struct {
	ID, Path, Operation, Who, Created string
}

var lockField = regexp.MustCompile(`^\s*(ID|Path|Operation|Who|Created):[ \t]*(.*?)\s*$`)

// The http backend puts who asked for the lock where others put who holds it,
// and says no more of the holder than the lock's id.
const httpLocked = "HTTP remote state already locked"

var httpHolder = regexp.MustCompile(httpLocked + `: ID=(\S+)`)

// parseLock returns the holder if d says that the lock is held. A backend that
// cannot lock for another reason has the same summary but no lock id.
func parseLock(d diagnostic) *stateLock {
	summary := strings.ToLower(d.Summary)
	if !strings.Contains(summary, "acquiring the state lock") && !strings.Contains(summary, "error locking state") {
		return nil
	}
	_, block, found := strings.Cut(d.Detail, "Lock Info:")
	if !found {
		return nil
	}
	var lock stateLock
	fields := map[string]*string{
		"ID": &lock.ID, "Path": &lock.Path, "Operation": &lock.Operation, "Who": &lock.Who, "Created": &lock.Created,
	}
	for line := range strings.Lines(block) {
		if m := lockField.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil && *fields[m[1]] == "" {
			*fields[m[1]] = truncate(m[2], 512)
		}
	}
	if strings.Contains(d.Detail, httpLocked) {
		lock = stateLock{}
		if m := httpHolder.FindStringSubmatch(d.Detail); m != nil {
			lock.ID = truncate(m[1], 512)
		}
	}
	if lock.ID == "" {
		return nil
	}
	return &lock
}

func (l stateLock) message(kind, command string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s could not begin: the state is locked by %s", kind, command, orUnknown(l.Who))
	if l.Created != "" {
		fmt.Fprintf(&b, " since %s", l.since())
	}
	if l.Operation != "" {
		fmt.Fprintf(&b, ", for %s", strings.ToLower(strings.TrimPrefix(l.Operation, "OperationType")))
	}
	if l.Path != "" {
		fmt.Fprintf(&b, ", state %s", l.Path)
	}
	fmt.Fprintf(&b, ", lock id %s. If that run is still going, wait for it and try again. "+
		"If it is dead for certain, release the lock with `%s force-unlock %s` and try again.", l.ID, kind, l.ID)
	return b.String()
}

// since is the lock's creation in UTC to the second, or as the engine has it.
func (l stateLock) since() string {
	created, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", l.Created)
	if err != nil {
		return l.Created
	}
	return created.UTC().Format("2006-01-02 15:04:05 UTC")
}

func orUnknown(who string) string {
	if who == "" {
		return "somebody unknown"
	}
	return who
}
