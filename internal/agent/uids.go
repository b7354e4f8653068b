package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/process"
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

	// opening is held while a uid is chosen and made ready. It comes before mu.
	opening sync.Mutex
	// oneByOne says that the uids could not be made ready together once, so that each
	// is looked at by itself from then on.
	oneByOne bool

	mu sync.Mutex
	// users has, for each uid in use, its workspace.
	users map[int]uuid.UUID
	// last has, for each uid, the workspace that had it last in this boot.
	last map[int]uuid.UUID
	// lost are those that something may still run as.
	lost map[int]bool
}

// newUIDs has all uids of a block free, and nothing to forget.
func newUIDs(block *isolation.Block) *uids {
	return &uids{block: block, users: map[int]uuid.UUID{}, last: map[int]uuid.UUID{}, lost: map[int]bool{}}
}

// takeUIDs takes uids for runs, if setting says so, and sees to it that the
// directories belong to whom they are to.
func takeUIDs(d *dataDir, setting string) (*uids, error) {
	if setting == "" || setting == "off" {
		return nil, disown(d)
	}
	if err := isolation.Capable(); err != nil {
		return nil, err
	}
	first := 0
	if setting != "auto" {
		var err error
		if first, err = strconv.Atoi(setting); err != nil {
			return nil, fmt.Errorf("run.uids: %q is neither auto nor off nor a uid", setting)
		}
	}
	block, err := isolation.Take(isolation.LockDir, d.instance.String(), first, isolation.Owner(d.path("repos")))
	if err != nil {
		return nil, err
	}
	u := newUIDs(block)
	err = u.own(d)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w. The data directory must be where root may give files away, which network file systems often forbid; or let runs be root (run.uids = \"off\")", err)
	}
	if err != nil {
		return nil, fmt.Errorf("give the data directory's parts to those who use them: %w", err)
	}
	return u, nil
}

// disown remembers, by who owns them, that templates could write to all of it: a
// start that has uids for runs again finds what own says.
func disown(d *dataDir) error {
	if os.Geteuid() != 0 {
		return nil
	}
	dirs := []string{d.path("repos"), d.path("engines"), d.path("providers"), d.path("checkouts")}
	for _, name := range []string{"work", "state"} {
		entries, err := os.ReadDir(d.path(name))
		if err != nil {
			return fmt.Errorf("look through the data directory: %w", err)
		}
		for _, entry := range entries {
			dirs = append(dirs, d.path(name, entry.Name()))
		}
	}
	for _, dir := range dirs {
		if err := os.Lchown(dir, 0, 0); err != nil {
			return fmt.Errorf("take the data directory's parts back: %w", err)
		}
	}
	return nil
}

// own makes the directories what uids describes, no matter who had them before: an
// agent that was an ordinary user, or one whose runs had its uid. Caches that
// templates could write to then are made again, for nobody can tell what is in
// them.
func (u *uids) own(d *dataDir) error {
	// The directory itself first: from then on nobody changes what is in it.
	for _, part := range []struct {
		name string
		mode fs.FileMode
	}{{"", 0o711}, {"spool", 0o700}, {"rejected", 0o700}, {"states", 0o700}, {"work", 0o711}, {"state", 0o711}} {
		if err := chownDir(d.path(part.name), part.mode); err != nil {
			return err
		}
	}
	if err := ownFiles(d); err != nil {
		return err
	}
	cache := u.block.Cache
	for name, mode := range map[string]fs.FileMode{"repos": 0o700, "engines": 0o755, "providers": 0o755, "checkouts": 0o711} {
		dir := d.path(name)
		if isolation.Owner(dir) != cache {
			if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
				return err
			}
		}
		if err := errors.Join(os.Lchown(dir, cache, cache), os.Chmod(dir, mode)); err != nil {
			return err
		}
	}
	return reachable(d.root)
}

// chownDir makes a directory root's. A link to one will do if it is root's own: any
// other may be a template's, of an agent that was an ordinary user.
func chownDir(path string, mode fs.FileMode) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() && ok && stat.Uid != 0 {
		return fmt.Errorf("%s is no directory but a link, and not root's: a template may have made it. Look where it leads, and put a directory in its place", path)
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(dir.Chown(0, 0), dir.Chmod(mode), dir.Close())
}

// ownFiles has root own its files, of which another user may have been the owner.
func ownFiles(d *dataDir) error {
	for _, dir := range []string{d.root, d.path("spool"), d.path("rejected"), d.path("states")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if !entry.Type().IsRegular() {
				continue
			}
			file, err := os.OpenFile(filepath.Join(dir, entry.Name()), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			if err := errors.Join(file.Chown(0, 0), file.Chmod(0o600), file.Close()); err != nil {
				return err
			}
		}
	}
	return nil
}

// reachable is an error if an unprivileged user cannot pass to the data
// directory.
func reachable(root string) error {
	for dir := root; dir != "/"; {
		dir = filepath.Dir(dir)
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("%s lets no other user through, and runs have uids of their own: allow it (chmod o+x %s), choose another data_dir, or let runs be root (run.uids = \"off\")", dir, dir)
		}
	}
	return nil
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

// ready is take for a uid that has nothing of another workspace.
func (u *uids) ready(workspace uuid.UUID, before int, log *slog.Logger) (uid int, err error) {
	u.opening.Lock()
	defer u.opening.Unlock()
	for {
		uid, fresh, err := u.take(workspace, before)
		if err != nil || !fresh {
			return uid, err
		}
		if err = u.makeForget(uid); err == nil {
			return uid, nil
		}
		log.Error("a uid is not used again before the next start, for what another workspace's run left cannot be removed", "uid", uid, "error", err)
		u.abandon(workspace)
		u.give(workspace)
	}
}

// endLimit bounds how long the end of what a uid still runs is waited for. There
// should be nothing.
const endLimit = 10 * time.Second

// makeForget ends what runs as a uid and removes what it left, and does the same for
// each uid that is free.
func (u *uids) makeForget(uid int) error {
	if !u.oneByOne {
		used := u.used(uid)
		err := forget(used)
		u.forgot(used, uid, err == nil)
		if err == nil {
			return nil
		}
		u.oneByOne = true // one of them would hold up every run
	}
	return forget(map[int]bool{uid: true})
}

// forget ends what runs as one of these uids, and removes what they left.
func forget(uids map[int]bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	its := func(uid int) bool { return uids[uid] }
	if _, err := process.KillByUID(ctx, its); err != nil {
		return err
	}
	return isolation.Forget(its)
}

// used takes, along with the uid that it is given, each free one that must forget a
// workspace, and says which: reading what a machine runs and has lying about takes as
// long for all of them as for one.
func (u *uids) used(uid int) map[int]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	used := map[int]bool{uid: true}
	for other := u.block.Cache + 1; u.block.Has(other); other++ {
		if u.unused(other) && u.last[other] != uuid.Nil {
			used[other] = true
			u.users[other] = uuid.Max // no workspace's
		}
	}
	return used
}

// forgot gives back what used took, but for uid. If they did forget, they are as if
// nobody had had them.
func (u *uids) forgot(used map[int]bool, uid int, did bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for other := range used {
		if other == uid {
			continue
		}
		delete(u.users, other)
		if did {
			delete(u.last, other)
		}
	}
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
	if u == nil {
		return
	}
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
