package terraform

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-version"
)

// choose returns the engine to take of those at the paths: the first that
// serves, or where only the template says what does, the newest.
func (s *search) choose(ctx context.Context, paths func(yield func(string) bool)) (best Engine, found bool) {
	var newest *version.Version
	for path := range paths {
		engine, ok := s.try(ctx, path)
		switch {
		case ctx.Err() != nil:
			return Engine{}, false
		case !ok:
			continue
		case s.want != nil || len(s.by) == 0:
			return engine, true
		}
		if v, err := version.NewVersion(engine.Version); err == nil && (newest == nil || v.GreaterThan(newest)) {
			best, newest = engine, v
		}
	}
	return best, newest != nil
}

// candidates yields the paths to try, in order; not all of them exist.
func (s *search) candidates() func(yield func(string) bool) {
	return func(yield func(string) bool) {
		var paths []string
		if s.cfg.Dir != "" {
			paths = append(paths, s.inDir(s.cfg.Dir)...)
		}
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			if filepath.IsAbs(dir) { // a relative one may lead into a template
				paths = append(paths, filepath.Join(dir, s.kind))
			}
		}
		paths = append(paths, s.installed()...)
		for _, path := range paths {
			if !yield(path) {
				return
			}
		}
	}
}

// inDir lists what the agent's own directory may hold.
func (s *search) inDir(dir string) []string {
	if s.want != nil {
		return []string{
			filepath.Join(dir, s.kind+"_"+s.want.String()),
			filepath.Join(dir, s.kind, s.want.String(), s.kind),
			filepath.Join(dir, s.kind),
		}
	}
	paths := []string{filepath.Join(dir, s.kind)}
	for _, pattern := range []string{s.kind + "_*", filepath.Join(s.kind, "*", s.kind)} {
		paths = append(paths, newestFirst(filepath.Join(dir, pattern), s.kind)...)
	}
	return paths
}

// installed lists what Locate installed before.
func (s *search) installed() []string {
	if s.installDir == "" {
		return nil
	}
	if s.want != nil {
		return []string{s.installedPath(s.want.String())}
	}
	return newestFirst(s.installedPath("*"), s.kind)
}

func (s *search) installedPath(version string) string {
	return filepath.Join(s.installDir, s.kind, version, s.kind)
}

// newestFirst expands a pattern whose star stands for a version.
func newestFirst(pattern, kind string) []string {
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return nil
	}
	versionOf := func(path string) *version.Version {
		text, ok := strings.CutPrefix(filepath.Base(path), kind+"_")
		if !ok {
			text = filepath.Base(filepath.Dir(path))
		}
		v, err := version.NewSemver(text)
		if err != nil {
			return nil
		}
		return v
	}
	matches = slices.DeleteFunc(matches, func(path string) bool { return versionOf(path) == nil })
	slices.SortFunc(matches, func(a, b string) int { return versionOf(b).Compare(versionOf(a)) })
	return matches
}

// try looks at one path and remembers why it does not serve.
func (s *search) try(ctx context.Context, path string) (Engine, bool) {
	binary, err := resolve(path)
	if errors.Is(err, os.ErrNotExist) {
		return Engine{}, false
	}
	var found string
	if err == nil {
		found, err = s.versions.of(ctx, binary)
	}
	if err != nil {
		s.pass(path, err.Error())
		return Engine{}, false
	}
	v, err := version.NewVersion(found)
	if err == nil && s.tooOld(v) {
		s.pass(path, "is version "+found+", and "+s.floor())
		return Engine{}, false
	}
	if err != nil || s.want != nil && !v.Equal(s.want) || !s.admits(v) {
		s.pass(path, "is version "+found)
		return Engine{}, false
	}
	return Engine{Kind: s.kind, Path: binary, Version: found}, true
}

func (s *search) pass(path, why string) {
	if note := path + " " + why; !slices.Contains(s.passed, note) {
		s.passed = append(s.passed, note)
	}
}

// resolve returns the binary behind path. The error completes a sentence that
// begins with the path.
func resolve(path string) (string, error) {
	binary, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return "", err
	}
	info, err := os.Stat(binary)
	if err != nil {
		return "", err
	}
	if info.IsDir() { // DIR/KIND may hold the versions
		return "", os.ErrNotExist
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return "", errors.New("is not an executable file")
	}
	file, err := os.Open(binary)
	if err != nil {
		// Executable and not readable: it cannot be looked at, yet it may run.
		return binary, nil
	}
	defer file.Close() //nolint:errcheck // opened for reading
	magic := make([]byte, 2)
	if _, err := io.ReadFull(file, magic); err != nil {
		return "", errors.New("is empty")
	}
	if bytes.Equal(magic, []byte("#!")) {
		return "", errors.New("is a script, most likely a version manager's shim, which would not pass an interrupt on")
	}
	return binary, nil
}
