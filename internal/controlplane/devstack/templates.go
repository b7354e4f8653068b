package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"sort"
	"strings"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/tfvars"
	"github.com/tendril-run/tendril/templates"
)

// templatesURL is the directory of the sample repositories as a file:// URL.
// A blank is the one character that has to be escaped for those who read it.
func (o Options) templatesURL() string {
	return "file://" + strings.ReplaceAll(o.path("templates"), " ", "%20")
}

// templatePattern is the policy that allows the sample templates.
func (o Options) templatePattern() string { return o.templatesURL() + "/*" }

// publish writes the sample templates as git repositories and offers them in
// the catalogue. It returns each as "name version".
func publish(ctx context.Context, db *pgxpool.Pool, o Options, org uuid.UUID) (published []string, err error) {
	dir := o.path("templates")
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // runs may have an account of their own, and read it
		return nil, fmt.Errorf("make the templates' directory: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // likewise, whatever the umask
		return nil, fmt.Errorf("make the templates' directory: %w", err)
	}
	samples := templates.All()
	if o.PVESim {
		class, clean, err := simTemplate()
		if err != nil {
			return nil, fmt.Errorf("publish the template class: %w", err)
		}
		defer clean()
		samples = append(samples, class)
	}
	if o.Metal {
		samples = append(samples, metalSample())
	}
	for _, sample := range samples {
		repo := o.templatesURL() + "/" + url.PathEscape(sample.Name) + ".git"
		pins, err := pinsOf(ctx, db, org, repo)
		if err != nil {
			return nil, fmt.Errorf("publish the template %s: %w", sample.Name, err)
		}
		version, err := commitSample(o.path("templates", sample.Name+".git"), sample.Files, pins)
		if err != nil {
			return nil, fmt.Errorf("publish the template %s: %w", sample.Name, err)
		}
		// A data directory that was moved: its workspaces' states are at the new place
		// of the same template.
		_, err = db.Exec(ctx, `
			UPDATE public.workspaces w SET repo = tendril.plain_repo($3) FROM public.templates t
			WHERE t.org_id = $1 AND t.name = $2 AND t.repo <> $3 AND w.org_id = $1 AND w.repo = tendril.plain_repo(t.repo)`,
			org, sample.Name, repo)
		if err != nil {
			return nil, fmt.Errorf("publish the template %s: %w", sample.Name, err)
		}
		_, err = db.Exec(ctx, `
			INSERT INTO public.templates (org_id, name, repo, version, description) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (org_id, name) DO UPDATE SET repo = EXCLUDED.repo, path = '', version = EXCLUDED.version, description = EXCLUDED.description`,
			org, sample.Name, repo, version, sample.Description)
		if err != nil {
			return nil, fmt.Errorf("publish the template %s: %w", sample.Name, err)
		}
		if err := tellSample(ctx, db, org, repo, o.path("templates", sample.Name+".git"), version, sample.Files); err != nil {
			return nil, fmt.Errorf("publish the template %s: %w", sample.Name, err)
		}
		published = append(published, sample.Name+" "+version)
	}
	return published, nil
}

// tellSample records what a sample declares and which tags there are. Both are known here,
// so no inspection is needed, which on a slow machine an agent would be asked for.
func tellSample(ctx context.Context, db *pgxpool.Pool, org uuid.UUID, repo, dir, version string, files fs.FS) error {
	checkout, err := os.MkdirTemp("", "trellis-sample-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(checkout) //nolint:errcheck // goes with other temporary files
	if err := os.CopyFS(checkout, files); err != nil {
		return err
	}
	declared, err := tfvars.Declared(checkout)
	if err != nil {
		return err
	}
	references, err := storageOf(dir).IterReferences()
	if err != nil {
		return err
	}
	tags, commit := []store.Tag{}, ""
	err = references.ForEach(func(ref *plumbing.Reference) error {
		if ref.Name().IsTag() {
			tags = append(tags, store.Tag{Tag: ref.Name().Short(), Commit: ref.Hash().String()})
		}
		if ref.Name() == plumbing.NewTagReferenceName(version) {
			commit = ref.Hash().String()
		}
		return nil
	})
	if err != nil {
		return err
	}
	lease := uuid.New() // of nobody who inspects it already
	_, err = db.Exec(ctx, `
		UPDATE public.template_inspections SET lease = $4, lease_until = clock_timestamp() + interval '1 minute'
		WHERE org_id = $1 AND repo = tendril.plain_repo($2) AND version = $3 AND path = '' AND status <> 'queued'`,
		org, repo, version, lease)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, "SELECT tendril.settle_inspection($1, tendril.plain_repo($2), $3, '', $4, $5, $6, NULL, NULL, false), tendril.record_tags($1, tendril.plain_repo($2), $7)",
		org, repo, version, lease, commit, declared, store.NewestTags(tags))
	return err
}

// pinsOf returns the commits that the versions of a repository meant when they
// were first used. They hold even when the repository itself was removed.
func pinsOf(ctx context.Context, db *pgxpool.Pool, org uuid.UUID, repo string) (map[string]string, error) {
	found, err := db.Query(ctx, `
		SELECT p.version, p.commit FROM public.clusters c JOIN public.cluster_pins p ON p.cluster_id = c.id WHERE c.org_id = $1 AND p.repo = tendril.plain_repo($2)
		UNION ALL SELECT version, commit FROM public.template_pins WHERE org_id = $1 AND repo = tendril.plain_repo($2)`, org, repo)
	if err != nil {
		return nil, err
	}
	pins := map[string]string{}
	var version, commit string
	_, err = pgx.ForEachRow(found, []any{&version, &commit}, func() error {
		pins[version] = commit
		return nil
	})
	return pins, err
}

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
			node.Hash, node.Mode, err = writeBlob(store, files, name)
		}
		if err != nil {
			return plumbing.ZeroHash, fmt.Errorf("write %s: %w", name, err)
		}
		tree.Entries = append(tree.Entries, node)
	}
	sort.Sort(object.TreeEntrySorter(tree.Entries))
	return writeObject(store, tree)
}

// writeBlob writes a file. One that begins as a script does can be executed: the samples
// within the program have no mode.
func writeBlob(store storer.EncodedObjectStorer, files fs.FS, name string) (plumbing.Hash, filemode.FileMode, error) {
	content, err := fs.ReadFile(files, name)
	if err != nil {
		return plumbing.ZeroHash, filemode.Regular, err
	}
	blob := store.NewEncodedObject()
	blob.SetType(plumbing.BlobObject)
	w, err := blob.Writer()
	if err != nil {
		return plumbing.ZeroHash, filemode.Regular, err
	}
	if _, err := w.Write(content); err != nil {
		return plumbing.ZeroHash, filemode.Regular, err
	}
	if err := w.Close(); err != nil {
		return plumbing.ZeroHash, filemode.Regular, err
	}
	mode := filemode.Regular
	if bytes.HasPrefix(content, []byte("#!")) {
		mode = filemode.Executable
	}
	hash, err := store.SetEncodedObject(blob)
	return hash, mode, err
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
