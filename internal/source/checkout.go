package source

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/tendril-run/tendril/internal/provision"
)

// Checkout writes the files of commit to dir, which is emptied first and made
// when missing, and returns the directory that req.Path names in it. Every
// object is compared with its id on the way. A commit that the mirror holds
// costs no network. Failures carry the codes of Resolve.
func (s *Source) Checkout(ctx context.Context, req Request, commit, dir string) (Tree, error) {
	a, err := s.allow.permit(req.Repo)
	if err != nil {
		return Tree{}, err
	}
	path, err := checkPath(req.Path)
	if err != nil {
		return Tree{}, err
	}
	id, ok := asCommit(commit)
	if !ok {
		return Tree{}, fmt.Errorf("checkout of %s: %q is no commit", a, commit)
	}
	m, err := s.mirror(a)
	if err != nil {
		return Tree{}, err
	}
	if !m.complete(id) {
		if err := s.fetch(ctx, a, m, id, req.Version, keepMirror); err != nil {
			return Tree{}, err
		}
	}
	written, err := s.write(ctx, m, id, dir)
	if _, corrupt := errors.AsType[*corruptError](err); corrupt {
		if err := s.fetch(ctx, a, m, id, req.Version, replaceMirror); err != nil {
			return Tree{}, err
		}
		written, err = s.write(ctx, m, id, dir)
	}
	if err != nil {
		if ctx.Err() != nil {
			return Tree{}, fmt.Errorf("checkout of %s at %s was interrupted: %w", a, commit, context.Cause(ctx))
		}
		return Tree{}, fmt.Errorf("checkout of %s at %s: %w", a, commit, stillCorrupt(a, id, err))
	}
	if err := checkTemplate(dir, path, written); err != nil {
		return Tree{}, err
	}
	tree := Tree{Dir: filepath.Join(dir, path)}
	if len(written.submodules) > 0 {
		tree.Notice = fmt.Sprintf("Submodules are not fetched; these directories are empty: %s", some(written.submodules, 10))
	}
	return tree, nil
}

// write puts the tree of a commit into dir while nobody may delete the mirror.
func (s *Source) write(ctx context.Context, m mirror, commit plumbing.Hash, dir string) (_ *written, err error) {
	unlock, err := m.lock(ctx, useLock, shared)
	if err != nil {
		return nil, err
	}
	defer unlock()
	m.used()
	objects, err := m.objects()
	if err != nil {
		return nil, err
	}
	defer objects.close()
	return writeCommit(ctx, objects, commit, dir, s.limits)
}

// some lists up to n names.
func some(names []string, n int) string {
	shown := make([]string, 0, n)
	for _, name := range names[:min(n, len(names))] {
		shown = append(shown, printable(name, 120))
	}
	if len(names) > n {
		shown = append(shown, fmt.Sprintf("and %d more", len(names)-n))
	}
	return strings.Join(shown, ", ")
}

func refusePath(format string, args ...any) error {
	return provision.Fail(provision.CodePathRefused, fmt.Sprintf(format, args...), nil)
}
