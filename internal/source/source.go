package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// defaultTimeout bounds an exchange when the configuration does not.
const defaultTimeout = 5 * time.Minute

// Request is a snapshot's template_source and what the database knows of it.
type Request struct {
	Repo    string
	Version string
	Path    string // "" is the repository's root
	// PinnedCommit is the commit that Version meant when it was first used, or
	// "" when it never was.
	PinnedCommit string
}

// Resolved is what a version means.
type Resolved struct {
	Commit string // 40 hexadecimal digits
	// Notice is a remark for the log of the run, or "".
	Notice string
}

// Tree is a work tree on disk.
type Tree struct {
	// Dir is the directory of the template within the work tree.
	Dir string
	// Notice is a remark for the log of the run, or "".
	Notice string
}

// Options is what a Source obeys.
type Options struct {
	Policy job.Policy
	Git    job.Git
	// ReposDir holds the mirrors; it exists, mode 0700. Processes of one user
	// may share it.
	ReposDir string
	// AnyHTTPS allows every https repository besides the policy's: for one who
	// has no credentials to lose and runs nothing.
	AnyHTTPS bool
	// Dial connects to HTTPS servers instead of the usual way, and past any
	// proxy; nil: as usual.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// MaxBytes and MaxEntries bound a checkout, and the bytes a pack; 0: as
	// usual.
	MaxBytes   int64
	MaxEntries int
}

// Source resolves versions and checks out their files. It is safe for
// concurrent use, by several processes on the same ReposDir as well.
type Source struct {
	allow   Allowlist
	refs    refPatterns // from which a bare commit must be reachable
	repos   string
	timeout time.Duration
	// authorities are the certificates of a ca_file, nil without one.
	authorities []byte
	hosts       credentials
	limits      limits
	dial        func(ctx context.Context, network, address string) (net.Conn, error)
}

// New returns a Source. It fails when a pattern or the CA file cannot be read.
func New(opts Options) (*Source, error) {
	allow, err := ParseAllowlist(opts.Policy.Repos, opts.Policy.AllowFile)
	if err != nil {
		return nil, err
	}
	refs, err := parseRefs(opts.Policy.CommitRefs)
	if err != nil {
		return nil, err
	}
	s := &Source{
		allow: allow, refs: refs, repos: opts.ReposDir, timeout: opts.Git.Timeout,
		limits: defaultLimits, dial: opts.Dial,
	}
	s.allow.anyHTTPS = opts.AnyHTTPS
	s.limits.bytes = cmp.Or(opts.MaxBytes, s.limits.bytes)
	s.limits.entries = cmp.Or(opts.MaxEntries, s.limits.entries)
	if s.hosts, err = newCredentials(opts.Git.Hosts); err != nil {
		return nil, err
	}
	if s.timeout <= 0 {
		s.timeout = defaultTimeout
	}
	if s.authorities, err = readAuthorities(opts.Git.CAFile); err != nil {
		return nil, fmt.Errorf("[git] ca_file: %w", err)
	}
	return s, nil
}

// Resolve says which commit a version means. A tag costs one listing of
// references. A full commit must be reachable from a branch or tag, which costs
// the history once; a known one costs no network. Failures carry CodeRepoRefused,
// CodeBadSnapshot, CodePathRefused, CodeVersionNotFound, CodeTagMoved or
// CodeCheckoutFailed; when ctx ends its cause is in the error's chain.
func (s *Source) Resolve(ctx context.Context, req Request) (Resolved, error) {
	a, err := s.allow.permit(req.Repo)
	if err != nil {
		return Resolved{}, err
	}
	if err := checkVersion(req.Version); err != nil {
		return Resolved{}, err
	}
	if _, err := checkPath(req.Path); err != nil {
		return Resolved{}, err
	}
	pinned := strings.ToLower(req.PinnedCommit)
	if commit, ok := asCommit(req.Version); ok {
		if pinned != "" && pinned != commit.String() {
			return Resolved{}, provision.Fail(provision.CodeTagMoved, fmt.Sprintf(
				"template_source.version: commit %s of %s is pinned to another, %s: the database contradicts itself", commit, a, pinned), nil)
		}
		m, err := s.mirror(a)
		if err != nil {
			return Resolved{}, err
		}
		return Resolved{Commit: commit.String()}, s.checkReachable(ctx, a, m, commit)
	}
	m, err := s.mirror(a)
	if err != nil {
		return Resolved{}, err
	}
	refs, err := s.list(ctx, a)
	if unreachable, ok := errors.AsType[*unreachableError](err); ok {
		return m.resolveOffline(a, req.Version, pinned, unreachable)
	}
	if err != nil {
		return Resolved{}, err
	}
	hash, ok := refs.tags[req.Version]
	if !ok {
		return Resolved{}, refs.notFound(a, req.Version)
	}
	commit := hash.String()
	if pinned != "" && pinned != commit {
		return Resolved{}, tagMoved(a, req.Version, pinned, commit, "")
	}
	first, err := m.remember(ctx, req.Version, commit)
	if err != nil {
		return Resolved{}, err
	}
	if first != commit {
		return Resolved{}, tagMoved(a, req.Version, first, commit, m.tagsFile())
	}
	if s.refs.admit("refs/tags/" + req.Version) {
		err = m.rememberReachable(hash, s.refs)
	}
	return Resolved{Commit: commit}, err
}

// resolveOffline falls back on a pin whose commit is here, when the server
// cannot be asked.
func (m mirror) resolveOffline(a address, version, pinned string, cause *unreachableError) (Resolved, error) {
	if pinned == "" || !plumbing.IsHash(pinned) || !m.complete(plumbing.NewHash(pinned)) {
		return Resolved{}, cause.err
	}
	first, err := m.remembered(version)
	if err != nil {
		return Resolved{}, err
	}
	if first != "" && first != pinned {
		return Resolved{}, tagMoved(a, version, first, pinned, m.tagsFile())
	}
	return Resolved{Commit: pinned, Notice: fmt.Sprintf(
		"%v. Going on with commit %s from this agent's cache: that is what %s is pinned to; whether the tag has moved since could not be checked.",
		cause, pinned, version)}, nil
}

// tagMoved names both commits. remembered is the file that this agent's own
// memory is in, when that is what disagrees.
func tagMoved(a address, version, was, is, remembered string) error {
	message := fmt.Sprintf("template_source.version: tag %s of %s now means commit %s, but meant %s when it was first used; a tag must not move. "+
		"If the change is meant, give it a new tag, or name the commit %s itself as the version", version, a, is, was, is)
	if remembered != "" {
		message += fmt.Sprintf(" (this agent remembers the first meaning in %s)", remembered)
	}
	return provision.Fail(provision.CodeTagMoved, message, nil)
}

// notFound says why there is no such tag, as far as the references tell.
func (l listing) notFound(a address, version string) error {
	names := make([]string, 0, len(l.tags))
	for name := range l.tags {
		names = append(names, name)
	}
	message := fmt.Sprintf("template_source.version: %s has no tag %q", a, version)
	switch {
	case l.branches[version]:
		message += "; a branch has that name, but branches are not accepted because they move: use a tag or a full commit"
	case isHexPrefix(version):
		message += "; if it is meant to be a commit, give all 40 digits"
	}
	if near := nearest(version, names, 3); len(near) > 0 {
		message += "; did you mean " + strings.Join(near, ", ") + "?"
	} else if len(names) == 0 {
		message += "; the repository has no tags at all"
	}
	return provision.Fail(provision.CodeVersionNotFound, message, nil)
}

func isHexPrefix(s string) bool {
	return len(s) >= 6 && len(s) < 40 && strings.Trim(strings.ToLower(s), "0123456789abcdef") == ""
}
