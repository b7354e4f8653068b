package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/source"
)

// checkout resolves the version, has it recorded, and writes its files. Where
// the caches have a uid of their own, this is done by it: credentials and files
// that only it may read serve here and nowhere else.
func (r *provisionRun) checkout(ctx context.Context) (templateDir, commit string, err error) {
	var dir string // of the template's files
	err = r.asCache(func() (err error) {
		dir, templateDir, commit, err = r.fetch(ctx)
		return err
	})
	if err == nil && dir != r.files.source {
		templateDir, err = r.takeOver(dir, templateDir)
	}
	if err != nil {
		return "", "", err
	}
	if err := r.files.forgetShippedState(); err != nil {
		return "", "", fmt.Errorf("look through the checkout: %w", err)
	}
	r.log.System("Checked out commit %s", commit)
	return templateDir, commit, nil
}

// fetch returns the directory into which the files were written and, in it, that
// of the template.
func (r *provisionRun) fetch(ctx context.Context) (dir, templateDir, commit string, err error) {
	ts := r.snapshot.TemplateSource
	src, err := source.New(source.Options{Policy: r.job.Settings.Policy, Git: r.job.Settings.Git, ReposDir: r.job.Dirs.Repos})
	if err != nil {
		return "", "", "", err
	}
	r.source = src
	request := source.Request{Repo: ts.Repo, Version: ts.Version, Path: ts.Path, PinnedCommit: r.job.Assignment.PinnedCommit}
	r.log.System("Checking out %s %s%s", ts.Repo, ts.Version, inPath(ts.Path))
	resolved, err := src.Resolve(ctx, request)
	if err != nil {
		return "", "", "", err
	}
	r.notice(resolved.Notice)
	if err := r.session.report(provision.Detail{Stage: provision.StageCheckout, Commit: resolved.Commit}); err != nil {
		return "", "", "", err
	}
	dir = r.files.source
	if r.id != nil {
		dir = r.handOverDir()
		if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // the directory above lets only this run's group in
			return "", "", "", fmt.Errorf("prepare the checkout: %w", err)
		}
	}
	tree, err := src.Checkout(ctx, request, resolved.Commit, dir)
	if err != nil {
		return "", "", "", err
	}
	r.notice(tree.Notice)
	return dir, tree.Dir, resolved.Commit, nil
}

// takeOver copies what the caches' uid has checked out: a template may do with
// its files what their owner may, change their mode for one.
func (r *provisionRun) takeOver(dir, templateDir string) (string, error) {
	within, err := filepath.Rel(dir, templateDir)
	if err == nil {
		err = os.CopyFS(r.files.source, os.DirFS(dir))
	}
	if err != nil {
		return "", fmt.Errorf("take the checkout over: %w", err)
	}
	return filepath.Join(r.files.source, within), r.dropCheckout()
}

func (r *provisionRun) handOverDir() string { return filepath.Join(r.job.Dirs.Checkout, "tree") }

// asCache does something as the caches' uid, which has a directory for temporary
// files of its own: it cannot write to the run's.
func (r *provisionRun) asCache(do func() error) error {
	if r.id == nil {
		return do()
	}
	return r.id.AsCache(func() error {
		temp := filepath.Join(r.job.Dirs.Checkout, "tmp")
		// What a killed run left is in the way.
		err := errors.Join(r.dropCheckout(), os.MkdirAll(temp, 0o700), os.Chmod(r.job.Dirs.Checkout, 0o750)) //nolint:gosec // the group is the run's
		if err != nil {
			return fmt.Errorf("prepare the checkout: %w", err)
		}
		defer os.Setenv("TMPDIR", os.Getenv("TMPDIR")) //nolint:errcheck // a valid name
		if err := os.Setenv("TMPDIR", temp); err != nil {
			return err
		}
		return do()
	})
}

// dropCheckout removes what the caches' uid made for this run.
func (r *provisionRun) dropCheckout() error {
	return r.id.AsCache(func() error { return os.RemoveAll(r.job.Dirs.Checkout) })
}

// settleIdentity gives up what only the caches' uid may do, if that is not done.
func (r *provisionRun) settleIdentity() error {
	if r.id.Settled() {
		return nil
	}
	return errors.Join(r.dropCheckout(), r.id.Settle())
}

func inPath(path string) string {
	if path == "" {
		return ""
	}
	return ", path " + path
}
