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
	"path/filepath"
	"slices"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"

	"github.com/tendril-run/tendril/internal/durable"
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

// packPrefix begins the names of packs that are being received.
const packPrefix = "tmp_"

// receive stores a pack with its index. Nothing of it can be seen before it is
// complete and on disk, and then all of it at once, so that a kill at any
// moment leaves a sound mirror. go-git's own writer indexes while it receives,
// in a goroutine of its own, and leaves its files behind when that fails.
func (m mirror) receive(r io.Reader) (err error) {
	pack, err := os.CreateTemp(m.packs(), packPrefix+"*")
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
	if err := durable.WriteFile(name+".idx", index); err != nil {
		return &localError{fmt.Errorf("receive pack: %w", err)}
	}
	// Readers look for packs, so the index had to be there first.
	if err := durable.Rename(pack.Name(), name+".pack"); err != nil {
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

const (
	// maxDeltified is the largest object, in bytes, that may be a difference or
	// have one to it: git stores none beyond that so (core.bigFileThreshold).
	maxDeltified = 512 << 20
	// maxChain is how long a chain of differences may be; as in git.
	maxChain = 4095
	// maxHint is how much memory is taken for what a pack claims, before it is
	// there.
	maxHint = 16 << 20
)

// delta is an object that a pack holds as the difference to another, its base.
type delta struct {
	offset int64
	length int64 // of the difference
	crc    uint32
}

// base is an object that a pack holds whole.
type base struct {
	offset int64
	id     plumbing.Hash
}

// indexer computes the id of every object of a pack. Objects are streamed; in
// memory are only those with a difference to them, and of these no more at once
// than lead to the one at hand. go-git's parser has each in memory, twice, and
// keeps 96 MB of them.
type indexer struct {
	scanner *packfile.Scanner
	writer  *idxfile.Writer
	offsets []int64 // of all objects, ascending
	bases   []base  // objects that are stored whole
	// What has which base: known by where it is, or by its id.
	byOffset map[int64][]delta
	byID     map[plumbing.Hash][]delta
	resolved int
	thin     completion
}

// indexPack returns an index of a pack whose checksum is right, and the
// checksum. Objects of the mirror to which the pack holds differences are added
// to it, which gives it another checksum.
func indexPack(pack *os.File, checksum []byte, have objects) (_, _ []byte, err error) {
	defer func() {
		// What a stranger sent must not end this process with a stack trace.
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errBadPack, p)
		}
	}()
	if _, err := pack.Seek(0, io.SeekStart); err != nil {
		return nil, nil, &localError{err}
	}
	x := &indexer{
		scanner: packfile.NewScanner(pack), writer: new(idxfile.Writer),
		byOffset: map[int64][]delta{}, byID: map[plumbing.Hash][]delta{},
		thin: completion{pack: pack, have: have},
	}
	if err := x.resolveAll(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errBadPack, err)
	}
	if checksum, err = x.thin.seal(len(x.offsets), checksum); err != nil {
		return nil, nil, err
	}
	if err := x.writer.OnFooter(plumbing.Hash(checksum)); err != nil {
		return nil, nil, fmt.Errorf("index pack: %w", err)
	}
	index, err := x.writer.Index()
	if err != nil {
		return nil, nil, fmt.Errorf("index pack: %w", err)
	}
	var encoded bytes.Buffer
	if _, err := idxfile.NewEncoder(&encoded).Encode(index); err != nil {
		return nil, nil, fmt.Errorf("index pack: %w", err)
	}
	return encoded.Bytes(), checksum, nil
}

// resolveAll computes the id of every object.
func (x *indexer) resolveAll() error {
	_, count, err := x.scanner.Header()
	if err != nil {
		return err
	}
	for range count {
		if err := x.scan(); err != nil {
			return err
		}
	}
	for _, base := range x.bases {
		deltas := x.take(base.offset, base.id)
		if len(deltas) == 0 {
			continue
		}
		header, err := x.scanner.SeekObjectHeader(base.offset)
		if err != nil {
			return err
		}
		content, err := x.read(header.Length)
		if err != nil {
			return err
		}
		if err := x.resolve(header.Type, content, deltas, 1); err != nil {
			return err
		}
	}
	// What is left has its base in the mirror, or nowhere.
	for id := range x.byID {
		if x.thin.have.has(id) {
			if err := x.resolveThin(id); err != nil {
				return err
			}
		}
	}
	if x.resolved != len(x.offsets)+x.thin.added {
		return fmt.Errorf("%d of its objects have no base", len(x.offsets)+x.thin.added-x.resolved)
	}
	return nil
}

// resolveThin adds a base from the mirror to the pack and computes what has
// differences to it.
func (x *indexer) resolveThin(id plumbing.Hash) error {
	kind, content, added, err := x.thin.add(id)
	if err != nil {
		return err
	}
	x.found(id, added)
	return x.resolve(kind, content, x.take(added.offset, id), 1)
}

// scan reads the next object: hashes one that is stored whole, and remembers a
// difference for later.
func (x *indexer) scan() error {
	header, err := x.scanner.NextObjectHeader()
	if err != nil {
		return err
	}
	x.offsets = append(x.offsets, header.Offset)
	var sum plumbing.Hasher
	content := io.Discard
	if !header.Type.IsDelta() {
		sum = plumbing.NewHasher(header.Type, header.Length)
		content = sum
	}
	length, crc, err := x.scanner.NextObject(content)
	if err != nil {
		return err
	}
	if length != header.Length {
		return fmt.Errorf("an object has %d bytes, not %d", length, header.Length)
	}
	d := delta{header.Offset, header.Length, crc}
	switch header.Type {
	case plumbing.OFSDeltaObject:
		if _, known := slices.BinarySearch(x.offsets, header.OffsetReference); !known {
			return fmt.Errorf("there is no object at %d", header.OffsetReference)
		}
		x.byOffset[header.OffsetReference] = append(x.byOffset[header.OffsetReference], d)
	case plumbing.REFDeltaObject:
		x.byID[header.Reference] = append(x.byID[header.Reference], d)
	default:
		id := sum.Sum()
		x.bases = append(x.bases, base{header.Offset, id})
		x.found(id, d)
	}
	return nil
}

// found enters an object into the index.
func (x *indexer) found(id plumbing.Hash, d delta) {
	x.writer.Add(id, uint64(d.offset), d.crc)
	x.resolved++
}

// take returns what has the object as its base, the first time it is asked.
func (x *indexer) take(offset int64, id plumbing.Hash) []delta {
	all := append(x.byOffset[offset], x.byID[id]...)
	delete(x.byOffset, offset)
	delete(x.byID, id)
	return all
}

// resolve computes the ids of what has differences to content, and of what has
// differences to that, and so on.
func (x *indexer) resolve(kind plumbing.ObjectType, content []byte, deltas []delta, depth int) error {
	if depth > maxChain {
		return fmt.Errorf("a chain of more than %d differences", maxChain)
	}
	for i, d := range deltas {
		if _, err := x.scanner.SeekObjectHeader(d.offset); err != nil {
			return err
		}
		difference, err := x.read(d.length)
		if err != nil {
			return err
		}
		target, err := patch(content, difference)
		if err != nil {
			return err
		}
		if i == len(deltas)-1 {
			content = nil // not needed while the rest of the chain is read
		}
		id := plumbing.ComputeHash(kind, target)
		x.found(id, d)
		if next := x.take(d.offset, id); len(next) > 0 {
			if err := x.resolve(kind, target, next, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// read returns the content of the object whose header was read last.
func (x *indexer) read(length int64) ([]byte, error) {
	if length > maxDeltified {
		return nil, fmt.Errorf("a difference to an object of more than %d MB", maxDeltified>>20)
	}
	content := bytes.NewBuffer(make([]byte, 0, min(length, maxHint)))
	if _, _, err := x.scanner.NextObject(content); err != nil {
		return nil, err
	}
	return content.Bytes(), nil
}

// patch applies a difference to content.
func patch(content, difference []byte) ([]byte, error) {
	_, n := binary.Uvarint(difference) // the size of content
	size, m := binary.Uvarint(difference[max(n, 0):])
	if n <= 0 || m <= 0 || size > maxDeltified {
		return nil, fmt.Errorf("a difference that makes an object of more than %d MB", maxDeltified>>20)
	}
	return packfile.PatchDelta(content, difference)
}

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
