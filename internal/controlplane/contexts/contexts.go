// Package contexts stores the servers that a person has logged in to: their names,
// URLs and tokens, and which of them is current.
//
// They are in one TOML file that only the person can read. Two programs that change
// the file at once take turns, and a program that dies while it writes leaves the
// old file.
//
// The package must not know how a person logs in, and asks no server.
package contexts

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/gofrs/flock"
	"github.com/pelletier/go-toml/v2"

	"github.com/tendril-run/tendril/internal/durable"
)

// Local is the context that is always there and in no file: what trellis up
// runs on this machine.
const Local = "local"

// Context is one server, and who the person is there.
type Context struct {
	URL    string `toml:"url" json:"url"`
	User   string `toml:"user,omitempty" json:"user,omitempty"` // as it was at login, for people to read
	Org    string `toml:"org,omitempty" json:"org,omitempty"`
	CAFile string `toml:"ca_file,omitempty" json:"ca_file,omitempty"`
	Token  string `toml:"token" json:"-"`
}

// File is what is kept.
type File struct {
	Current  string             `toml:"current"`
	Contexts map[string]Context `toml:"contexts"`
}

// Names lists the contexts.
func (f File) Names() []string { return slices.Sorted(maps.Keys(f.Contexts)) }

// UnknownError says that there is no context of a name.
type UnknownError struct {
	Name  string
	Known []string
}

func (e *UnknownError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("there is no context %q: log in with trellis login URL", e.Name)
	}
	return fmt.Sprintf("there is no context %q; there are: %s", e.Name, strings.Join(e.Known, ", "))
}

// Find returns the context of a name.
func (f File) Find(name string) (Context, error) {
	if c, ok := f.Contexts[name]; ok {
		return c, nil
	}
	return Context{}, &UnknownError{Name: name, Known: f.Names()}
}

// Path is where the file is: TRELLIS_CONFIG, else below XDG_CONFIG_HOME, else
// below ~/.config. "" when nothing says where home is.
func Path(getenv func(string) string) string {
	if path := getenv("TRELLIS_CONFIG"); path != "" {
		return path
	}
	dir := getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // as its specification has it
		home := getenv("HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "tendril", "trellis.toml")
}

// Load reads the file; there is nothing in one that is not there. A file that
// others can read is refused: its tokens are no secrets any more.
func Load(path string) (File, error) {
	var f File
	if path == "" {
		return f, nil
	}
	file, err := os.Open(filepath.Clean(path))
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("read the contexts: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return f, fmt.Errorf("read the contexts: %w", err)
	}
	if !info.Mode().IsRegular() {
		return f, fmt.Errorf("%s is no file", path)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		return f, fmt.Errorf("%s belongs to another user: nothing is read from it", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return f, fmt.Errorf("%s can be read or written by others (mode %#o), and holds tokens: nothing is read from it. Take that away (chmod 600), revoke its tokens, and log in again", path, info.Mode().Perm())
	}
	decoder := toml.NewDecoder(file)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		place := "" // not what is there: it may be a token
		if at, ok := errors.AsType[*toml.DecodeError](err); ok {
			row, column := at.Position()
			place = fmt.Sprintf(", line %d column %d", row, column)
		}
		return File{}, fmt.Errorf("%s cannot be understood%s", path, place)
	}
	return f, nil
}

// Update changes the file, one change at a time.
func Update(path string, change func(*File) error) error {
	if path == "" {
		return errors.New("nothing says where your home directory is: set HOME, or TRELLIS_CONFIG to a file")
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a link stays one
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep the contexts: %w", err)
	}
	lock := flock.New(path+".lock", flock.SetPermissions(0o600))
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("keep the contexts: %w", err)
	}
	defer func() { _ = lock.Close() }()
	f, err := Load(path)
	if err != nil {
		return err
	}
	if f.Contexts == nil {
		f.Contexts = map[string]Context{}
	}
	if err := change(&f); err != nil {
		return err
	}
	if err := f.write(path); err != nil {
		return fmt.Errorf("keep the contexts: %w", err)
	}
	return nil
}

// write replaces the file at once, readable by its owner alone.
func (f File) write(path string) error {
	var text bytes.Buffer
	text.WriteString("# Servers that trellis is logged in to. It holds tokens: keep it to yourself.\n")
	if err := toml.NewEncoder(&text).Encode(f); err != nil {
		return err
	}
	return durable.WriteFile(path, text.Bytes())
}
