package agent

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/job"
)

// uids are what runs run as where each has a uid of its own: one that no other
// run has at the time, and preferably the one that the workspace had before. A
// nil *uids stands for an agent whose runs have its own uid.
//
//	root       spool/ rejected/ lock instance       nobody else gets in
//	the cache  repos/                               nobody else gets in
//	           engines/ providers/                  all read them
//	           checkouts/ID/                        the run's group reads it
//	the run    work/ID/ state/ID/                   for as long as the run lasts;
//	                                                root's in between
type uids struct {
	block *isolation.Block

	mu sync.Mutex
	// users has, for each uid in use, its workspace.
	users map[int]uuid.UUID
	// last has, for each uid, the workspace that had it last in this boot.
	last map[int]uuid.UUID
	// lost are those that something may still run as.
	lost map[int]bool
}

// take finds a uid, and says whether it must forget another workspace first.
func (u *uids) take(workspace uuid.UUID, before int) (uid int, fresh bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.block.Hold()
	free := u.unused
	if !free(before) {
		before = 0
		for candidate := u.block.Cache + 1; u.block.Has(candidate); candidate++ {
			// One that nobody had yet has nothing to forget.
			if free(candidate) && (before == 0 || u.last[candidate] == uuid.Nil && u.last[before] != uuid.Nil) {
				before = candidate
			}
		}
		if before == 0 {
			return 0, false, errors.New("no uid is free for this run: something still runs as each of them; see the agent's log, and start it anew")
		}
	}
	u.users[before] = workspace
	fresh = u.last[before] != uuid.Nil && u.last[before] != workspace
	u.last[before] = workspace
	return before, fresh, nil
}

// keep takes the uid of a run that an earlier start left running.
func (u *uids) keep(uid int, workspace uuid.UUID) {
	if u == nil || !u.block.Has(uid) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.users[uid], u.last[uid] = workspace, workspace
}

// give has the uid of a workspace's run used again.
func (u *uids) give(workspace uuid.UUID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for uid, user := range u.users {
		if user == workspace {
			delete(u.users, uid)
		}
	}
}

// abandon has the uid of a workspace's run not used again in this boot.
func (u *uids) abandon(workspace uuid.UUID) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for uid, user := range u.users {
		if user == workspace {
			u.lost[uid] = true
		}
	}
}

// suspect has each free uid forget what it may have left before a run gets it.
func (u *uids) suspect() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for uid := u.block.Cache + 1; u.block.Has(uid); uid++ {
		if u.unused(uid) && u.last[uid] == uuid.Nil {
			u.last[uid] = uuid.Max // no workspace's
		}
	}
}

// dress tells a child who it is to be, and has it hold the uids' lock.
func (u *uids) dress(cmd *exec.Cmd, dirs job.Dirs, uid int) {
	if u == nil {
		return
	}
	cmd.Args = append(slices.Clip(cmd.Args), "--as", isolation.IDs{Cache: u.block.Cache, Run: uid}.String())
	cmd.Env = append(cmd.Env, "HOME="+filepath.Join(dirs.Work, job.HomeName))
	cmd.ExtraFiles[job.UIDLockFD-job.ControlFD] = u.block.Lock
}

// free reports whether a uid is one of ours that no run has.
func (u *uids) free(uid int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.unused(uid)
}

func (u *uids) unused(uid int) bool {
	return u.block.Has(uid) && u.users[uid] == uuid.Nil && !u.lost[uid]
}
