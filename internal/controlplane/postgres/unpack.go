package postgres

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxUnpacked bounds what an archive may grow to; a build has about 100 MB.
const maxUnpacked = 1 << 30

// Where a package has its build, and the list of its symbolic links: npm's
// archives can't hold any.
const (
	buildRoot = "package/native/"
	linksFile = "pg-symlinks.json"
)

// unpack writes into dir what a published build holds: a tar.gz. Nothing is
// written outside of dir, whatever the archive says.
func unpack(ctx context.Context, packed []byte, dir string) error {
	plain, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := untar(ctx, &limited{from: plain, left: maxUnpacked}, root); err != nil {
		return err
	}
	if _, err := root.Stat("bin"); err != nil {
		return errors.New("it holds no programs")
	}
	return link(root)
}

// link makes the links that the build lists.
func link(root *os.Root) error {
	raw, err := root.ReadFile(linksFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(raw, &links); err != nil {
		return fmt.Errorf("%s: %w", linksFile, err)
	}
	for _, l := range links {
		const prefix = "native/"
		source, ok := strings.CutPrefix(l.Source, prefix)
		target, ok2 := strings.CutPrefix(l.Target, prefix)
		if !ok || !ok2 || !filepath.IsLocal(source) || !filepath.IsLocal(target) {
			return fmt.Errorf("%s: %q to %q: a path that leaves the archive", linksFile, l.Target, l.Source)
		}
		to, err := filepath.Rel(path.Dir(target), source)
		if err != nil {
			return err
		}
		if err := root.Symlink(to, target); err != nil {
			return err
		}
	}
	return nil
}

func untar(ctx context.Context, from io.Reader, root *os.Root) error {
	archive := tar.NewReader(from)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := extract(archive, header, root); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}

func extract(archive *tar.Reader, header *tar.Header, root *os.Root) error {
	name, inBuild := strings.CutPrefix(header.Name, buildRoot)
	if !inBuild {
		return nil // npm's own
	}
	if name = path.Clean(name); name == "." {
		return nil
	}
	if !filepath.IsLocal(name) {
		return errors.New("a path that leaves the archive")
	}
	if err := makeDir(root, path.Dir(name)); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return makeDir(root, name)
	case tar.TypeReg:
		mode := 0o644 | fs.FileMode(header.Mode)&0o111
		file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, archive)
		return errors.Join(err, file.Chmod(mode), file.Close()) // Chmod because of the umask
	default:
		return nil // no build has anything else
	}
}

// makeDir makes a directory with its parents, open to all whatever the umask.
func makeDir(root *os.Root, name string) error {
	if name == "." {
		return nil
	}
	if info, err := root.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	if err := makeDir(root, path.Dir(name)); err != nil {
		return err
	}
	if err := root.Mkdir(name, 0o755); err != nil {
		return err
	}
	return root.Chmod(name, 0o755)
}

// limited fails when more than left bytes are read, where io.LimitReader would
// pretend that the archive ends there.
type limited struct {
	from io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.from.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, errors.New("the archive is larger than any build of PostgreSQL")
	}
	return n, err
}
