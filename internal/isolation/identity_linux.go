package isolation

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/process"
)

// IDs are the two uids of one run.
type IDs struct {
	Cache int // owns the caches that all runs share
	Run   int // owns the run's files, and is what its templates run as
}

// String is what ParseIDs reads.
func (i IDs) String() string { return fmt.Sprintf("%d:%d", i.Cache, i.Run) }

// ParseIDs reads CACHE:RUN. None of the two can be root.
func ParseIDs(text string) (ids IDs, err error) {
	cache, run, found := strings.Cut(text, ":")
	if ids.Cache, err = strconv.Atoi(cache); err == nil {
		ids.Run, err = strconv.Atoi(run)
	}
	if err != nil || !found || ids.Cache <= 0 || ids.Run <= 0 || ids.Cache == ids.Run {
		return IDs{}, fmt.Errorf("%q is not two uids, such as 60706:60707", text)
	}
	return ids, nil
}

// Identity is who this process is: the run's uid, with that of the caches at
// hand until Settle. A nil Identity is an ordinary user, for whom nothing here
// does anything.
//
// Both are unprivileged, and the kernel lets a process change between the ones
// it has, so root is needed for the first step alone. What it starts has the
// uid of the moment and no other: execve makes that the saved one.
type Identity struct {
	ids     IDs
	settled bool
	depth   int // of AsCache
}

// Drop gives root up for good. It is the first thing that a process does which
// root started for a run. The environment and the descriptors stay.
func Drop(ids IDs) (*Identity, error) {
	syscall.Umask(0o022)
	// The group is the run's all along, so the run reads what the caches' uid
	// makes for its group, and nobody else does.
	err := errors.Join(
		syscall.Setgroups(nil),
		syscall.Setresgid(ids.Run, ids.Run, ids.Run),
		syscall.Setresuid(ids.Run, ids.Run, ids.Cache),
	)
	if err != nil {
		return nil, fmt.Errorf("become the unprivileged uid %d: %w", ids.Run, err)
	}
	// Securebits can have the kernel leave capabilities with an ordinary uid.
	data, err := capabilities()
	if err != nil {
		return nil, err
	}
	if data[0].Permitted|data[1].Permitted != 0 {
		return nil, fmt.Errorf("the uid %d has capabilities left (%#x %#x): the agent was started with securebits that keep them", ids.Run, data[1].Permitted, data[0].Permitted)
	}
	forgetKeys()
	// Message queues outlive their makers, and where they are mounted nowhere
	// they cannot be listed.
	if err := syscall.Setrlimit(unix.RLIMIT_MSGQUEUE, &syscall.Rlimit{}); err != nil {
		return nil, fmt.Errorf("forbid message queues: %w", err)
	}
	return &Identity{ids: ids}, process.Undumpable() // which a change of the uid may end
}

// forgetKeys empties the keyrings that a uid keeps without any process. Only it
// gets at them, so this is done by each run for the one before.
func forgetKeys() {
	// Kernels and containers without keyrings say no, and then there are none.
	for _, ring := range []int{unix.KEY_SPEC_USER_KEYRING, unix.KEY_SPEC_USER_SESSION_KEYRING} {
		_, _ = unix.KeyctlInt(unix.KEYCTL_CLEAR, ring, 0, 0, 0)
	}
	if persistent, err := unix.KeyctlInt(unix.KEYCTL_GET_PERSISTENT, -1, unix.KEY_SPEC_PROCESS_KEYRING, 0, 0); err == nil {
		_, _ = unix.KeyctlInt(unix.KEYCTL_CLEAR, persistent, 0, 0, 0)
	}
}

func capabilities() (data [2]unix.CapUserData, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&header, &data[0]); err != nil {
		return data, fmt.Errorf("look which capabilities this process has: %w", err)
	}
	return data, nil
}

// Capable is an error if this process is root in name only, as in a container
// that has been denied its capabilities.
func Capable() error {
	data, err := capabilities()
	if err != nil {
		return err
	}
	var missing []string
	for _, c := range []struct {
		bit  int
		name string
	}{
		{unix.CAP_CHOWN, "CAP_CHOWN"}, {unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"}, {unix.CAP_FOWNER, "CAP_FOWNER"},
		{unix.CAP_KILL, "CAP_KILL"}, {unix.CAP_SETGID, "CAP_SETGID"}, {unix.CAP_SETUID, "CAP_SETUID"},
	} {
		if data[0].Effective&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("this root may not give runs uids of their own: it lacks %s. Give it that, start the agent as an ordinary user, or let runs be root (run.uids = \"off\")",
		strings.Join(missing, ", "))
}

// errSettled is met where the caches are to be written and cannot be any more.
var errSettled = errors.New("templates run already, so this run does not write the caches any more")

// AsCache does something as the owner of the caches. It concerns the whole
// process, so only the goroutine that carries the run out may call it.
func (i *Identity) AsCache(do func() error) error {
	if i == nil {
		return do()
	}
	if i.settled {
		return errSettled
	}
	if i.depth++; i.depth == 1 {
		if err := i.become(i.ids.Cache); err != nil {
			i.depth--
			return err
		}
	}
	defer func() {
		if i.depth--; i.depth == 0 {
			if err := i.become(i.ids.Run); err != nil {
				panic(err) // nothing may go on with the wrong uid
			}
		}
	}()
	return do()
}

// Settled reports whether only the run's uid is left, as it always is for an
// ordinary user.
func (i *Identity) Settled() bool { return i == nil || i.settled }

// Settle gives up what the caches' uid may do, before the first template runs.
func (i *Identity) Settle() error {
	if i.Settled() {
		return nil
	}
	if err := syscall.Setresuid(i.ids.Run, i.ids.Run, i.ids.Run); err != nil {
		return fmt.Errorf("give up the uid %d: %w", i.ids.Cache, err)
	}
	i.settled = true
	return process.Undumpable()
}

func (i *Identity) become(uid int) error {
	if err := errors.Join(syscall.Setresuid(-1, uid, -1), process.Undumpable()); err != nil {
		return fmt.Errorf("become uid %d: %w", uid, err)
	}
	return nil
}

// CanRun is an error if this process's uid may not execute the program.
func (i *Identity) CanRun(program string) error {
	if i == nil {
		return nil
	}
	if err := unix.Access(program, unix.X_OK); err != nil {
		return &os.PathError{Op: fmt.Sprintf("execute as uid %d", i.ids.Run), Path: program, Err: err}
	}
	return nil
}

// Confine is called on the thread that is about to start a program of a
// template's choosing, and ends with it: what is started gets no more rights by
// a set-uid program, and none of the keys of root's session. For an ordinary
// user it does nothing: there sudo and the like may be meant.
func (i *Identity) Confine() error {
	if i == nil {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid set-uid programs: %w", err)
	}
	// Kernels and containers without keyrings say no; there is nothing to lose then.
	_, _ = unix.KeyctlJoinSessionKeyring("")
	return nil
}
