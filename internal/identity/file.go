package identity

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/secretfile"
)

// File is the name of the identity's file in an agent's data directory, and acceptedFile
// that of the public half that its operator has accepted.
const (
	File         = "identity"
	acceptedFile = "identity.accepted"
)

// Create makes an identity and writes it to a file, 0600. It replaces nothing: fs.ErrExist
// where there is one.
func Create(path string) (seal.Identities, error) {
	made, err := seal.Generate()
	if err != nil {
		return nil, err
	}
	if err := durable.CreateFile(path, []byte(Text(made))); err != nil {
		return nil, fmt.Errorf("write the identity: %w", err)
	}
	return made, likeDirectory(path)
}

// Read reads the identities of a file, the current one first: fs.ErrNotExist where there is
// none, and an error where others may read it.
func Read(path string) (seal.Identities, error) {
	text, err := secretfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	return seal.ParseIdentities(path, text)
}

// Rotate makes an identity and puts it before those of the file.
func Rotate(path string) (seal.Identities, error) {
	made, err := seal.Generate()
	if err != nil {
		return nil, err
	}
	return Add(path, made)
}

// Add puts identities before those of the file, if there are any, and returns all of them.
func Add(path string, first seal.Identities) (seal.Identities, error) {
	held, err := Read(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all := first[:len(first):len(first)]
	for n := range held {
		if one := held[n : n+1]; !first.Holds(one.Public()) {
			all = append(all, one...)
		}
	}
	if err := durable.WriteFile(path, []byte(Text(all))); err != nil {
		return nil, fmt.Errorf("write the identity: %w", err)
	}
	return all, likeDirectory(path)
}

// Text is the content of a file with these identities.
func Text(all seal.Identities) string {
	var text strings.Builder
	for n, one := range all {
		fmt.Fprintf(&text, "# public key: %s\n%s\n", all[n:n+1].Public(), one)
	}
	return text.String()
}

// likeDirectory gives a file the owner of its directory: root may write it for the agent of
// another user.
func likeDirectory(path string) error {
	info, err := os.Stat(filepath.Dir(path)) //nolint:gosec // the operator's own path
	if err != nil {
		return fmt.Errorf("find the owner of the identity's directory: %w", err)
	}
	stat, is := info.Sys().(*syscall.Stat_t)
	if !is || os.Geteuid() != 0 || stat.Uid == 0 {
		return nil
	}
	return os.Lchown(path, int(stat.Uid), int(stat.Gid))
}

// Fingerprint are the words of an identity's public half, age1…, for people to compare.
func Fingerprint(public string) string { return agentkey.WordsOf(sha256.Sum256([]byte(public))) }

// Accepted is the public half of the identity that an agent's operator has accepted. The
// zero value accepts none.
type Accepted struct {
	public   string
	expected agentkey.Expected
}

// None reports whether nothing is accepted.
func (a Accepted) None() bool { return a.public == "" && a.expected.Prefix() == "" }

// ParseAccepted reads what a person types: age1…, or its fingerprint in words, hexadecimal
// digits or base64.
func ParseAccepted(text string) (a Accepted, err error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "age1") {
		if _, err := seal.ParseRecipient(text); err != nil {
			return a, err
		}
		a.public = text
		return a, nil
	}
	a.expected, err = agentkey.ParseFingerprint(text)
	return a, err
}

// Is reports whether a public half is the accepted one.
func (a Accepted) Is(public string) bool {
	return a.public != "" && a.public == public || a.expected.Of(sha256.Sum256([]byte(public)))
}

// Accept notes in an agent's data directory which identity its operator accepts.
func Accept(dir, text string) error {
	if _, err := ParseAccepted(text); err != nil {
		return err
	}
	path := filepath.Join(dir, acceptedFile)
	if err := durable.WriteFile(path, []byte(strings.TrimSpace(text)+"\n")); err != nil {
		return fmt.Errorf("write down which identity is accepted: %w", err)
	}
	return likeDirectory(path)
}

// ReadAccepted reads what Accept has noted; the zero value where it has not.
func ReadAccepted(dir string) (Accepted, error) {
	text, err := os.ReadFile(filepath.Join(dir, acceptedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Accepted{}, nil
	}
	if err != nil {
		return Accepted{}, fmt.Errorf("read which identity is accepted: %w", err)
	}
	return ParseAccepted(string(text))
}

// Forget removes what Accept and AcceptCertificate have noted: one acceptance is for one identity.
func Forget(dir string) error {
	for _, name := range []string{certificateFile, acceptedFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
