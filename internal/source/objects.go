package source

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // what ids are made of; see copy
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// maxTree is the largest directory object read, in bytes.
const maxTree = 32 << 20

// objects reads a mirror and believes nothing: what it returns has the id that
// was asked for. Whatever is missing or different is a corruptError.
type objects struct{ storage *filesystem.Storage }

func (m mirror) objects() (objects, error) { return objects{m.storage()}, nil }

func (o objects) close() { _ = o.storage.Close() }

// kind returns what an object is, and how large.
func (o objects) kind(hash plumbing.Hash) (plumbing.ObjectType, int64, error) {
	raw, err := o.storage.EncodedObject(plumbing.AnyObject, hash)
	if err != nil {
		return plumbing.InvalidObject, 0, &corruptError{fmt.Errorf("%s: %w", hash, err)}
	}
	return raw.Type(), raw.Size(), nil
}

func (o objects) has(hash plumbing.Hash) bool { return o.storage.HasEncodedObject(hash) == nil }

// root returns the tree of a commit.
func (o objects) root(commit plumbing.Hash) (plumbing.Hash, error) {
	content, err := o.read(plumbing.CommitObject, commit)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	line, _, _ := bytes.Cut(content, []byte("\n"))
	id, ok := bytes.CutPrefix(line, []byte("tree "))
	hash, valid := asCommit(string(id))
	if !ok || !valid {
		return plumbing.ZeroHash, malformed("commit %s names no tree", commit)
	}
	return hash, nil
}

// tree returns the entries of a directory.
func (o objects) tree(hash plumbing.Hash) ([]object.TreeEntry, error) {
	content, err := o.read(plumbing.TreeObject, hash)
	if err != nil {
		return nil, err
	}
	raw := &plumbing.MemoryObject{}
	raw.SetType(plumbing.TreeObject)
	if _, err := raw.Write(content); err != nil {
		return nil, fmt.Errorf("read tree %s: %w", hash, err)
	}
	tree, err := object.DecodeTree(o.storage, raw)
	if err != nil {
		return nil, malformed("tree %s: %v", hash, err)
	}
	return tree.Entries, nil
}

// read returns the content of a commit or tree.
func (o objects) read(kind plumbing.ObjectType, hash plumbing.Hash) ([]byte, error) {
	var content bytes.Buffer
	_, err := o.copy(&content, kind, hash, maxTree)
	if errors.Is(err, errTooLarge) {
		return nil, malformed("%s %s is larger than %d MB", kind, hash, maxTree>>20)
	}
	return content.Bytes(), err
}

// errTooLarge is an object beyond the limit given to copy.
var errTooLarge = errors.New("object too large")

// copy writes the content of an object to w and checks it. It returns
// errTooLarge before anything is written, and errors of w as they are.
func (o objects) copy(w io.Writer, kind plumbing.ObjectType, hash plumbing.Hash, limit int64) (size int64, err error) {
	corrupt := func(err error) error { return &corruptError{fmt.Errorf("%s %s: %w", kind, hash, err)} }
	defer func() {
		// go-git may stumble over a damaged file.
		if p := recover(); p != nil {
			err = corrupt(fmt.Errorf("%v", p))
		}
	}()
	raw, whole, err := o.find(hash)
	if err != nil {
		return 0, corrupt(err)
	}
	if raw.Type() != kind {
		return 0, malformed("%s is a %s, not a %s", hash, raw.Type(), kind)
	}
	if raw.Size() > limit {
		return 0, errTooLarge
	}
	r, err := o.reader(hash, raw, whole)
	if err != nil {
		return 0, corrupt(err)
	}
	defer func() { _ = r.Close() }()
	sum := newSum(kind, raw.Size())
	source := &rememberError{r: r}
	size, err = io.Copy(io.MultiWriter(w, sum), io.LimitReader(source, limit+1))
	switch {
	case source.err != nil:
		return size, corrupt(source.err)
	case err != nil:
		return size, err
	case sum.Sum() != hash:
		return size, corrupt(errors.New("its content is another's"))
	}
	return size, nil
}

// newSum computes the id of an object. go-git's also looks for collisions made
// on purpose, which takes twice as long. Those were looked for when the object
// came (see indexPack); now it may have been damaged.
func newSum(kind plumbing.ObjectType, size int64) plumbing.Hasher {
	sum := plumbing.Hasher{Hash: sha1.New()} //nolint:gosec // see above
	_, _ = fmt.Fprintf(sum, "%s %d\x00", kind, size)
	return sum
}

// verify walks everything that commit holds; nil means that all of it is here.
func (o objects) verify(ctx context.Context, commit plumbing.Hash) error {
	root, err := o.root(commit)
	if err != nil {
		return err
	}
	seen := map[plumbing.Hash]bool{root: true}
	for todo := []plumbing.Hash{root}; len(todo) > 0; {
		if ctx.Err() != nil {
			return fmt.Errorf("verify commit %s: %w", commit, context.Cause(ctx))
		}
		next := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		entries, err := o.tree(next)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if entry.Mode == filemode.Submodule || seen[entry.Hash] {
				continue
			}
			seen[entry.Hash] = true
			if entry.Mode == filemode.Dir {
				todo = append(todo, entry.Hash)
			} else if err := o.storage.HasEncodedObject(entry.Hash); err != nil {
				return &corruptError{fmt.Errorf("%s: %w", entry.Hash, err)}
			}
		}
	}
	return nil
}

// rememberError tells an error in reading from one in writing.
type rememberError struct {
	r   io.Reader
	err error
}

func (r *rememberError) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// find returns an object, and whether the mirror holds it whole or as the
// difference to another.
func (o objects) find(hash plumbing.Hash) (raw plumbing.EncodedObject, whole bool, err error) {
	raw, err = o.storage.DeltaObject(plumbing.AnyObject, hash)
	if err != nil {
		return nil, false, err
	}
	if _, delta := raw.(plumbing.DeltaObject); !delta {
		return raw, true, nil
	}
	raw, err = o.storage.EncodedObject(plumbing.AnyObject, hash)
	return raw, false, err
}

// reader reads an object. go-git streams what is larger than streamFrom, which
// is well for what is whole. From differences it does so with a goroutine for
// each, which reads its base again for each step back, and gets wrong what then
// goes forward: so those are put together here, in memory. What is smaller it
// puts together well and keeps, unless it streams its base.
func (o objects) reader(hash plumbing.Hash, raw plumbing.EncodedObject, whole bool) (io.ReadCloser, error) {
	if whole {
		return raw.Reader()
	}
	if raw.Size() <= streamFrom {
		if content, err := readAll(raw, streamFrom+1); err == nil {
			sum := newSum(raw.Type(), int64(len(content)))
			if _, _ = sum.Write(content); sum.Sum() == hash {
				return io.NopCloser(bytes.NewReader(content)), nil
			}
		}
	}
	content, err := o.patched(hash)
	return io.NopCloser(bytes.NewReader(content)), err
}

// patched puts an object together. Of the differences it holds one at a time.
func (o objects) patched(hash plumbing.Hash) ([]byte, error) {
	var chain []plumbing.Hash // of differences, from the object to what is whole
	for {
		raw, err := o.storage.DeltaObject(plumbing.AnyObject, hash)
		if err != nil {
			return nil, err
		}
		delta, ok := raw.(plumbing.DeltaObject)
		if !ok {
			break
		}
		if chain = append(chain, hash); len(chain) > maxChain {
			return nil, fmt.Errorf("a chain of more than %d differences", maxChain)
		}
		hash = delta.BaseHash()
	}
	content, err := o.stored(hash)
	for _, hash := range slices.Backward(chain) {
		if err != nil {
			return nil, err
		}
		var difference []byte
		if difference, err = o.stored(hash); err == nil {
			content, err = patch(content, difference)
		}
	}
	return content, err
}

// stored returns what the mirror holds of an object: its content, or the
// difference to another.
func (o objects) stored(hash plumbing.Hash) ([]byte, error) {
	raw, err := o.storage.DeltaObject(plumbing.AnyObject, hash)
	if err != nil {
		return nil, err
	}
	return readAll(raw, maxDeltified)
}

func readAll(raw plumbing.EncodedObject, limit int64) ([]byte, error) {
	r, err := raw.Reader()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // it has been read
	content := bytes.NewBuffer(make([]byte, 0, min(raw.Size()+bytes.MinRead, maxHint)))
	_, err = content.ReadFrom(io.LimitReader(r, limit))
	return content.Bytes(), err
}
