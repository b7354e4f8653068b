package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownMounts has an agent start with mounts of its own, where it may mount what it likes:
// root may do so, and others may as the root of a namespace of their own.
func ownMounts(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
}

// mounts says that an agent has mounts of its own.
func (s setup) mounts() bool { return s.SpoolBytes > 0 || s.Groups != "" }

// mount mounts what the agent is to find, for its process and its children alone.
func (s setup) mount() error {
	if !s.mounts() {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to this process: %w", err)
	}
	if s.SpoolBytes > 0 {
		dir := filepath.Join(s.DataDir, "spool")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", s.SpoolBytes)); err != nil {
			return fmt.Errorf("mount a small disk on %s: %w", dir, err)
		}
	}
	if s.Groups != "" {
		if err := unix.Mount(s.Groups, cgroups, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s on %s: %w", s.Groups, cgroups, err)
		}
	}
	return nil
}

// cgroups is where the kernel's control groups are mounted.
const cgroups = "/sys/fs/cgroup"
