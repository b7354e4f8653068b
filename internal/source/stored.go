package source

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
)

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
