package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// longestWalk bounds the look at one tree.
const longestWalk = 10 * time.Second

// files reads every file of a tree that can be read.
func (h *hunter) files(tree string) {
	until := time.Now().Add(longestWalk)
	_ = filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		if time.Now().After(until) {
			return fs.SkipAll
		}
		if err != nil {
			return nil //nolint:nilerr // what cannot be read is what was hoped for
		}
		if entry.IsDir() {
			h.haul.Looked["directories"]++
			return nil
		}
		if entry.Type().IsRegular() {
			if content, err := readSome(path); err == nil {
				h.look("file", path, content)
			}
		}
		return nil
	})
}

// write tries to change a directory and what is in it. Nothing is damaged where
// that works, for the other run is to succeed.
func (h *hunter) write(dir string) {
	planted := filepath.Join(dir, ".planted")
	if file, err := os.OpenFile(planted, os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		_ = file.Close()
		_ = os.Remove(planted)
		h.did("writes to %s", dir)
	}
	if info, err := os.Stat(dir); err == nil && os.Chmod(dir, info.Mode().Perm()) == nil {
		h.did("changes the mode of %s", dir)
	}
	if entries, err := os.ReadDir(dir); err == nil {
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			if entry.Type().IsRegular() && unix.Access(path, unix.W_OK) == nil {
				h.did("writes to %s", path)
			}
			if entry.IsDir() {
				h.write(path)
			}
		}
	}
}
