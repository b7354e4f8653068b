package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/server"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// session is one exchange with a server: its references, then at most one
// pack. It ends with the context it was opened with.
type session interface {
	AdvertisedReferencesContext(context.Context) (*packp.AdvRefs, error)
	UploadPack(context.Context, *packp.UploadPackRequest) (*packp.UploadPackResponse, error)
	Close() error
}

// open begins an exchange. go-git's own registry of transports is not used: it
// is global, and its clients follow redirects anywhere and cannot be cancelled
// while they connect.
func (s *Source) open(ctx context.Context, a address) (session, error) {
	switch a = s.hosts.overHTTPS(a); a.Scheme {
	case "https":
		return s.openHTTPS(a)
	case "ssh":
		return s.openSSH(ctx, a)
	case "file":
		return openFile(a)
	default:
		return nil, fmt.Errorf("no transport for %s", a.Scheme)
	}
}

// listing is what a server says its references are.
type listing struct {
	tags     map[string]plumbing.Hash // peeled to what an annotated tag names
	branches map[string]bool
}

// list asks for the references and nothing else.
func (s *Source) list(ctx context.Context, a address) (listing, error) {
	l := listing{tags: map[string]plumbing.Hash{}, branches: map[string]bool{}}
	err := s.exchange(ctx, a, func(_ context.Context, _ session, refs *packp.AdvRefs) error {
		for name, hash := range refs.References {
			if tag, ok := strings.CutPrefix(name, "refs/tags/"); ok {
				if peeled, ok := refs.Peeled[name]; ok {
					hash = peeled
				}
				l.tags[tag] = hash
			} else if branch, ok := strings.CutPrefix(name, "refs/heads/"); ok {
				l.branches[branch] = true
			}
		}
		return nil
	})
	return l, err
}

// Tags lists a repository's tags and the commits that they mean now. Failures are
// those of Resolve.
func (s *Source) Tags(ctx context.Context, repo string) (map[string]string, error) {
	a, err := s.allow.permit(repo)
	if err != nil {
		return nil, err
	}
	l, err := s.list(ctx, a)
	if err != nil {
		return nil, err
	}
	tags := make(map[string]string, len(l.tags))
	for name, commit := range l.tags {
		tags[name] = commit.String()
	}
	return tags, nil
}

// Probe asks for a repository's references, as a checkout begins, and nothing
// more: that it can be reached and may be read. Failures are those of Resolve.
func (s *Source) Probe(ctx context.Context, repo string) error {
	a, err := s.allow.permit(repo)
	if err != nil {
		return err
	}
	_, err = s.list(ctx, a)
	return err
}

// exchange opens a session, reads the references and has use go on with it,
// all within Git.Timeout. An empty repository has no references. Errors are
// translated.
func (s *Source) exchange(ctx context.Context, a address, use func(context.Context, session, *packp.AdvRefs) error) error {
	limited, cancel := context.WithTimeoutCause(ctx, s.timeout, errTimeout)
	defer cancel()
	err := func() (err error) {
		conn, err := s.open(limited, a)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }() // what matters has been read or has failed
		refs, err := conn.AdvertisedReferencesContext(limited)
		if isEmptyRepository(err) {
			refs, err = packp.NewAdvRefs(), nil
		}
		if err != nil {
			return err
		}
		transport.FilterUnsupportedCapabilities(refs.Capabilities)
		return use(limited, conn, refs)
	}()
	return s.explain(ctx, limited, a, err)
}

// streamServed is the size in bytes from which go-git streams what it serves.
const streamServed = 4 << 20

// openFile serves a repository on this disk from within the process. git's
// own upload-pack is not used: it may be missing, and it refuses repositories
// that belong to another user.
func openFile(a address) (session, error) {
	endpoint := &transport.Endpoint{Protocol: "file", Path: strings.ReplaceAll(a.DialPath, "%20", " ")}
	objects, err := openDisk(endpoint.Path)
	if err != nil {
		return nil, err
	}
	inner, err := server.NewClient(server.MapLoader{endpoint.String(): objects}).NewUploadPackSession(endpoint, nil)
	return &fileSession{inner, objects}, err
}

// fileSession adds what go-git's server leaves out: the commits that annotated
// tags name.
type fileSession struct {
	transport.UploadPackSession
	objects storer.Storer
}

func (s *fileSession) AdvertisedReferencesContext(ctx context.Context) (*packp.AdvRefs, error) {
	refs, err := s.UploadPackSession.AdvertisedReferencesContext(ctx)
	if err != nil {
		return nil, err
	}
	for name, hash := range refs.References {
		for tag, err := object.GetTag(s.objects, hash); err == nil; tag, err = object.GetTag(s.objects, tag.Target) {
			refs.Peeled[name] = tag.Target
		}
	}
	return refs, nil
}

// openDisk finds the repository, bare or not, at a path.
func openDisk(path string) (storer.Storer, error) {
	for _, dir := range []string{path, filepath.Join(path, ".git"), path + ".git"} {
		if _, err := os.Stat(filepath.Join(dir, "objects")); err == nil {
			return filesystem.NewStorageWithOptions(osfs.New(dir), cache.NewObjectLRU(objectCache),
				filesystem.Options{LargeObjectThreshold: streamServed}), nil
		}
	}
	return nil, transport.ErrRepositoryNotFound
}
