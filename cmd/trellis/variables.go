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
)

// maxVarFile is far more than a snapshot may have (provision.MaxSnapshot).
const maxVarFile = 1 << 20

// variableFlags are the plain variables of a deploy.
type variableFlags struct{ files, texts, jsons []string }

func (f *variableFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.texts, "var", nil, "variable as NAME=TEXT (repeatable)")
	flags.StringArrayVar(&f.jsons, "var-json", nil, "variable as NAME=JSON, for a list, an object or null (repeatable)")
	flags.StringArrayVar(&f.files, "var-file", nil, "JSON file of variables (repeatable)")
}

// readVariables reads files, then single values; later ones win. A text stays a
// text: the agent converts it where the template declares a number or a boolean,
// as Terraform does.
func (a *app) readVariables(f variableFlags) (map[string]json.RawMessage, error) {
	vars := map[string]json.RawMessage{}
	for _, name := range f.files {
		read, err := a.readVarFile(name)
		if err != nil {
			return nil, err
		}
		maps.Copy(vars, read)
	}
	for _, given := range f.texts {
		name, text, ok := strings.Cut(given, "=")
		if !ok || name == "" {
			return nil, wrongUsage("--var must be NAME=TEXT") // not echoed: it may be a secret
		}
		vars[name] = jsonText(text)
		if text = strings.TrimSpace(text); strings.HasPrefix(text, "[") || strings.HasPrefix(text, "{") {
			if json.Valid([]byte(text)) {
				a.say("Note: --var %s is sent as text. For a list or an object use --var-json %s=….", name, name)
			}
		}
	}
	for _, given := range f.jsons {
		name, text, ok := strings.Cut(given, "=")
		switch {
		case !ok || name == "":
			return nil, wrongUsage("--var-json must be NAME=JSON")
		case !json.Valid([]byte(text)):
			return nil, wrongUsage("--var-json %s: the value is not JSON; for a text use --var %s=TEXT", name, name)
		}
		vars[name] = json.RawMessage(strings.TrimSpace(text))
	}
	return vars, nil
}

func (a *app) readVarFile(name string) (map[string]json.RawMessage, error) {
	from, input := name, a.in
	if name == "-" {
		from = "standard input"
	} else {
		file, err := os.Open(filepath.Clean(name))
		if err != nil {
			return nil, wrongUsage("--var-file: %v", err)
		}
		defer func() { _ = file.Close() }()
		input = file
	}
	data, err := io.ReadAll(io.LimitReader(input, maxVarFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", from, err)
	case len(data) > maxVarFile:
		return nil, wrongUsage("--var-file %s: more than %d bytes", from, maxVarFile)
	}
	var vars map[string]json.RawMessage
	if err := json.Unmarshal(data, &vars); err != nil || vars == nil {
		if strings.HasSuffix(name, ".tfvars") {
			return nil, wrongUsage("--var-file %s: only JSON is read; Terraform's own language is for the template", from)
		}
		return nil, wrongUsage("--var-file %s: must hold one JSON object of variables%s", from, cause(err))
	}
	return vars, nil
}

func cause(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// jsonText is a text as JSON.
func jsonText(text string) json.RawMessage {
	data, err := json.Marshal(text)
	if err != nil {
		panic(err) // no text fails to encode
	}
	return data
}
