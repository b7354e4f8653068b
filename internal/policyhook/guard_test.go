package policyhook

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// somebody is a user with nothing on this machine.
var somebody = User{UID: 54321, Groups: []int{54321}}

// ordinary is a user who is not root: this one, or somebody.
func ordinary() User {
	if uid := os.Geteuid(); uid != 0 {
		return User{UID: uid}
	}
	return somebody
}

func TestGuarded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		program, above os.FileMode
		user           User
		link           bool
		owned          bool   // by the user
		want           string // the name of what can be changed; "" for nothing
	}{
		"guarded":             {program: 0o755, above: 0o755, user: somebody},
		"writable":            {program: 0o757, above: 0o755, user: somebody, want: "hook"},
		"exchangeable":        {program: 0o755, above: 0o777, user: somebody, want: "above"},
		"in a sticky place":   {program: 0o755, above: 0o777 | os.ModeSticky, user: somebody},
		"behind a link":       {program: 0o755, above: 0o777, user: somebody, link: true, want: "above"},
		"its owner's":         {program: 0o555, above: 0o555, user: ordinary(), owned: true, want: "hook"},
		"of another's group":  {program: 0o775, above: 0o775, user: somebody},
		"of the user's group": {program: 0o775, above: 0o755, user: User{UID: 54321, Groups: []int{os.Getegid()}}, want: "hook"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			above := filepath.Join(t.TempDir(), "above")
			path := filepath.Join(above, "hook")
			if err := os.Mkdir(above, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			for at, mode := range map[string]os.FileMode{path: test.program, above: test.above} {
				if err := os.Chmod(at, mode); err != nil {
					t.Fatal(err)
				}
			}
			if test.owned && os.Geteuid() == 0 { // else it is
				if err := errors.Join(os.Chown(path, test.user.UID, -1), os.Chown(above, test.user.UID, -1)); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() { _ = os.Chmod(above, 0o755) })
			command := []string{path}
			if test.link {
				link := filepath.Join(t.TempDir(), "link")
				if err := os.Symlink(path, link); err != nil {
					t.Fatal(err)
				}
				command = []string{link}
			}
			err := Guarded(command, test.user)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), "/"+test.want+" can be changed")) {
				t.Errorf("Guarded() = %v, want %q", err, test.want)
			}
		})
	}
}

// A policy that is an argument counts like the program.
func TestGuardedArguments(t *testing.T) {
	t.Parallel()
	policy := filepath.Join(t.TempDir(), "policy.rego")
	if err := os.WriteFile(policy, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(policy, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"/bin/sh", "test", "-p", policy}, {"/bin/sh", "test", "--policy=" + policy}} {
		if err := Guarded(command, somebody); err == nil || !strings.Contains(err.Error(), policy) {
			t.Errorf("Guarded(%q) = %v, want an error that names %s", command, err, policy)
		}
	}
}

// A hook that is a script finds its programs where no template can put one.
func TestHookHasAFixedPath(t *testing.T) {
	own := t.TempDir()
	program := filepath.Join(own, "conftest")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", own+":"+os.Getenv("PATH"))
	var said strings.Builder
	err := Hook{Command: []string{"/bin/sh", "-c", "echo $PATH; conftest"}, Timeout: time.Minute, Dir: "/", Stdout: &said}.Judge(t.Context(), nil)
	if _, refused := errors.AsType[*Refused](err); !refused || strings.TrimSpace(said.String()) != SearchPath {
		t.Errorf("Judge() = %v with the PATH %q, want the program in the agent's PATH not found", err, said.String())
	}
	// Each directory of it is looked at like the command's words.
	writable := filepath.Join(own, "bin")
	if err := errors.Join(os.Mkdir(writable, 0o777), os.Chmod(writable, 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := guarded(append([]string{"/bin/sh"}, writable), somebody); err == nil || !strings.Contains(err.Error(), writable) {
		t.Errorf("guarded() with %s to search = %v, want it refused", writable, err)
	}
	if err := Guarded([]string{"/bin/sh"}, somebody); err != nil {
		t.Errorf("Guarded() = %v, want nil: nobody may write to %v", err, SearchPath)
	}
}

// What a relative path names depends on where the agent runs.
func TestRelativePathIsNoHook(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(here, self)
	if err != nil {
		t.Fatal(err)
	}
	if err := Executable(self); err != nil {
		t.Errorf("Executable(%s) = %v, want nil", self, err)
	}
	if err := Executable(relative); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("Executable(%s) = %v, want it refused: it is no absolute path", relative, err)
	}
}
