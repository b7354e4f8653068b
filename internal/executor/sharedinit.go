package executor

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/durable"
)

// sharedInits is a directory in the provider store, whose own files begin with a
// dot. Where the caches have a uid of their own, only that one gets in.
const sharedInits = ".inits"

// Bounds on what is shared: bytes of one template's, and how many templates'.
const (
	maxSharedInit  = 256 << 10
	mostSharedInit = 256
)

// sharedInit is what init made of a template, for a workspace that has not run it
// yet: an init that had nothing to download made nothing but the backend's record
// and the list of the template's own modules. Templates that keep their state
// elsewhere are not shared, because their init asks the backend.
//
// It is authenticated like a note, see initialised: where runs share one uid a
// template can write here.
type sharedInit struct {
	Since   time.Time `json:"since"`
	Record  []byte    `json:"record,omitempty"`  // of the backend; nil: there is none
	Modules []byte    `json:"modules,omitempty"` // modules.json; nil: there is none
	Proof   []byte    `json:"proof"`
}

func (s *sharedInit) proof(key []byte, of string) []byte {
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "shared %d %d %t %d %t %d\n%s%s%s", // a hash takes everything
		s.Since.UnixNano(), len(of), s.Record != nil, len(s.Record), s.Modules != nil, len(s.Modules), of, s.Record, s.Modules)
	return mac.Sum(nil)
}

func sharedInitPath(store, of string) string {
	name := sha256.Sum256([]byte(of))
	return filepath.Join(store, sharedInits, hex.EncodeToString(name[:])+".json")
}

// readSharedInit returns what an init made of what the mark says, or nil.
func readSharedInit(store, of string, key []byte, now time.Time) *sharedInit {
	if store == "" || of == "" {
		return nil
	}
	text, err := readBounded(sharedInitPath(store, of), 2*maxSharedInit) // base64
	var s sharedInit
	if err != nil || json.Unmarshal(text, &s) != nil || !hmac.Equal(s.Proof, s.proof(key, of)) {
		return nil
	}
	if age := now.Sub(s.Since); age < 0 || age >= initServes {
		return nil
	}
	return &s
}

// write keeps it in the store. The caller may write there.
func (s *sharedInit) write(store, of string, key []byte) error {
	s.Proof = s.proof(key, of)
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := sharedInitPath(store, of)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	pruneSharedInits(filepath.Dir(path), time.Now())
	return durable.WriteFile(path, text)
}

// pruneSharedInits removes what serves nobody any more, and the oldest of too many.
func pruneSharedInits(dir string, now time.Time) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	made := map[string]time.Time{}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			made[entry.Name()] = info.ModTime()
		}
	}
	newest := func(a, b os.DirEntry) int { return made[b.Name()].Compare(made[a.Name()]) }
	slices.SortFunc(entries, newest)
	for i, entry := range entries {
		if i >= mostSharedInit-1 || now.Sub(made[entry.Name()]) >= initServes {
			_ = os.Remove(filepath.Join(dir, entry.Name())) // at worst it is read and refused
		}
	}
}

// readOptional is readBounded that returns nil for a file that is not there.
func readOptional(path string) ([]byte, error) {
	text, err := readBounded(path, maxSharedInit)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil && text == nil {
		text = []byte{}
	}
	return text, err
}

// moveRecord has a record of the local backend name another file. Engines compare
// the hash with the configuration's first (Backend.Hash in Terraform's package
// configs); where theirs is another they compare the values, and write their hash.
func moveRecord(record []byte, path string) ([]byte, error) {
	var whole map[string]json.RawMessage
	var backend struct {
		Type   string `json:"type"`
		Config struct {
			Path      *string `json:"path"`
			Directory *string `json:"workspace_dir"`
		} `json:"config"`
		Hash uint32 `json:"hash"`
	}
	if err := errors.Join(json.Unmarshal(record, &whole), json.Unmarshal(whole["backend"], &backend)); err != nil {
		return nil, err
	}
	if backend.Type != "local" || backend.Config.Path == nil || backend.Config.Directory != nil {
		return nil, errors.New("not the record of a local backend")
	}
	backend.Config.Path = &path
	backend.Hash = uint32(cty.TupleVal([]cty.Value{cty.StringVal(backend.Type), cty.ObjectVal(map[string]cty.Value{
		"path": cty.StringVal(path), "workspace_dir": cty.NullVal(cty.String),
	})}).Hash())
	text, err := json.Marshal(backend)
	if err != nil {
		return nil, err
	}
	whole["backend"] = text
	return json.MarshalIndent(whole, "", "  ")
}
