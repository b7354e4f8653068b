package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/process"
)

// isolate has runs get uids of their own, if setting says so, and sees to it
// that the directories belong to whom they are to.
func (d *dataDir) isolate(setting string) error {
	if setting == "" || setting == "off" {
		return d.disown()
	}
	if err := isolation.Capable(); err != nil {
		return err
	}
	first := 0
	if setting != "auto" {
		var err error
		if first, err = strconv.Atoi(setting); err != nil {
			return fmt.Errorf("run.uids: %q is neither auto nor off nor a uid", setting)
		}
	}
	block, err := isolation.Take(isolation.LockDir, d.instance.String(), first, isolation.Owner(d.path("repos")))
	if err != nil {
		return err
	}
	d.uids = &uids{block: block, users: map[int]uuid.UUID{}, last: map[int]uuid.UUID{}, lost: map[int]bool{}}
	err = d.own()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w. The data directory must be where root may give files away, which network file systems often forbid; or let runs be root (run.uids = \"off\")", err)
	}
	if err != nil {
		return fmt.Errorf("give the data directory's parts to those who use them: %w", err)
	}
	return nil
}

// disown remembers, by who owns them, that templates could write to all of it: a
// start that has uids for runs again finds what own says.
func (d *dataDir) disown() error {
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

// own makes the directories what uids describes, whoever had them before: an
// agent that was an ordinary user, or one whose runs had its uid. Caches that
// templates could write to then are made anew, for nobody can tell what is in
// them.
func (d *dataDir) own() error {
	// The directory itself first: from then on nobody changes what is in it.
	for _, part := range []struct {
		name string
		mode fs.FileMode
	}{{"", 0o711}, {"spool", 0o700}, {"rejected", 0o700}, {"states", 0o700}, {"work", 0o711}, {"state", 0o711}} {
		if err := claim(d.path(part.name), part.mode); err != nil {
			return err
		}
	}
	if err := d.ownFiles(); err != nil {
		return err
	}
	cache := d.uids.block.Cache
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
	return d.reachable()
}

// claim makes a directory root's. A link to one will do if it is root's own: any
// other may be a template's, of an agent that was an ordinary user.
func claim(path string, mode fs.FileMode) error {
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
func (d *dataDir) ownFiles() error {
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
func (d *dataDir) reachable() error {
	for dir := d.root; dir != "/"; {
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

// open chooses the uid for a run of the workspace and gives it the directories.
// Nothing of an earlier run may live.
func (d *dataDir) open(workspace uuid.UUID, log *slog.Logger) (uid int, err error) {
	if d.uids == nil {
		return 0, nil
	}
	work, state := d.path("work", workspace.String()), d.path("state", workspace.String())
	for fresh := true; fresh; {
		if uid, fresh, err = d.uids.take(workspace, isolation.Group(work)); err != nil {
			return 0, err
		}
		if !fresh {
			break
		}
		if err := makeForget(uid); err == nil {
			break
		} else {
			log.Error("a uid is not used again before the next start, for what another workspace's run left cannot be removed", "uid", uid, "error", err)
		}
		d.uids.abandon(workspace)
		d.uids.give(workspace)
	}
	return uid, errors.Join(d.uids.block.HandOver(work, uid, 0o750), d.uids.block.HandOver(state, uid, 0o700))
}

// endLimit bounds how long the end of what a uid still runs is waited for. There
// should be nothing.
const endLimit = 10 * time.Second

// makeForget ends what runs as a uid and removes what it left.
func makeForget(uid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	its := func(other int) bool { return other == uid }
	if _, err := process.KillByUID(ctx, its); err != nil {
		return err
	}
	return isolation.Forget(its)
}

// shut takes the directories back, and then the uid.
func (d *dataDir) shut(workspace uuid.UUID) error {
	if d.uids == nil {
		return nil
	}
	if err := d.shutFor(workspace.String()); err != nil {
		d.uids.abandon(workspace)
		return err
	}
	d.uids.give(workspace)
	return nil
}

func (d *dataDir) shutFor(workspace string) error {
	if d.uids == nil {
		return nil
	}
	return errors.Join(isolation.Shut(d.path("work", workspace)), isolation.Shut(d.path("state", workspace)))
}

// endUIDs ends whatever runs with a uid of ours and removes what it left, unless
// it is a run of an earlier start, which keeps its uid.
func (b *boot) endUIDs(ctx context.Context, living []*spool) error {
	u := b.dir.uids
	if u == nil {
		return nil
	}
	for _, s := range living {
		u.keep(s.about.UID, s.about.Workspace)
	}
	err := b.end(ctx, b.log, func(ctx context.Context) ([]process.Info, error) {
		return process.KillByUID(ctx, u.free)
	})
	if err != nil {
		return err
	}
	if err := isolation.Forget(u.free); err != nil {
		// That is no reason not to start: it is tried again for each uid.
		b.log.Warn("what earlier runs left cannot be removed", "error", err)
		u.suspect()
	}
	return nil
}

// endUID ends what a run of an earlier start left running as its uid. A root
// without CAP_SYS_PTRACE, as in most containers, cannot tell it otherwise.
func (b *boot) endUID(ctx context.Context, log *slog.Logger, uid int) error {
	if b.dir.uids == nil || !b.dir.uids.block.Has(uid) {
		return nil
	}
	return b.end(ctx, log, func(ctx context.Context) ([]process.Info, error) {
		return process.KillByUID(ctx, func(other int) bool { return other == uid })
	})
}
