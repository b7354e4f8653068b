package process

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestKillByUID(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root starts processes of others")
	}
	const mine, others = 1_900_001_000, 1_900_001_001 // nobody's
	start := map[uint32]int{}
	ended := make(chan error, 1)
	for _, uid := range []uint32{mine, others} {
		cmd := shell("trap '' TERM; while :; do setsid sleep 1000 & wait; done")
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		start[uid] = cmd.Process.Pid
		if uid == mine {
			go func() { ended <- cmd.Wait() }()
			continue
		}
		t.Cleanup(func() {
			_, _ = KillByUID(context.Background(), func(uid int) bool { return uid == others }) // the test is over
			_ = cmd.Wait()
		})
	}
	ctx, cancel := patience.Context(t.Context(), 30*time.Second)
	defer cancel()
	found, err := KillByUID(ctx, func(uid int) bool { return uid == mine })
	if err != nil || len(found) == 0 {
		t.Errorf("KillByUID() = %+v, %v, want what it found", found, err)
	}
	if err := killedBySignal(<-ended); err != nil {
		t.Error(err)
	}
	infos, err := all()
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if uid, ok := realUID(info.PID); ok && uid == mine && !info.Zombie {
			t.Errorf("after KillByUID() there lives %+v", info)
		}
	}
	if !Alive(start[others]) {
		t.Error("another user's process is dead, want it left alone")
	}
}
