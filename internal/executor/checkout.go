package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/source"
)

// checkout is the template's way from its repository to the run's directory. Where the
// caches have a uid of their own, it is done by that one: credentials and files that
// only it may read serve here and nowhere else.
type checkout struct {
	*task
	into   string              // the run's directory
	id     *isolation.Identity // nil where the caches have the run's uid
	source *source.Source      // what repositories are reached by
}

// get resolves the version, has it recorded, and writes its files. It returns the
// directory of the template.
func (c *checkout) get(ctx context.Context) (templateDir string, err error) {
	var dir string // of all files
	err = c.asCache(func() (err error) {
		dir, templateDir, err = c.fetch(ctx)
		return err
	})
	if err == nil && dir != c.into {
		templateDir, err = c.takeOver(dir, templateDir)
	}
	return templateDir, err
}

// fetch returns the directory into which the files were written and, in it, that
// of the template.
func (c *checkout) fetch(ctx context.Context) (dir, templateDir string, err error) {
	ts := c.snapshot.TemplateSource
	src, err := source.New(source.Options{Policy: c.job.Settings.Policy, Git: c.job.Settings.Git, ReposDir: c.job.Dirs.Repos})
	if err != nil {
		return "", "", err
	}
	c.source = src
	request := source.Request{Repo: ts.Repo, Version: ts.Version, Path: ts.Path, PinnedCommit: c.job.Assignment.PinnedCommit}
	c.log.System("Checking out %s %s%s", ts.Repo, ts.Version, inPath(ts.Path))
	resolved := source.Resolved{Commit: request.PinnedCommit}
	// What a tag meant to the run that asked for a check it means for ever, and no git server
	// is asked with each check.
	began := time.Now()
	if c.job.Check == nil || ts.Version == request.PinnedCommit {
		if resolved, err = src.Resolve(ctx, request); err != nil {
			return "", "", err
		}
	}
	c.session.marks.ended("git resolve", began)
	c.notice(resolved.Notice)
	if err := c.session.report(provision.Detail{Stage: provision.StageCheckout, Commit: resolved.Commit}); err != nil {
		return "", "", err
	}
	dir = c.into
	if c.id != nil {
		dir = c.handOverDir()
		if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // the directory above lets only this run's group in
			return "", "", fmt.Errorf("prepare the checkout: %w", err)
		}
	}
	began = time.Now()
	tree, err := src.Checkout(ctx, request, resolved.Commit, dir)
	if err != nil {
		return "", "", err
	}
	c.session.marks.ended("git checkout", began)
	c.notice(tree.Notice)
	c.commit = resolved.Commit
	return dir, tree.Dir, nil
}

// takeOver copies what the caches' uid has checked out: a template may do with
// its files what their owner may, change their mode for one. The next asCache
// removes the original: each change of the uid stops all threads.
func (c *checkout) takeOver(dir, templateDir string) (string, error) {
	defer c.session.marks.ended("hand over files", time.Now())
	within, err := filepath.Rel(dir, templateDir)
	if err == nil {
		err = os.CopyFS(c.into, os.DirFS(dir))
	}
	if err != nil {
		return "", fmt.Errorf("take the checkout over: %w", err)
	}
	return filepath.Join(c.into, within), nil
}

func (c *checkout) handOverDir() string { return filepath.Join(c.job.Dirs.Checkout, "tree") }

// asCache does something as the caches' uid, which has a directory for temporary
// files of its own: it cannot write to the run's. What is left in there when it is
// done goes, unless it is to be handed over.
func (c *checkout) asCache(do func() error) error {
	if c.id == nil {
		return do()
	}
	return c.id.AsCache(func() (err error) {
		temp := filepath.Join(c.job.Dirs.Checkout, "tmp")
		// What a killed run left is in the way.
		err = errors.Join(os.RemoveAll(c.job.Dirs.Checkout), os.MkdirAll(temp, 0o700), os.Chmod(c.job.Dirs.Checkout, 0o750)) //nolint:gosec // the group is the run's
		if err != nil {
			return fmt.Errorf("prepare the checkout: %w", err)
		}
		defer os.Setenv("TMPDIR", os.Getenv("TMPDIR")) //nolint:errcheck // a valid name
		if err := os.Setenv("TMPDIR", temp); err != nil {
			return err
		}
		if err := do(); err != nil {
			return err
		}
		if _, err := os.Lstat(c.handOverDir()); err == nil {
			return nil
		}
		return os.RemoveAll(c.job.Dirs.Checkout)
	})
}

// drop removes what the caches' uid made for this run, if there is any.
func (c *checkout) drop() error {
	if _, err := os.Lstat(c.job.Dirs.Checkout); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return c.id.AsCache(func() error { return os.RemoveAll(c.job.Dirs.Checkout) })
}

// settle gives up what only the caches' uid may do, if that is not done.
func (c *checkout) settle() error {
	if c.id.Settled() {
		return nil
	}
	return errors.Join(c.drop(), c.id.Settle())
}

func (c *checkout) notice(text string) {
	if text != "" {
		c.log.System("%s", text)
	}
}

func inPath(path string) string {
	if path == "" {
		return ""
	}
	return ", path " + path
}
