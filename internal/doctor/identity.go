package doctor

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/secretfile"
)

// identity says to which key people must seal for this agent to open it. The
// database says so as well, and nobody need believe it.
func (d *doctor) identity(context.Context) verdict {
	path, from := d.Config.IdentityFile, "identity_file"
	if path == "" {
		path, from = filepath.Join(d.Config.DataDir, "identity"), "the agent's own"
	}
	text, err := secretfile.Read(path)
	if d.Config.IdentityFile == "" && errors.Is(err, fs.ErrNotExist) {
		return ok("the agent makes a key at its first start, in %s", path)
	}
	if err != nil {
		return fail("correct identity_file, or let the agent's user read it and nobody else", "%s: %s %v", from, path, err)
	}
	identities, err := seal.ParseIdentities(path, text)
	if err != nil {
		return fail("restore the file from a backup; what was sealed to a key that is lost has to be sealed again", "%v", err)
	}
	var older []string
	for n := range identities[1:] {
		older = append(older, seal.Fingerprint(identities[n+1:].Public()))
	}
	also := ""
	if older != nil {
		also = "; it also opens what was sealed to " + strings.Join(older, ", ")
	}
	return ok("variables are sealed to %s, %s (%s)%s", seal.Fingerprint(identities.Public()), identities.Public(), from, also)
}
