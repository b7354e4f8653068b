package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/seal"
)

// sealedFlags are the variables of a deploy that come sealed, and the key to
// which its sensitive outputs are.
type sealedFlags struct {
	vars, files  []string
	requesterKey string
}

func (f *sealedFlags) addFlags(cmd *cobra.Command) {
	f.addMessages(cmd)
	cmd.Flags().StringVar(&f.requesterKey, "requester-key", "", "public key, age1… or ssh-ed25519 AAAA…, or certificate, to which sensitive outputs are sealed; none for nobody; default: your own (trellis keys), if you have one")
}

// addMessages offers the variables alone.
func (f *sealedFlags) addMessages(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.vars, "sealed-var", nil, `variable as NAME=FILE with what "trellis seal NAME" printed (repeatable)`)
	flags.StringArrayVar(&f.files, "sealed-vars", nil, `file with what "trellis seal -o json" printed, one JSON object (repeatable)`)
}

// withSealed are messages of an earlier deploy, with those that were sealed again.
func withSealed(before, again map[string]string) map[string]string {
	all := maps.Clone(before)
	if all == nil {
		return again
	}
	maps.Copy(all, again)
	return all
}

// read returns the messages, files first, each beating what was before.
func (f *sealedFlags) read() (map[string]string, error) {
	sealed := map[string]string{}
	for _, name := range f.files {
		data, err := readMessage("--sealed-vars", name, seal.MaxVariables*seal.MaxVariable)
		if err != nil {
			return nil, err
		}
		var read map[string]string
		if json.Unmarshal(data, &read) != nil || read == nil { // not quoted: it may be no message
			return nil, wrongUsage("--sealed-vars %s: must hold one JSON object of names and messages", name)
		}
		maps.Copy(sealed, read)
	}
	for _, text := range f.vars {
		name, file, ok := strings.Cut(text, "=")
		if !ok || name == "" || file == "" {
			return nil, wrongUsage("--sealed-var must be NAME=FILE") // not echoed: it may be a secret
		}
		data, err := readMessage("--sealed-var "+name, file, seal.MaxVariable)
		if err != nil {
			return nil, err
		}
		sealed[name] = string(data)
	}
	if len(sealed) == 0 {
		return nil, nil
	}
	return sealed, nil
}

// readMessage reads a file of at most so many bytes. Its name is not told when
// it cannot be opened: somebody may have given the value in its place.
func readMessage(flag, name string, most int64) ([]byte, error) {
	file, err := os.Open(filepath.Clean(name))
	if err != nil {
		return nil, wrongUsage("%s: names no file that can be read", flag)
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", flag, err)
	case int64(len(data)) > most:
		return nil, wrongUsage("%s: more than %d bytes", flag, most)
	}
	return data, nil
}
