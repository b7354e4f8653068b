package source

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/server"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

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
