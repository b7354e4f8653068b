package container

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The versions that are built: one to upgrade from, and one to upgrade to.
const (
	oldVersion = "0.1.0-test"
	newVersion = "0.2.0-test"
	revision   = "0123456789abcdef0123456789abcdef01234567"
)

// images are what "make images" has built, and what it was built from.
type images struct {
	registry string // of this checkout alone
	postgres string
	bases    []string // NAME=IMAGE
	compiled string   // the folder of what is compiled
}

func (i *images) tendril(version string) string { return i.registry + "/tendril:" + version }

func (i *images) slim(version string) string { return i.registry + "/tendril:" + version + "-slim" }

func (i *images) trellis(version string) string { return i.registry + "/trellis:" + version }

// newImages names the images of this checkout.
func newImages() *images {
	return &images{registry: fmt.Sprintf("tendril-test-%x", sha256.Sum256([]byte(root())))[:20]}
}

// buildAll builds each image once for all tests. What has not changed since the
// last time comes from Docker's own cache.
func (i *images) buildAll(ctx context.Context) error {
	lines, err := makeTarget(ctx, "test-images")
	if err == nil {
		i.compiled, err = os.MkdirTemp("", "tendril-images-")
	}
	if err != nil {
		return err
	}
	defer os.RemoveAll(i.compiled) //nolint:errcheck // Docker has what is needed of it
	for _, line := range strings.Fields(lines) {
		if image, is := strings.CutPrefix(line, "POSTGRES_IMAGE="); is {
			i.postgres = image
		} else {
			i.bases = append(i.bases, line)
		}
	}
	if err := i.build(ctx, oldVersion, "images"); err != nil {
		return err
	}
	return i.build(ctx, newVersion, "image-tendril", "image-trellis")
}

// build has the machine's network: it installs git and ssh from the archive, by
// whatever name server the machine has.
func (i *images) build(ctx context.Context, version string, targets ...string) error {
	folder, err := compile(ctx, i.compiled, version)
	if err != nil {
		return err
	}
	args := append(targets, "REGISTRY="+i.registry, "VERSION="+version, "REVISION="+revision, "CONTEXT="+folder, "DOCKER_FLAGS=--network=host --quiet")
	_, err = makeTarget(ctx, append(args, i.bases...)...)
	return err
}

// all lists the names of what was built.
func (i *images) all() []string {
	return []string{i.tendril(oldVersion), i.slim(oldVersion), i.trellis(oldVersion), i.tendril(newVersion), i.trellis(newVersion)}
}

// makeTarget runs make in the root of the repository and returns what it says.
func makeTarget(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "make", append([]string{"--no-print-directory", "--silent"}, args...)...)
	cmd.Dir = root()
	cmd.Env = append(os.Environ(), "MAKEFLAGS=")
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("make %s: %w\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// root is the directory of the module.
func root() string {
	dir, err := os.Getwd()
	for ; err == nil && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	return "" // no test can run outside of the module
}
