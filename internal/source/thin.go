package source

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1" //nolint:gosec // git's checksum, not a signature; objects are checked apart
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
)

// completion makes a thin pack whole. Such a pack has differences to objects
// that it lacks, because we said that they are here; go-git reads only packs
// that have all they need.
type completion struct {
	pack  *os.File
	have  objects
	end   int64 // where the next object goes; 0 before the first
	added int
}

// maxThinBase is the largest object of the mirror, in bytes, that a pack is
// completed with, for it is held in memory. With a difference to a larger one
// the pack is refused, and the server asked for everything: that is streamed.
const maxThinBase = 16 << 20

// add puts an object of the mirror at the end of the pack, where its checksum
// was.
func (c *completion) add(id plumbing.Hash) (kind plumbing.ObjectType, content []byte, at delta, err error) {
	kind, size, err := c.have.kind(id)
	if err != nil {
		return kind, nil, delta{}, err
	}
	buffer := bytes.NewBuffer(make([]byte, 0, min(size, maxThinBase)))
	if _, err := c.have.copy(buffer, kind, id, maxThinBase); err != nil {
		return kind, nil, delta{}, err
	}
	if c.added == 0 {
		size, err := c.pack.Seek(0, io.SeekEnd)
		if err != nil {
			return kind, nil, delta{}, &localError{err}
		}
		c.end = size - packTrailer
	}
	content = buffer.Bytes()
	sum := crc32.NewIEEE()
	w := &countingWriter{w: io.MultiWriter(io.NewOffsetWriter(c.pack, c.end), sum)}
	_, err = w.Write(objectHeader(kind, len(content)))
	packed, level := zlib.NewWriterLevel(w, zlib.BestSpeed)
	if err = errors.Join(err, level); err == nil {
		_, err = packed.Write(content)
		err = errors.Join(err, packed.Close())
	}
	if err != nil {
		return kind, nil, delta{}, &localError{err}
	}
	at = delta{offset: c.end, crc: sum.Sum32()}
	c.end += w.n
	c.added++
	if c.end > maxPack {
		return kind, nil, delta{}, errPackTooLarge
	}
	return kind, content, at, nil
}

// seal makes the pack of count objects a true one again and returns its
// checksum. Without anything added that is the one it came with.
func (c *completion) seal(count int, checksum []byte) ([]byte, error) {
	if c.added == 0 {
		return checksum, nil
	}
	if _, err := c.pack.WriteAt(binary.BigEndian.AppendUint32(nil, uint32(count+c.added)), packHeader-4); err != nil {
		return nil, &localError{err}
	}
	sum := sha1.New() //nolint:gosec // see the import
	if _, err := io.Copy(sum, io.NewSectionReader(c.pack, 0, c.end)); err != nil {
		return nil, &localError{err}
	}
	checksum = sum.Sum(nil)
	if _, err := c.pack.WriteAt(checksum, c.end); err != nil {
		return nil, &localError{err}
	}
	if err := c.pack.Truncate(c.end + packTrailer); err != nil {
		return nil, &localError{err}
	}
	return checksum, nil
}

// newest returns up to n of the commits that are complete, the latest first.
func (m mirror) newest(n int) ([]plumbing.Hash, error) {
	entries, err := os.ReadDir(m.marks())
	if err != nil {
		return nil, fmt.Errorf("read what is in the mirror: %w", err)
	}
	type mark struct {
		commit plumbing.Hash
		made   time.Time
	}
	marks := make([]mark, 0, len(entries))
	for _, entry := range entries {
		commit, ok := asCommit(entry.Name())
		if info, err := entry.Info(); ok && err == nil {
			marks = append(marks, mark{commit, info.ModTime()})
		}
	}
	slices.SortFunc(marks, func(a, b mark) int { return b.made.Compare(a.made) })
	commits := make([]plumbing.Hash, 0, n)
	for _, mark := range marks[:min(n, len(marks))] {
		commits = append(commits, mark.commit)
	}
	return commits, nil
}

// objectHeader is what stands before an object in a pack: its kind, and its
// size in seven bits a byte after the first four.
func objectHeader(kind plumbing.ObjectType, size int) []byte {
	b := byte(kind)<<4 | byte(size&0x0f)
	var header []byte
	for size >>= 4; size > 0; size >>= 7 {
		header = append(header, b|0x80)
		b = byte(size & 0x7f)
	}
	return append(header, b)
}

// countingWriter counts what was written.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
