package process

import (
	"context"
	"os"
	"strconv"
	"strings"
)

// KillByUID is KillByEnvironment for all that runs with a real uid for which
// match is true, and that is no ancestor of this process. It needs root, or
// that uid.
func KillByUID(ctx context.Context, match func(uid int) bool) (found []Info, err error) {
	return killAll(ctx, func(infos []Info, self int) (picked []Info) {
		spared := ancestors(infos, self)
		for _, info := range infos {
			if uid, ok := realUID(info.PID); ok && !info.Zombie && !spared[info.PID] && match(uid) {
				picked = append(picked, info)
			}
		}
		return picked
	})
}

// realUID asks /proc/PID/status: the owner of /proc/PID is root for a process
// that is undumpable.
func realUID(pid int) (int, bool) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, false // gone
	}
	for line := range strings.Lines(string(status)) {
		if ids, found := strings.CutPrefix(line, "Uid:"); found {
			fields := strings.Fields(ids)
			if len(fields) == 0 {
				return 0, false
			}
			uid, err := strconv.Atoi(fields[0])
			return uid, err == nil
		}
	}
	return 0, false
}
