package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree makes files below a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Both versions, seen from the host and from inside of a container.
func TestMemory(t *testing.T) {
	t.Parallel()
	const v1, v2 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 0\n"
	for name, c := range map[string]struct {
		files map[string]string
		limit int64
		file  string
	}{
		"version 1": {map[string]string{
			"self": "5:pids:/\n4:cpu,memory:/pod/c1\n0::/\n", "memory/pod/c1/memory.oom_control": v1, "memory/pod/c1/memory.limit_in_bytes": "536870912\n",
		}, 512 << 20, "memory/pod/c1/memory.limit_in_bytes"},
		"version 1, in a container": {map[string]string{
			"self": "4:memory:/pod/c1\n", "memory/memory.oom_control": v1, "memory/memory.limit_in_bytes": "536870912\n",
		}, 512 << 20, "memory/memory.limit_in_bytes"},
		"version 1, no limit": {map[string]string{
			"self": "4:memory:/\n", "memory/memory.oom_control": v1, "memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0, ""},
		"version 2": {map[string]string{
			"self": "0::/pod/c1\n", "pod/c1/memory.events": v2, "pod/c1/memory.max": "536870912\n",
		}, 512 << 20, "pod/c1/memory.max"},
		"version 2, in a container": {map[string]string{
			"self": "0::/\n", "memory.events": v2, "memory.max": "536870912\n",
		}, 512 << 20, "memory.max"},
		"version 2, no limit": {map[string]string{"self": "0::/\n", "memory.events": v2, "memory.max": "max\n"}, 0, ""},
	} {
		root := tree(t, c.files)
		m := Find(filepath.Join(root, "self"), root)
		limit, file := m.Limit()
		if want := c.file; want != "" {
			c.file = filepath.Join(root, want)
		}
		if m.Kills() != 3 || limit != c.limit || file != c.file {
			t.Errorf("%s: Kills() = %d, Limit() = %d, %q, want 3, %d, %q", name, m.Kills(), limit, file, c.limit, c.file)
		}
		if got := m.Since(3); got != "" {
			t.Errorf("%s: Since(3) = %q, want nothing: nobody was killed", name, got)
		}
		want := map[bool]string{true: "limited to 512 MiB", false: "the machine itself"}[c.limit > 0]
		if got := m.Since(2); !strings.Contains(got, want) {
			t.Errorf("%s: Since(2) = %q, want %q in it", name, got, want)
		}
	}
}

// A machine that tells nothing has killed nobody.
func TestMemoryUnknown(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"self": "4:memory:/\n", "odd": "0:nonsense"})
	for _, m := range []Memory{{}, Find(filepath.Join(root, "none"), root), Find(filepath.Join(root, "self"), root), Find(filepath.Join(root, "odd"), root)} {
		if limit, file := m.Limit(); m.Kills() != 0 || limit != 0 || file != "" || m.Since(0) != "" {
			t.Errorf("%+v: Kills() = %d, Limit() = %d %q, want nothing", m, m.Kills(), limit, file)
		}
	}
}
