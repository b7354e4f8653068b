package source

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // git's checksum, not a signature; objects are checked apart
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const (
	// maxPack is the largest pack accepted, in bytes.
	maxPack = 4 << 30
	// minObject is less than any object takes in a pack: a header and an empty
	// zlib stream.
	minObject = 9

	packHeader  = 12
	packTrailer = sha1.Size
)

var (
	errPackTooLarge    = fmt.Errorf("the server sends more than %d GB", maxPack>>30)
	errHistoryTooLarge = errors.New("the server sends more of its history than is looked through")
	errBadPack         = errors.New("the server sent a broken pack")
)

// receive stores a pack with its index. Nothing of it can be seen before it is
// complete and on disk, and then all of it at once, so that a kill at any
// moment leaves a sound mirror. go-git's own writer indexes while it receives,
// in a goroutine of its own, and leaves its files behind when that fails.
func (m mirror) receive(r io.Reader) (err error) {
	pack, err := os.CreateTemp(m.packs(), "tmp_pack_*")
	if err != nil {
		return &localError{fmt.Errorf("receive pack: %w", err)}
	}
	defer func() {
		_ = pack.Close()
		_ = os.Remove(pack.Name())
	}()
	// Only what this side fails at is this side's fault.
	if _, err := io.Copy(localWriter{pack}, &countdown{r: r, left: maxPack, err: errPackTooLarge}); err != nil {
		return err
	}
	checksum, err := checkPack(pack)
	if err != nil || checksum == nil {
		return err
	}
	have, err := m.objects()
	if err != nil {
		return err
	}
	defer have.close()
	index, checksum, err := indexPack(pack, checksum, have)
	if err != nil {
		return err
	}
	name := filepath.Join(m.packs(), fmt.Sprintf("pack-%x", checksum))
	if err := pack.Sync(); err != nil {
		return &localError{fmt.Errorf("receive pack: %w", err)}
	}
	if err := replaceFile(name+".idx", index); err != nil {
		return &localError{fmt.Errorf("receive pack: %w", err)}
	}
	// Readers look for packs, so the index had to be there first.
	if err := os.Rename(pack.Name(), name+".pack"); err != nil {
		return &localError{fmt.Errorf("receive pack: %w", err)}
	}
	return nil
}

// checkPack compares the pack with the checksum at its end, and its claims
// with its size. It returns nil for a pack without objects.
func checkPack(pack *os.File) ([]byte, error) {
	size, err := pack.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, &localError{err}
	}
	if size < packHeader+packTrailer {
		return nil, fmt.Errorf("%w: only %d bytes", errBadPack, size)
	}
	sum := sha1.New() //nolint:gosec // see the import
	if _, err := io.Copy(sum, io.NewSectionReader(pack, 0, size-packTrailer)); err != nil {
		return nil, &localError{err}
	}
	var header [packHeader]byte
	var trailer [packTrailer]byte
	_, err1 := pack.ReadAt(header[:], 0)
	_, err2 := pack.ReadAt(trailer[:], size-packTrailer)
	if err := errors.Join(err1, err2); err != nil {
		return nil, &localError{err}
	}
	count := int64(binary.BigEndian.Uint32(header[8:]))
	switch {
	case string(header[:4]) != "PACK":
		return nil, fmt.Errorf("%w: it is none", errBadPack)
	case !bytes.Equal(sum.Sum(nil), trailer[:]):
		return nil, fmt.Errorf("%w: its checksum is wrong", errBadPack)
	case count > size/minObject:
		// go-git would allocate index entries for as many as are claimed.
		return nil, fmt.Errorf("%w: it claims %d objects in %d bytes", errBadPack, count, size)
	case count == 0:
		return nil, nil
	}
	return trailer[:], nil
}

// countdown fails with err once more than left bytes were read.
type countdown struct {
	r    io.Reader
	left int64
	err  error
}

func (c *countdown) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.left -= int64(n); c.left < 0 {
		return 0, c.err
	}
	return n, err
}

// localWriter tells a full disk from a broken connection.
type localWriter struct{ w io.Writer }

func (l localWriter) Write(p []byte) (int, error) {
	n, err := l.w.Write(p)
	if err != nil {
		return n, &localError{fmt.Errorf("receive pack: %w", err)}
	}
	return n, nil
}
