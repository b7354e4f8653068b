package process

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// KillByEnvironment sends SIGKILL to every process that was started with an
// environment entry of one of those beginnings, such as "DIR=/var/lib/x/", again
// and again until none lives, and returns those it found. It reaches what is no
// descendant: a process whose parents have died takes its environment along.
//
// This process and its ancestors are left alone, and so is what cannot be read
// (another user's, or one that is undumpable). The environment is the one at
// the last execve: a process that has overwritten it is not found. When the
// context ends first, the error names what is left.
func KillByEnvironment(ctx context.Context, beginnings ...string) (found []Info, err error) {
	return killAll(ctx, func(infos []Info, self int) []Info { return withEnvironment(infos, self, beginnings) })
}

// killAll ends what pick picks, as KillByEnvironment says.
func killAll(ctx context.Context, pick func(infos []Info, self int) []Info) (found []Info, err error) {
	k := killer{self: os.Getpid(), known: map[key]bool{}, refused: map[key]error{}}
	pause := firstPause
	// Two looks must find nothing: a process shows no environment in the
	// instant of its execve, and may start another while the first is made.
	for clean := 0; ; {
		infos, err := all()
		if err != nil {
			return found, err
		}
		living := pick(infos, k.self)
		if clean++; len(living) > 0 {
			clean = 0
		}
		if clean == 2 {
			return found, nil
		}
		for _, info := range living {
			if !k.known[info.key()] {
				k.known[info.key()] = true
				found = append(found, info)
				pause = firstPause
			}
			k.kill(info)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(2*pause, lastPause)
		case <-ctx.Done():
			timer.Stop()
			if len(living) == 0 {
				return found, context.Cause(ctx)
			}
			return found, k.left(living, context.Cause(ctx))
		}
	}
}

// withEnvironment picks what lives and has such an entry.
func withEnvironment(infos []Info, self int, beginnings []string) (found []Info) {
	spared := ancestors(infos, self)
	for _, info := range infos {
		if info.Zombie || spared[info.PID] {
			continue
		}
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(info.PID) + "/environ")
		if err != nil {
			continue // gone, or not for us to read
		}
		for entry := range strings.SplitSeq(string(environ), "\x00") {
			if slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(entry, b) }) {
				found = append(found, info)
				break
			}
		}
	}
	return found
}

// ancestors are pid, its parent, that one's and so on.
func ancestors(infos []Info, pid int) map[int]bool {
	parent := make(map[int]int, len(infos))
	for _, info := range infos {
		parent[info.PID] = info.Parent
	}
	line := map[int]bool{}
	for there := true; there && !line[pid]; pid, there = parent[pid], parent[pid] != 0 {
		line[pid] = true
	}
	return line
}
