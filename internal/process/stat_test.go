package process

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const tail = " 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 1 0 987654 1000 10 18446744073709551615 0 0"

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line string
		want Info
	}{
		{"42 (sh) S 7 42 40" + tail, Info{PID: 42, Parent: 7, Group: 42, Session: 40, Name: "sh", Started: 987654}},
		{"42 (a) Z (b c) R 7 42 40" + tail, Info{PID: 42, Parent: 7, Group: 42, Session: 40, Name: "a) Z (b c", Started: 987654}},
		{"42 () S 1 1) D 7 42 40" + tail, Info{PID: 42, Parent: 7, Group: 42, Session: 40, Name: ") S 1 1", Started: 987654}},
		{"42 (new\nline) Z 7 42 40" + tail + "\n", Info{PID: 42, Parent: 7, Group: 42, Session: 40, Name: "new\nline", Zombie: true, Started: 987654}},
		{"42 (x) X 0 -1 -1" + tail, Info{PID: 42, Group: -1, Session: -1, Name: "x", Zombie: true, Started: 987654}},
		{"42 (leaderless) Z 7 42 40" + strings.Replace(tail, "20 0 1 0", "20 0 5 0", 1), Info{PID: 42, Parent: 7, Group: 42, Session: 40, Name: "leaderless", Started: 987654}},
	} {
		if got, err := parse([]byte(c.line)); err != nil || got != c.want {
			t.Errorf("parse(%q) = %+v, %v, want %+v", c.line, got, err, c.want)
		}
	}
	for _, line := range []string{"", "42", "42 (sh", "42 (sh)", "42 (sh) S 7 42 40", ") (", "x (sh) S 7 42 40" + tail, "42 (sh) SS 7 42 40" + tail} {
		if got, err := parse([]byte(line)); err == nil {
			t.Errorf("parse(%q) = %+v, want an error", line, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("42 (a) Z (b c) R 7 42 40" + tail))
	f.Fuzz(func(t *testing.T, line []byte) {
		if info, err := parse(line); err == nil && !strings.Contains(string(line), "("+info.Name+")") {
			t.Errorf("parse(%q) made up the name %q", line, info.Name)
		}
	})
}

func TestBelowSurvivesRings(t *testing.T) {
	t.Parallel()
	infos := []Info{
		{PID: 5, Parent: 4}, {PID: 3, Parent: 2}, {PID: 4, Parent: 3}, {PID: 9, Parent: 8},
		{PID: 8, Parent: 9}, {PID: 2, Parent: 5}, {PID: 1, Parent: 0},
	}
	var pids []int
	for _, info := range below(3, infos) {
		pids = append(pids, info.PID)
	}
	if want := []int{4, 5, 2}; !slices.Equal(pids, want) {
		t.Errorf("below(3) = %v, want %v", pids, want)
	}
}

func TestDescendantsAndAliveOfARealChild(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/bin/sh", "-c", "read line; exit 0")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	found, err := Descendants(os.Getpid())
	i := slices.IndexFunc(found, func(i Info) bool { return i.PID == pid })
	if err != nil || i < 0 || found[i].Parent != os.Getpid() || found[i].Zombie {
		t.Errorf("Descendants() = %+v, %v, want the living child %d", found, err, pid)
	}
	if !Alive(pid) {
		t.Error("Alive(living child) = false")
	}
	_ = in.Close()
	// Without reaping, to have it be a zombie.
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if Alive(pid) {
		t.Error("Alive(zombie) = true")
	}
	if info, err := read(pid); err != nil || !info.Zombie {
		t.Errorf("read(zombie) = %+v, %v", info, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if Alive(pid) {
		t.Error("Alive(reaped) = true")
	}
}

func TestCloseOnExec(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	fds := []int{int(r.Fd()), int(w.Fd())}
	const shut = 1 << 20
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			t.Fatal(err)
		}
	}
	// The failure of one must not keep the others open.
	err = CloseOnExec(fds[0], shut, fds[1])
	if err == nil || !strings.Contains(err.Error(), "1048576") {
		t.Errorf("CloseOnExec = %v, want it to name the descriptor that is not open", err)
	}
	for _, fd := range fds {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d has flags %d, %v, want close-on-exec", fd, flags, err)
		}
	}
	if err := CloseOnExec(fds...); err != nil {
		t.Errorf("CloseOnExec of open descriptors = %v", err)
	}
}
