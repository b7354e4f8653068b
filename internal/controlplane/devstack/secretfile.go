package devstack

import (
	"errors"
	"os"
	"path/filepath"
)

// writeSecret writes a 0600 file that is on disk, whole, when it returns.
func writeSecret(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*") // 0600
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name()) // the first error is the one to tell
	}
	return err
}
