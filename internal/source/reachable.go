package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/provision"
)

// maxHistory is the most that is fetched of a history to find one commit in it,
// in bytes. A commit takes about 150, so most repositories have much less.
const maxHistory = 128 << 20

// defaultRefs are the references from which a commit must be reachable.
var defaultRefs = []string{"refs/heads/**", "refs/tags/**"}

// refPatterns are the references whose commits may run when a snapshot names a
// bare commit.
type refPatterns []string

func parseRefs(patterns []string) (refPatterns, error) {
	if len(patterns) == 0 {
		patterns = defaultRefs
	}
	for _, pattern := range patterns {
		if !strings.HasPrefix(pattern, "refs/heads/") && !strings.HasPrefix(pattern, "refs/tags/") {
			return nil, fmt.Errorf("[policy] commit_refs: pattern %q must begin with refs/heads/ or refs/tags/, such as refs/heads/main or refs/tags/**", printable(pattern, 200))
		}
		for segment := range strings.SplitSeq(pattern, "/") {
			if segment == "" || strings.Contains(segment, "**") && segment != "**" || strings.ContainsAny(segment, `?[]{}\ `) {
				return nil, fmt.Errorf("[policy] commit_refs: pattern %q must be a reference in which only * and, as a whole segment, ** are wildcards", printable(pattern, 200))
			}
		}
	}
	return patterns, nil
}

func (p refPatterns) admit(ref string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool { return doublestar.MatchUnvalidated(pattern, ref) })
}

func (p refPatterns) String() string { return strings.Join(p, " ") }

// checkReachable refuses a commit that no branch or tag of the repository leads
// to. A server may hand out any object it has, and one that keeps forks together
// has those of strangers. What was found once is remembered and asked no more.
func (s *Source) checkReachable(ctx context.Context, a address, m mirror, commit plumbing.Hash) error {
	if known, err := m.knowsReachable(commit, s.refs); known || err != nil {
		return err
	}
	dir, err := os.MkdirTemp(m.dir, "history-*")
	if err != nil {
		return fmt.Errorf("look for commit %s: %w", commit, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	history := mirror{dir}
	if err := history.prepare(ctx, 1); err != nil {
		return err
	}
	var starts []plumbing.Hash
	named := false
	err = s.download(ctx, a, history, func(refs *packp.AdvRefs) wish {
		w := wish{commitsOnly: true, most: maxHistory}
		for ref, hash := range refs.References {
			if !s.refs.admit(ref) {
				continue
			}
			w.want = append(w.want, hash)
			if peeled, ok := refs.Peeled[ref]; ok {
				hash = peeled
			}
			starts = append(starts, hash)
			named = named || hash == commit
		}
		if named {
			return wish{}
		}
		w.want = unique(w.want)
		return w
	})
	switch unreachable, ok := errors.AsType[*unreachableError](err); {
	case ok:
		return unreachable.err
	case errors.Is(err, errHistoryTooLarge):
		return provision.Fail(provision.CodeCheckoutFailed, fmt.Sprintf(
			"template_source.version: the history of %s is larger than %d MB, so this agent does not look for commit %s in it; deploy a tag, or name a branch that is at this commit",
			a, maxHistory>>20, commit), err)
	case err != nil:
		return err
	}
	if !named {
		found, err := history.leads(ctx, starts, commit)
		if err != nil {
			return fmt.Errorf("look for commit %s in the history of %s: %w", commit, a, err)
		}
		if !found {
			return s.notReachable(a, commit)
		}
	}
	return m.rememberReachable(commit, s.refs)
}

func (s *Source) notReachable(a address, commit plumbing.Hash) error {
	message := fmt.Sprintf("template_source.version: %s has no commit %s that a branch or tag leads to; "+
		"commits of forks and of pull requests do not run: merge it, or deploy a tag", a, commit)
	if refs := s.refs.String(); refs != strings.Join(defaultRefs, " ") {
		message = fmt.Sprintf("template_source.version: %s has no commit %s that is reachable from what [policy] commit_refs in the agent's configuration admits (%s); "+
			"deploy a commit that is, or a tag", a, commit, refs)
	}
	return provision.Fail(provision.CodeVersionNotFound, message, nil)
}

// leads reports whether commit is one of starts or an ancestor of one.
func (m mirror) leads(ctx context.Context, starts []plumbing.Hash, commit plumbing.Hash) (bool, error) {
	objects, err := m.objects()
	if err != nil {
		return false, err
	}
	defer objects.close()
	if !objects.has(commit) {
		return false, nil // it would have come with the history
	}
	seen := make(map[plumbing.Hash]bool, len(starts))
	todo := unique(starts)
	for _, start := range todo {
		seen[start] = true
	}
	for len(todo) > 0 {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		next := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if next == commit {
			return true, nil
		}
		if kind, _, err := objects.kind(next); err != nil || kind != plumbing.CommitObject {
			continue // the server has no more of the history, or a tag names a file
		}
		parents, err := objects.parents(next)
		if err != nil {
			return false, err
		}
		for _, parent := range parents {
			if !seen[parent] {
				seen[parent] = true
				todo = append(todo, parent)
			}
		}
	}
	return false, nil
}

// parents returns those of a commit.
func (o objects) parents(commit plumbing.Hash) (parents []plumbing.Hash, err error) {
	content, err := o.read(plumbing.CommitObject, commit)
	if err != nil {
		return nil, err
	}
	header, _, _ := bytes.Cut(content, []byte("\n\n"))
	for line := range bytes.SplitSeq(header, []byte("\n")) {
		id, ok := bytes.CutPrefix(line, []byte("parent "))
		if !ok {
			continue
		}
		parent, valid := asCommit(string(id))
		if !valid {
			return nil, malformed("commit %s has a malformed parent", commit)
		}
		parents = append(parents, parent)
	}
	return parents, nil
}

// knowsReachable reports whether the commit was found from these references
// before.
func (m mirror) knowsReachable(commit plumbing.Hash, refs refPatterns) (bool, error) {
	content, err := os.ReadFile(m.reachableFile(commit))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read whether commit %s is known: %w", commit, err)
	}
	return string(content) == refs.String(), nil
}

func (m mirror) rememberReachable(commit plumbing.Hash, refs refPatterns) error {
	if err := os.MkdirAll(filepath.Dir(m.reachableFile(commit)), 0o700); err != nil {
		return fmt.Errorf("remember commit %s: %w", commit, err)
	}
	if err := durable.WriteFile(m.reachableFile(commit), []byte(refs.String())); err != nil {
		return fmt.Errorf("remember commit %s: %w", commit, err)
	}
	return nil
}

func (m mirror) reachableFile(commit plumbing.Hash) string {
	return filepath.Join(m.dir, "reachable", commit.String())
}

func unique(hashes []plumbing.Hash) []plumbing.Hash {
	seen := make(map[plumbing.Hash]bool, len(hashes))
	var kept []plumbing.Hash
	for _, hash := range hashes {
		if !seen[hash] {
			seen[hash] = true
			kept = append(kept, hash)
		}
	}
	return kept
}
