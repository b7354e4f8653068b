package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// maxVarFile is far more than a snapshot may have (provision.MaxSnapshot).
const maxVarFile = 1 << 20

// readVariables reads files, then single values, each beating what was before.
func (a *app) readVariables(files, values []string) (map[string]json.RawMessage, error) {
	vars := map[string]json.RawMessage{}
	for _, name := range files {
		read, err := a.readVarFile(name)
		if err != nil {
			return nil, err
		}
		maps.Copy(vars, read)
	}
	for _, text := range values {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, wrongUsage("--var must be NAME=VALUE") // not echoed: it may be a secret
		}
		vars[name] = parseValue(value)
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

// parseValue reads a value of --var: JSON, unless that is a text or no JSON.
func parseValue(text string) json.RawMessage {
	if trimmed := strings.TrimSpace(text); trimmed != "" && trimmed[0] != '"' && json.Valid([]byte(trimmed)) {
		return json.RawMessage(trimmed)
	}
	return jsonText(text)
}

// jsonText is a text as JSON.
func jsonText(text string) json.RawMessage {
	data, err := json.Marshal(text)
	if err != nil {
		panic(err) // no text fails to encode
	}
	return data
}
