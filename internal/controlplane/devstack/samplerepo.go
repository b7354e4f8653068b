package devstack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sort"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

const mainBranch = plumbing.ReferenceName("refs/heads/main")

// commitSample sees to it that the bare repository at dir has a commit of
// exactly these files, and returns the tag that names it. The commit's id is a
// function of the files alone (no parent, a fixed author and date), so the same
// content gets the same commit and tag again and again, and no tag ever moves:
// other content gets the next free one, v1, v2, …. A tag counts as taken too
// when pins say that it once meant another commit.
func commitSample(dir string, files fs.FS, pins map[string]string) (tag string, err error) {
	repo, err := openBare(dir)
	if err != nil {
		return "", err
	}
	tree, err := writeTree(repo, files, ".")
	if err != nil {
		return "", err
	}
	commit, err := writeCommit(repo, tree)
	if err != nil {
		return "", err
	}
	if tag, err = tagFor(repo, commit, pins); err != nil {
		return "", err
	}
	for _, ref := range []*plumbing.Reference{
		plumbing.NewHashReference(plumbing.NewTagReferenceName(tag), commit),
		plumbing.NewHashReference(mainBranch, commit), // for people who look at it with git
	} {
		if err := repo.SetReference(ref); err != nil {
			return "", fmt.Errorf("write %s: %w", ref.Name(), err)
		}
	}
	return tag, readable(dir)
}

// openBare opens the repository, or makes it, under another name first: a
// half-made one would be there for ever.
func openBare(dir string) (*filesystem.Storage, error) {
	if _, err := os.Stat(dir); err == nil {
		return storageOf(dir), nil
	}
	half := dir + ".new"
	if err := os.RemoveAll(half); err != nil {
		return nil, err
	}
	storage := storageOf(half)
	settings := config.NewConfig()
	settings.Core.IsBare = true
	err := errors.Join(
		storage.Init(),
		storage.SetConfig(settings),
		storage.SetReference(plumbing.NewSymbolicReference(plumbing.HEAD, mainBranch)),
	)
	if err != nil {
		return nil, fmt.Errorf("make the repository %s: %w", half, err)
	}
	if err := os.Rename(half, dir); err != nil {
		return nil, err
	}
	return storageOf(dir), nil
}

func storageOf(dir string) *filesystem.Storage {
	return filesystem.NewStorage(osfs.New(dir), cache.NewObjectLRUDefault())
}

// tagFor returns the tag that the commit has, else the first free one.
func tagFor(repo storer.ReferenceStorer, commit plumbing.Hash, pins map[string]string) (string, error) {
	for n := 1; ; n++ {
		tag := fmt.Sprintf("v%d", n)
		if pinned, ok := pins[tag]; ok && pinned != commit.String() {
			continue
		}
		ref, err := repo.Reference(plumbing.NewTagReferenceName(tag))
		switch {
		case errors.Is(err, plumbing.ErrReferenceNotFound):
			return tag, nil
		case err != nil:
			return "", fmt.Errorf("read tag %s: %w", tag, err)
		case ref.Hash() == commit:
			return tag, nil
		}
	}
}

func writeTree(store storer.EncodedObjectStorer, files fs.FS, dir string) (plumbing.Hash, error) {
	entries, err := fs.ReadDir(files, dir)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	tree := &object.Tree{}
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		node := object.TreeEntry{Name: entry.Name(), Mode: filemode.Regular}
		if entry.IsDir() {
			node.Mode = filemode.Dir
			node.Hash, err = writeTree(store, files, name)
		} else {
			node.Hash, err = writeBlob(store, files, name)
		}
		if err != nil {
			return plumbing.ZeroHash, fmt.Errorf("write %s: %w", name, err)
		}
		tree.Entries = append(tree.Entries, node)
	}
	sort.Sort(object.TreeEntrySorter(tree.Entries))
	return writeObject(store, tree)
}

func writeBlob(store storer.EncodedObjectStorer, files fs.FS, name string) (plumbing.Hash, error) {
	content, err := fs.ReadFile(files, name)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	blob := store.NewEncodedObject()
	blob.SetType(plumbing.BlobObject)
	w, err := blob.Writer()
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if _, err := w.Write(content); err != nil {
		return plumbing.ZeroHash, err
	}
	if err := w.Close(); err != nil {
		return plumbing.ZeroHash, err
	}
	return store.SetEncodedObject(blob)
}

func writeCommit(store storer.EncodedObjectStorer, tree plumbing.Hash) (plumbing.Hash, error) {
	who := object.Signature{Name: "Tendril", Email: "templates@tendril.run", When: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	return writeObject(store, &object.Commit{Author: who, Committer: who, Message: "Sample template\n", TreeHash: tree})
}

func writeObject(store storer.EncodedObjectStorer, o interface {
	Encode(plumbing.EncodedObject) error
}) (plumbing.Hash, error) {
	encoded := store.NewEncodedObject()
	if err := o.Encode(encoded); err != nil {
		return plumbing.ZeroHash, err
	}
	return store.SetEncodedObject(encoded)
}

// readable lets every account read the repository, whatever the umask: runs may
// have one of their own.
func readable(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if entry.IsDir() {
			mode |= 0o111
		}
		if mode == info.Mode().Perm() {
			return nil
		}
		return root.Chmod(name, mode)
	})
}
