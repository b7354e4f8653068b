package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/agext/levenshtein"
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
		var known bool
		if known, err = m.knowsReachable(hash, s.refs); err == nil && !known { // each writing waits for the disk twice
			err = m.rememberReachable(hash, s.refs)
		}
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

// maxTag is the longest tag name accepted, in bytes: what a file name holds.
const maxTag = 255

// asCommit returns the commit that a version of 40 hexadecimal digits is.
func asCommit(version string) (plumbing.Hash, bool) {
	if len(version) != 40 || !plumbing.IsHash(version) {
		return plumbing.ZeroHash, false
	}
	return plumbing.NewHash(version), true
}

// checkVersion refuses what is neither a commit nor a name that git allows a
// tag (git-check-ref-format), or that could be read as something else.
func checkVersion(version string) error {
	refuse := func(why string) error {
		return provision.Fail(provision.CodeBadSnapshot,
			fmt.Sprintf("template_source.version: %q %s; it must be a tag or a full commit of 40 hexadecimal digits",
				printable(version, maxTag), why), nil)
	}
	switch {
	case version == "":
		return provision.Fail(provision.CodeBadSnapshot,
			"template_source.version: missing; it must be a tag or a full commit of 40 hexadecimal digits", nil)
	case len(version) > maxTag:
		return refuse("is too long")
	case strings.HasPrefix(version, "-"):
		return refuse("begins with “-” and would be read as an option")
	case strings.HasPrefix(version, "refs/"):
		return refuse("names a reference (refs/…)")
	case version == "@" || strings.Contains(version, "@{") || strings.Contains(version, ".."):
		return refuse("is a revision expression")
	case strings.ContainsFunc(version, func(r rune) bool { return r < ' ' || r == 0x7f || strings.ContainsRune(" ~^:?*[\\", r) }):
		return refuse("has a character that git does not allow in a tag")
	case strings.HasSuffix(version, "."):
		return refuse("ends with a dot")
	}
	for segment := range strings.SplitSeq(version, "/") {
		switch {
		case segment == "":
			return refuse("has an empty segment")
		case strings.HasPrefix(segment, "."):
			return refuse("has a segment that begins with a dot")
		case strings.HasSuffix(segment, ".lock"):
			return refuse("has a segment that ends with .lock")
		}
	}
	return nil
}

// nearest returns up to n of the names that are closest to name and not far
// from it, the closest first.
func nearest(name string, names []string, n int) []string {
	type scored struct {
		name     string
		distance int
	}
	limit := max(2, len(name)/2)
	var near []scored
	for _, candidate := range names {
		if d := levenshtein.Distance(name, candidate, nil); d <= limit {
			near = append(near, scored{candidate, d})
		}
	}
	slices.SortFunc(near, func(a, b scored) int {
		// Of equally close tags the later version is the likelier wish.
		return cmp.Or(cmp.Compare(a.distance, b.distance), -cmp.Compare(a.name, b.name))
	})
	found := make([]string, 0, n)
	for _, s := range near[:min(n, len(near))] {
		found = append(found, printable(s.name, 80))
	}
	return found
}

// checkPath returns template_source.path cleaned, "." for the root, or a
// Failure when it could leave a directory.
func checkPath(raw string) (string, error) {
	switch {
	case raw == "":
		return ".", nil
	case len(raw) > maxLink, strings.ContainsFunc(raw, unicode.IsControl), strings.Contains(raw, `\`):
		return "", refusePath("template_source.path: %q is not a path of directories separated by “/”", printable(raw, 120))
	case path.IsAbs(raw):
		return "", refusePath("template_source.path: %q is absolute; it must be relative to the repository's root", printable(raw, 120))
	case slices.Contains(strings.Split(raw, "/"), ".."):
		return "", refusePath("template_source.path: %q climbs with “..”; name the directory from the repository's root", printable(raw, 120))
	case !filepath.IsLocal(raw):
		return "", refusePath("template_source.path: %q leaves the repository", printable(raw, 120))
	}
	return path.Clean(raw), nil
}

// checkTemplate refuses a path that is no directory of the work tree with a
// template in it, and says where there are templates.
func checkTemplate(dir, name string, w *written) error {
	for _, submodule := range w.submodules {
		if name == submodule || strings.HasPrefix(name, submodule+"/") {
			return refusePath("template_source.path: %q lies in the submodule %s, and submodules are not fetched; name the submodule's own repository as the template's",
				name, printable(submodule, 120))
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("look for the template: %w", err)
	}
	defer func() { _ = root.Close() }()
	info, err := root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refusePath("template_source.path: there is no directory %q in the repository; %s", name, w.whereTemplates(name))
	case err != nil:
		return refusePath("template_source.path: %q cannot be used: %v; %s", name, err, w.whereTemplates(name))
	case !info.IsDir():
		return refusePath("template_source.path: %q is a file, not a directory; %s", name, w.whereTemplates(name))
	}
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil {
		return fmt.Errorf("look for the template: %w", err)
	}
	for _, entry := range entries {
		if isTemplate(entry.Name()) && !entry.IsDir() {
			return nil
		}
	}
	where := fmt.Sprintf("%q has", name)
	if name == "." {
		where = "the repository's root has"
	}
	return refusePath("template_source.path: %s no .tf or .tf.json file; %s", where, w.whereTemplates(name))
}

// whereTemplates lists directories that do hold a template, those with names
// like the one asked for first.
func (w *written) whereTemplates(name string) string {
	if len(w.templates) == 0 {
		return "no directory of the repository has any"
	}
	near := nearest(name, w.templates, 3)
	for _, dir := range w.templates {
		if !slices.Contains(near, dir) {
			near = append(near, dir)
		}
	}
	return "templates are in: " + some(near, 10)
}

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
