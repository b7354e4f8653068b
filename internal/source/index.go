package source

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

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
