package postgres

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/xi2/xz"
)

// maxUnpacked bounds what an archive may grow to; a build has about 100 MB.
const maxUnpacked = 1 << 30

// unpack writes into dir what a published build holds: a jar with a tar.xz in
// it. Nothing is written outside of dir, whatever the archive says.
func unpack(ctx context.Context, jar []byte, dir string) error {
	archive, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return err
	}
	for _, file := range archive.File {
		if !strings.HasSuffix(file.Name, ".txz") {
			continue
		}
		packed, err := file.Open()
		if err != nil {
			return err
		}
		defer func() { _ = packed.Close() }()
		plain, err := xz.NewReader(packed, 0)
		if err != nil {
			return err
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer func() { _ = root.Close() }()
		return untar(ctx, &limited{from: plain, left: maxUnpacked}, root)
	}
	return errors.New("it holds no programs")
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
	name := path.Clean(header.Name)
	if name == "." {
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
	case tar.TypeSymlink:
		return root.Symlink(header.Linkname, name)
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
