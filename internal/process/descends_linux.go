package process

import "errors"

// Descends reports whether pid was started by process above, or by one that it
// has started, and so on. Zombies have parents, too.
func Descends(pid, above int) (bool, error) {
	const deepest = 1 << 10 // a pid that was used again might close a ring
	for range deepest {
		info, err := read(pid)
		if errors.Is(err, errGone) {
			return false, nil
		}
		if err != nil || info.Parent == above || info.Parent == 0 {
			return err == nil && info.Parent == above, err
		}
		pid = info.Parent
	}
	return false, nil
}
