package caches

import (
	"context"
	"time"
)

// Item is one thing that can be had again: the mirror of a repository, a package
// of a provider, an engine, what a workspace's last init has fetched.
type Item struct {
	// Path is the directory that Remove removes.
	Path string
	// Used is when a run used it last. A time to come counts as none.
	Used time.Time
	// Busy says that it is in use, so that its size is not looked at now.
	Busy bool
	// Outdated says that nobody is likely to want it again: it goes without
	// need.
	Outdated bool
}

// Cache is one kind of things.
type Cache interface {
	// Kind is the name of its directory in the data directory.
	Kind() string
	// Items lists what is there.
	Items() ([]Item, error)
	// Remove removes one, by a rename first, and reports whether it did: what is
	// in use stays. If it is gone and could not be deleted, it is an error as
	// well.
	Remove(ctx context.Context, item Item) (removed bool, err error)
	// Sweep deletes what was renamed by somebody who was killed then.
	Sweep(ctx context.Context) error
}

// Limits say how much is kept. The zero value keeps everything but what is
// outdated.
type Limits struct {
	// Most is how much all caches together may take on the disk, in bytes; 0 is
	// any amount.
	Most int64
	// Keep is how long nothing is removed that was used.
	Keep time.Duration
	// MinFree is how much of the file system is to stay free, in bytes, if need
	// be by keeping less than Most; 0 is none.
	MinFree int64
}
