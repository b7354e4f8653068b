// Package durable is the one way to put on the disk what must outlive a crash, of the
// process or of the machine:
//
//	WriteFile   a new file under a name of its own ─ write ─ sync ─┐
//	Rename      ───────────────────────────────────────────────────┴▶ rename ─▶ sync the directory
//	CreateFile  as WriteFile, but a link, which replaces nothing
//
// So there is the old file or the new one under a name, whole, and when the call has
// returned it is the new one, whatever happens next. Rename alone is for who has written
// and synced the file in place, in room on the disk that was reserved for it.
//
// A process that is killed in between leaves a file that begins with TempPrefix; whoever
// has the directory removes those when it starts. The package must not know what is in
// the files, and follows no rule about who may read them: they are 0600.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// TempPrefix begins the names of files that are being written.
const TempPrefix = ".tmp-"

// WriteFile puts a file with that content in place of what path names.
func WriteFile(path string, content []byte) error { return write(path, content, os.Rename) }

// CreateFile makes a file with that content; fs.ErrExist where path names something.
func CreateFile(path string, content []byte) error { return write(path, content, os.Link) }

func write(path string, content []byte, put func(from, to string) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), TempPrefix+"*") // 0600
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = put(file.Name(), path)
	}
	_ = os.Remove(file.Name()) // a rename has left none
	if err != nil {
		return err
	}
	return Sync(filepath.Dir(path))
}

// Rename gives a file that is on the disk already another name in the same file system,
// also in place of another file.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return Sync(filepath.Dir(to))
}

// Sync waits until the disk has a file, or a directory's entries.
func Sync(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
