package isolation

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// roleEnv makes the test binary a process of its own: a drop of root cannot be
// taken back.
const roleEnv = "TENDRIL_TEST_ROLE"

// onMainThread is a role that begins on the main thread, where an init is.
const onMainThread = "leaves the main thread"

func init() {
	if os.Getenv(roleEnv) == onMainThread {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := roles()[role](); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// play runs a role in a directory that is everybody's.
func play(t *testing.T, role, dir string) {
	t.Helper()
	needRoot(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir = dir
	cmd.Env = []string{roleEnv + "=" + role}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", role, err, out)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root has uids to give; the tests of CI run as root")
	}
}

func everybodys(t *testing.T) string {
	t.Helper()
	dir := pgtest.Dir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// testIDs are those of no agent that another test runs, which would end whatever
// runs as one of its own.
var testIDs = IDs{Cache: 59985, Run: 59986}

func roles() map[string]func() error {
	return map[string]func() error{
		"nobody acts as another": func() error {
			if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(65534, 65534, 65534), syscall.Setresuid(65534, 65534, 65534)); err != nil {
				return err
			}
			if err := WithFilesOf(59987, func() error { return os.WriteFile("done", nil, 0o600) }); err == nil {
				return errors.New("it may act as another uid")
			}
			if _, err := os.Lstat("done"); err == nil {
				return errors.New("it was done all the same")
			}
			return nil
		},
		onMainThread: func() error {
			runtime.UnlockOSThread() // what is started here would begin on it
			for range 20 {
				if err := WithFilesOf(59987, func() error {
					if unix.Gettid() == unix.Getpid() {
						return errors.New("the main thread has other rights now")
					}
					return nil
				}); err != nil {
					return err
				}
			}
			return nil
		},
		"acts without its groups": func() error {
			if err := errors.Join(syscall.Setgroups([]int{0}), os.WriteFile("groups", nil, 0o600), os.Chown("groups", 0, 0), os.Chmod("groups", 0o660)); err != nil {
				return err
			}
			return WithFilesOf(59987, func() error {
				if _, err := os.OpenFile("groups", os.O_RDWR, 0); err == nil {
					return errors.New("it has the rights of root's group")
				}
				return nil
			})
		},
		"leaves keys": func() error {
			return errors.Join(syscall.Setresgid(59987, 59987, 59987), syscall.Setresuid(59987, 59987, 59987), eachKeyring(func(ring int) error {
				_, err := unix.AddKey("user", "left", []byte("behind"), ring)
				return err
			}))
		},
		"finds no keys": func() error {
			if _, err := Drop(IDs{Cache: 59985, Run: 59987}); err != nil {
				return err
			}
			return eachKeyring(func(ring int) error {
				if key, err := unix.KeyctlSearch(ring, "user", "left", 0); err == nil {
					return fmt.Errorf("keyring %d has the key %d of an earlier run", ring, key)
				}
				return nil
			})
		},
		"remove": func() error {
			few := &unix.Rlimit{Cur: Deepest + 50, Max: Deepest + 50}
			return errors.Join(unix.Setrlimit(unix.RLIMIT_NOFILE, few), RemoveAll(os.Args[1]))
		},
		"both": func() error {
			id, err := Drop(testIDs)
			if err != nil {
				return err
			}
			err = errors.Join(
				made("run", testIDs.Run),
				id.AsCache(func() error {
					return errors.Join(made("cache", testIDs.Cache), id.AsCache(func() error { return made("nested", testIDs.Cache) }), made("after-nested", testIDs.Cache))
				}),
				made("run-again", testIDs.Run),
			)
			if syscall.Setuid(0) == nil || syscall.Setresuid(-1, 0, -1) == nil {
				err = errors.Join(err, errors.New("root can be had back"))
			}
			// What is started has one uid, in all its forms, and one group.
			out, startErr := exec.Command("/bin/sh", "-c", "grep -E '^(Uid|Gid|Groups|CapPrm)' /proc/self/status").Output()
			got := strings.Join(strings.Fields(string(out)), " ")
			if want := "Uid: 59986 59986 59986 59986 Gid: 59986 59986 59986 59986 Groups: CapPrm: 0000000000000000"; startErr != nil || got != want {
				err = errors.Join(err, startErr, fmt.Errorf("a child has %s, want %s", got, want))
			}
			return err
		},
		"root in name": func() error {
			runtime.LockOSThread() // capabilities are a thread's
			if err := Capable(); err != nil {
				return err
			}
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			data, err := capabilities()
			if err != nil {
				return err
			}
			data[0].Effective &^= 1 << unix.CAP_SETUID
			if err := unix.Capset(&header, &data[0]); err != nil {
				return err
			}
			if err := Capable(); err == nil || !strings.Contains(err.Error(), "lacks CAP_SETUID.") {
				return fmt.Errorf("Capable() without CAP_SETUID = %w, want an error that names it", err)
			}
			return nil
		},
		"settled": func() error {
			id, err := Drop(testIDs)
			if err != nil {
				return err
			}
			if err := id.Settle(); err != nil {
				return err
			}
			if err := id.AsCache(func() error { return nil }); !errors.Is(err, errSettled) {
				return fmt.Errorf("AsCache() after Settle() = %w, want errSettled", err)
			}
			if syscall.Setresuid(-1, testIDs.Cache, -1) == nil {
				return errors.New("the caches' uid can be had back")
			}
			var queues unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_MSGQUEUE, &queues); err != nil || queues.Max != 0 {
				return fmt.Errorf("message queues of %d bytes may be made, %w, want none", queues.Max, err)
			}
			return made("run", testIDs.Run)
		},
		"leaves": func() error {
			if _, err := Drop(testIDs); err != nil {
				return err
			}
			for _, dir := range []string{"/tmp", "/dev/shm"} {
				if err := os.MkdirAll(dir+"/left-by-59986/deep", 0o700); err != nil {
					return err
				}
			}
			_, _, errno := unix.Syscall(unix.SYS_SHMGET, 0x7e4d, 4096, 0o600|unix.IPC_CREAT)
			if errno != 0 {
				return errno
			}
			return nil
		},
	}
}

func made(name string, want int) error {
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		return err
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(name, &stat); err != nil {
		return err
	}
	if int(stat.Uid) != want || int(stat.Gid) != testIDs.Run {
		return fmt.Errorf("the file %s belongs to %d:%d, want %d:%d", name, stat.Uid, stat.Gid, want, testIDs.Run)
	}
	return nil
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	play(t, "both", everybodys(t))
	play(t, "settled", everybodys(t))
	play(t, "root in name", everybodys(t))
}

func eachKeyring(do func(ring int) error) error {
	persistent, err := unix.KeyctlInt(unix.KEYCTL_GET_PERSISTENT, -1, unix.KEY_SPEC_PROCESS_KEYRING, 0, 0)
	return errors.Join(err, do(unix.KEY_SPEC_USER_KEYRING), do(unix.KEY_SPEC_USER_SESSION_KEYRING), do(persistent))
}

// The kernel keeps a uid's keys when none of its processes lives.
func TestKeysAreForgotten(t *testing.T) {
	t.Parallel()
	needRoot(t)
	if _, err := unix.KeyctlInt(unix.KEYCTL_GET_PERSISTENT, -1, unix.KEY_SPEC_PROCESS_KEYRING, 0, 0); err != nil {
		t.Skipf("there are no keyrings here: %v", err)
	}
	dir := everybodys(t)
	play(t, "leaves keys", dir)
	play(t, "finds no keys", dir)
}

func TestForget(t *testing.T) {
	play(t, "leaves", everybodys(t))
	ours := func(uid int) bool { return uid == testIDs.Run }
	left := func() (there []string) {
		for _, path := range []string{"/tmp/left-by-59986", "/dev/shm/left-by-59986"} {
			if _, err := os.Lstat(path); err == nil {
				there = append(there, path)
			}
		}
		ids, err := objects("/proc/sysvipc/shm", "shmid", ours)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			there = append(there, fmt.Sprint("shm ", id))
		}
		return there
	}
	if got := left(); len(got) != 3 {
		t.Fatalf("before Forget() there are %v, want all three", got)
	}
	if err := Forget(ours); err != nil {
		t.Errorf("Forget() = %v", err)
	}
	if got := left(); len(got) != 0 {
		t.Errorf("after Forget() there are %v, want none", got)
	}
}

func TestParseIDs(t *testing.T) {
	t.Parallel()
	if got, err := ParseIDs(testIDs.String()); got != testIDs || err != nil {
		t.Errorf("ParseIDs(%s) = %v, %v, want the same", testIDs, got, err)
	}
	for _, text := range []string{"", "1", "0:1", "1:0", "1:1", "1:2:3", "a:b", "-1:2"} {
		if got, err := ParseIDs(text); err == nil {
			t.Errorf("ParseIDs(%q) = %v, want an error", text, got)
		}
	}
}

// A directory changes hands; what another user has a second name for does not.
func TestHandOver(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	work, roots := filepath.Join(dir, "work"), filepath.Join(dir, "shadow")
	err := errors.Join(
		os.MkdirAll(filepath.Join(work, "data", "deep"), 0o700),
		os.WriteFile(filepath.Join(work, "data", "file"), nil, 0o600),
		os.WriteFile(roots, nil, 0o600),
		os.Link(roots, filepath.Join(work, "hard")),
		os.Symlink(roots, filepath.Join(work, "soft")),
		os.Symlink(dir, filepath.Join(work, "data", "up")),
	)
	if err != nil {
		t.Fatal(err)
	}
	b := &Block{Cache: testIDs.Cache}
	for _, uid := range []int{59986, 59987} {
		if uid == 59987 { // as if its first name were gone by now
			if err := os.WriteFile(filepath.Join(work, "roots"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(b.HandOver(work, uid, 0o750), Shut(work)); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string][2]int{
			"work": {0, uid}, "work/data": {uid, uid}, "work/data/deep": {uid, uid}, "work/data/file": {uid, uid},
			"work/soft": {uid, uid}, "work/data/up": {uid, uid}, "shadow": {0, 0}, ".": {0, 0},
		} {
			var stat syscall.Stat_t
			if err := syscall.Lstat(filepath.Join(dir, name), &stat); err != nil {
				t.Fatal(err)
			}
			if got := [2]int{int(stat.Uid), int(stat.Gid)}; got != want {
				t.Errorf("after HandOver(%d), %s belongs to %v, want %v", uid, name, got, want)
			}
		}
	}
	if info, err := os.Stat(filepath.Join(work, "roots")); err != nil || groupOf(info) != 0 {
		t.Errorf("a file that no run has made is of group %d, want it left alone", groupOf(info))
	}
	if info, err := os.Stat(work); err != nil || info.Mode().Perm() != 0o700 || Group(work) != 59987 {
		t.Errorf("a shut directory is %v of group %d, want 0700 and the last run's", info.Mode(), Group(work))
	}
}

// Two agents do not share uids, and an agent gets along with its own old runs.
func TestTake(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, err := Take(dir, "one", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	two, err := Take(dir, "two", 0, one.Cache)
	if err != nil {
		t.Fatal(err)
	}
	if one.Has(two.Cache) || two.Has(one.Cache) || one.Cache == two.Cache || two.Has(one.Cache+1) {
		t.Errorf("Take() = blocks from %d and %d on, want two that share nothing", one.Cache, two.Cache)
	}
	if _, err := Take(dir, "two", one.Cache, -1); err == nil || !strings.Contains(err.Error(), "another agent") || !strings.Contains(err.Error(), "run.uids") {
		t.Errorf("Take(one's) = %v, want an error that says whose they are and what to do", err)
	}
	if _, err := Take(dir, "two", one.Cache-1, -1); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("Take(one's but one) = %v, want an error that says whose they are", err)
	}
	again, err := Take(dir, "one", 0, one.Cache) // while a run of the earlier start has the lock
	if err != nil || again.Cache != one.Cache || again.Hold() {
		t.Fatalf("Take() of the same agent = %+v, %v, want its block without the lock", again, err)
	}
	_ = one.Close() // only a lock
	// What another test is starting has a copy until it is its own program.
	for limit := patience.Begin(time.Minute); !again.Hold(); {
		if limit.Over() {
			t.Fatal("Hold() = false when the old run has ended, want true")
		}
	}
	if _, err := Take(dir, "three", 1, -1); err == nil { // daemon's, bin's and others'
		t.Error("Take(from 1 on) = nil, want an error: users have them")
	}
	for _, b := range []*Block{two, again} {
		_ = b.Close() // only a lock
	}
}
