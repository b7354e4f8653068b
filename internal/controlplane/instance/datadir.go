package instance

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/durable"
)

const (
	// markerFile is the file in a data directory that says whose trellis up made it.
	markerFile = "trellis-up"
	// keyFile holds what a marker is made with. It is outside of every data
	// directory, so a directory that somebody else prepared has no valid marker.
	keyFile = "data-dir.key"
	// EarlierDataDir is where earlier versions kept their data: below the current
	// directory, whoever filled that.
	EarlierDataDir = ".tendril"
	rootDataDir    = "/var/lib/tendril"
	keyBytes       = 32
	maxMarker      = 256 // bytes
)

// errNoHome says that neither a default data directory nor a key has a place.
var errNoHome = errors.New("HOME is not set, so this user's directories are unknown: set HOME, or name a directory with --data-dir")

// DefaultDataDir is the data directory where none is named: below XDG_DATA_HOME,
// and for root a directory that PostgreSQL, which refuses root, can reach from
// its own account. It is "" where nothing says where home is.
func DefaultDataDir() string {
	if os.Geteuid() == 0 {
		return rootDataDir
	}
	return xdg("XDG_DATA_HOME", ".local/share", "tendril")
}

// xdg is a directory of the XDG base directory specification, which ignores
// relative paths. It is "" where nothing says where home is.
func xdg(variable, below, name string) string {
	if dir := os.Getenv(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, name)
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, below, name)
	}
	return ""
}

// UntrustedError says why nothing is read or executed from a data directory.
type UntrustedError struct {
	Dir string
	Why string
}

func (e *UntrustedError) Error() string {
	return fmt.Sprintf("the data directory %s is not used: %s", e.Dir, e.Why)
}

const howToTrust = "trellis up runs programs and uses tokens that it finds in its data directory. If you made this one (with an earlier version, or moved or copied it here), run trellis up with --trust-data-dir once; otherwise choose another --data-dir"

// ClaimDataDir makes a data directory, or checks one that is there, and leaves
// this user's marker in it. trust vouches for what is in it already.
func ClaimDataDir(dir string, trust bool) error {
	if dir == "" {
		return errNoHome
	}
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711 // PostgreSQL runs as another user, below
	}
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(dir, mode); errors.Is(err, fs.ErrPermission) {
			return notYours(dir, err)
		} else if err != nil {
			return fmt.Errorf("make the data directory: %w", err)
		}
		if err := os.Chmod(dir, mode); err != nil { // whatever the umask
			return fmt.Errorf("make the data directory: %w", err)
		}
	case errors.Is(err, fs.ErrPermission):
		if info, failed := os.Stat(dir); failed == nil && !ownedByUs(info) {
			return belongsToAnother(dir, info)
		}
		return notYours(dir, err)
	case err != nil:
		return fmt.Errorf("read the data directory: %w", err)
	}
	empty := len(entries) == 0 || len(entries) == 1 && entries[0].Name() == "lost+found" // a file system of its own
	if err := checkOwner(dir, empty); err != nil {
		return err
	}
	if !empty && !trust {
		err := checkMarker(dir)
		if err == nil {
			return nil
		}
		if !isDefault(dir) || !madeByUp(dir) {
			return err
		}
	}
	if err := writeMarker(dir); err != nil && !isDefault(dir) { // the default one needs no marker
		return err
	}
	return nil
}

// CheckDataDir reports why nothing in a data directory may be used. The error is
// fs.ErrNotExist where the directory does not exist.
func CheckDataDir(dir string) error {
	if dir == "" {
		return errNoHome
	}
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("read the data directory: %w", err)
	}
	if err := checkOwner(dir, false); err != nil {
		return err
	}
	if err := checkMarker(dir); err != nil && (!isDefault(dir) || !madeByUp(dir)) {
		return err
	}
	return nil
}

// checkOwner refuses a directory that another user owns or may write to. From an
// empty one of this user's it takes others' right to write.
func checkOwner(dir string, empty bool) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("read the data directory: %w", err)
	}
	if !info.IsDir() {
		return &UntrustedError{dir, "it is not a directory"}
	}
	if !ownedByUs(info) {
		return belongsToAnother(dir, info)
	}
	if info.Mode().Perm()&0o022 == 0 {
		return nil
	}
	if empty {
		return os.Chmod(dir, info.Mode().Perm()&^0o022)
	}
	return &UntrustedError{dir, fmt.Sprintf("other users may write to it (mode %04o). Check what is in it, then run: chmod go-w %s", info.Mode().Perm(), dir)}
}

const anotherDir = "choose another one with --data-dir or TRELLIS_DATA_DIR"

// belongsToAnother refuses a directory and says who could use it.
func belongsToAnother(dir string, info fs.FileInfo) error {
	who := "another user"
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		who = fmt.Sprintf("another user (uid %d, you are %d)", owner.Uid, os.Geteuid())
	}
	return &UntrustedError{dir, "it belongs to " + who + "; run this as that user, or " + anotherDir}
}

// notYours says that this user may not use a directory, or not make it.
func notYours(dir string, err error) error {
	return fmt.Errorf("the data directory %s cannot be used by this user: %w; %s", dir, err, anotherDir)
}

func ownedByUs(info fs.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return !ok || int(owner.Uid) == os.Geteuid()
}

// isDefault reports whether a directory is the default one. Nobody else's files end
// up there, unlike below the current directory.
func isDefault(dir string) bool {
	absolute, err := filepath.Abs(dir)
	return err == nil && absolute == DefaultDataDir()
}

// madeByUp reports whether an earlier version's trellis up left these files.
func madeByUp(dir string) bool {
	lock, err := os.Lstat(filepath.Join(dir, "lock"))
	if err != nil || !lock.Mode().IsRegular() || !ownedByUs(lock) {
		return false
	}
	_, agent := os.Lstat(filepath.Join(dir, "instance")) // an agent's own data directory
	return agent != nil
}

func checkMarker(dir string) error {
	got, err := readOwn(filepath.Join(dir, markerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return &UntrustedError{dir, "it has files that trellis up did not make. " + howToTrust}
	}
	if err != nil {
		return &UntrustedError{dir, err.Error()}
	}
	key, err := readKey()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	want, err := marker(key, dir)
	if err != nil {
		return err
	}
	if key == nil || !hmac.Equal([]byte(strings.TrimSpace(got)), []byte(want)) {
		return &UntrustedError{dir, "its marker was not written here by this user's trellis up. " + howToTrust}
	}
	return nil
}

// marker is what the marker of a data directory says under a key. It names the
// place, so a copy in another directory counts for nothing.
func marker(key []byte, dir string) (string, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return "", fmt.Errorf("find the data directory %s: %w", dir, err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("trellis up data directory\x00" + real))
	return hex.EncodeToString(mac.Sum(nil)), nil
}

func writeMarker(dir string) error {
	key, err := ensureKey()
	if err != nil {
		return err
	}
	text, err := marker(key, dir)
	if err != nil {
		return err
	}
	if err := WriteSecret(filepath.Join(dir, markerFile), []byte(text+"\n")); err != nil {
		return fmt.Errorf("mark the data directory: %w", err)
	}
	return nil
}

// keyPath is where this user's key is.
func keyPath() (string, error) {
	dir := xdg("XDG_STATE_HOME", ".local/state", "trellis")
	if dir == "" {
		return "", errNoHome
	}
	return filepath.Join(dir, keyFile), nil
}

func readKey() ([]byte, error) {
	path, err := keyPath()
	if err != nil {
		return nil, err
	}
	text, err := readOwn(path)
	if err != nil {
		return nil, fmt.Errorf("read the key of this user's data directories: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil || len(key) != keyBytes {
		return nil, fmt.Errorf("%s holds no key: remove it, then run trellis up with --trust-data-dir", path)
	}
	return key, nil
}

// ensureKey returns the key, which the first trellis up makes. Two that make one
// at the same time end up with the same key.
func ensureKey() ([]byte, error) {
	key, err := readKey()
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	path, err := keyPath()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the key of this user's data directories: %w", err)
	}
	key = make([]byte, keyBytes)
	_, _ = rand.Read(key) // never fails
	temporary := fmt.Sprintf("%s.%s", path, hex.EncodeToString(key[:4]))
	if err := WriteSecret(temporary, []byte(hex.EncodeToString(key)+"\n")); err != nil {
		return nil, fmt.Errorf("make the key of this user's data directories: %w", err)
	}
	defer func() { _ = os.Remove(temporary) }()
	if err := os.Link(temporary, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the key of this user's data directories: %w", err)
	}
	return readKey()
}

// readOwn reads a small file that only this user may read or write.
func readOwn(path string) (string, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	if err := private(file); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxMarker))
	return string(text), err
}

// private refuses an open file that is not this user's alone.
func private(file *os.File) error {
	info, err := file.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", file.Name())
	case !ownedByUs(info):
		return fmt.Errorf("%s belongs to another user", file.Name())
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("other users may read or write %s (mode %04o, want 0600)", file.Name(), info.Mode().Perm())
	}
	return nil
}

// WriteSecret writes a 0600 file that is on disk, whole, when it returns.
func WriteSecret(path string, content []byte) error { return durable.WriteFile(path, content) }

// Earlier returns the data directory that an earlier version left below the
// current directory, "" where there is none or the default one is in use.
func Earlier() string {
	if _, err := os.Lstat(DefaultDataDir()); os.Geteuid() == 0 || err == nil {
		return ""
	}
	dir, err := filepath.Abs(EarlierDataDir)
	if err != nil {
		return ""
	}
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() || !ownedByUs(info) || !madeByUp(dir) {
		return ""
	}
	return dir
}

// MoveDataDir moves a data directory that the person vouches for. Nothing may
// run on it.
func MoveDataDir(from, to string) error {
	if to == "" {
		return errNoHome
	}
	if info, err := os.Lstat(from); err != nil {
		return fmt.Errorf("move the data directory: %w", err)
	} else if !info.IsDir() || !madeByUp(from) {
		return fmt.Errorf("move the data directory: %s has no data of trellis up", from)
	}
	if err := checkOwner(from, false); err != nil {
		return err
	}
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("move the data directory %s: %s is there already; use one of them with --data-dir", from, to)
	}
	lock, err := dirlock.Take(from, dirlock.Self("trellis up"))
	if inUse, ok := errors.AsType[*dirlock.InUseError](err); ok {
		return fmt.Errorf("move the data directory %s: trellis up runs on it (%s); stop that first", from, inUse.Holder)
	}
	if err != nil {
		return fmt.Errorf("move the data directory: %w", err)
	}
	defer lock.Release()
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return fmt.Errorf("move the data directory: %w", err)
	}
	if err := os.Rename(from, to); errors.Is(err, syscall.EXDEV) {
		return fmt.Errorf("move the data directory: %s and %s are on two file systems; keep it where it is with --data-dir %s --trust-data-dir", from, to, from)
	} else if err != nil {
		return fmt.Errorf("move the data directory: %w", err)
	}
	return writeMarker(to)
}
