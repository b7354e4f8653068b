package terraform

import (
	"debug/elf"
	"errors"
	"io"
	"os"
	"syscall"
)

// publishable makes an installed engine executable for every user, since
// provisions may run as users of their own, and puts it on disk before a
// rename makes it count.
func publishable(dir, binary string) error {
	if err := whole(binary); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(binary, 0o755)); err != nil { //nolint:gosec // see above
		return err
	}
	file, err := os.OpenFile(binary, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// whole reports a program that is shorter than its own headers say, as the
// unpacking leaves it that ran out of room: hc-install calls that a success,
// and a program without its last pages may well answer. What is not in Linux's
// format is for others to judge.
func whole(binary string) error {
	file, err := os.Open(binary)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // opened for reading
	info, err := file.Stat()
	if err != nil {
		return err
	}
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := io.ReadFull(file, magic); err != nil {
		return errors.New("the program in it is empty")
	}
	if string(magic) != elf.ELFMAG {
		return nil
	}
	program, err := elf.NewFile(file)
	if err != nil {
		return errors.New("the program in it is cut short")
	}
	for _, section := range program.Sections {
		if section.Type != elf.SHT_NOBITS && section.Offset+section.FileSize > uint64(info.Size()) {
			return errors.New("the program in it is cut short")
		}
	}
	return nil
}

// probe reports why a directory takes no more data.
func probe(dir string) error {
	file, err := os.CreateTemp(dir, "probe-*")
	if err != nil {
		return reasonOf(err)
	}
	_, err = file.Write(make([]byte, 64<<10))
	return reasonOf(errors.Join(err, file.Sync(), file.Close()))
}

// reasonOf is what the system says, without what was done and where.
func reasonOf(err error) error {
	if no, ok := errors.AsType[syscall.Errno](err); ok {
		return no
	}
	return err
}
