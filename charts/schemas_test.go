package charts

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The schemas come from modules, for their usual home cannot be reached from
// everywhere. scripts/test-deps.sh fetches these.
const (
	oldestKubernetes = "v1.29.6"
	newerKubernetes  = "v1.32.2"
	kubernetesModule = "k8s.io/kubernetes@"
	operatorModule   = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
)

// writeSchemas makes a directory for each Kubernetes, below dir, with a JSON
// schema for each kind that there is.
func writeSchemas(ctx context.Context, dir string) error {
	crds, err := moduleDir(ctx, operatorModule)
	if err != nil {
		return err
	}
	for _, version := range []string{oldestKubernetes, newerKubernetes} {
		module, err := moduleDir(ctx, kubernetesModule+version)
		if err != nil {
			return err
		}
		at := filepath.Join(dir, version)
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		if err := writeKubernetes(at, filepath.Join(module, "api/openapi-spec/swagger.json")); err != nil {
			return err
		}
		for _, crd := range []string{"servicemonitors", "podmonitors", "prometheusrules"} {
			if err := writeCRD(at, filepath.Join(crds, "example/prometheus-operator-crd/monitoring.coreos.com_"+crd+".yaml")); err != nil {
				return err
			}
		}
	}
	return nil
}

// moduleDir is where Go has a module's files.
func moduleDir(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	out, err := cmd.Output()
	var said struct{ Dir, Error string }
	if json.Unmarshal(out, &said) == nil && said.Error != "" {
		return "", fmt.Errorf("go mod download %s: %s", module, said.Error)
	}
	if err != nil {
		return "", fmt.Errorf("go mod download %s: %w", module, err)
	}
	return said.Dir, nil
}

// schemaFile is where kubeconform is told to look, see schemaLocation.
func schemaFile(dir, group, version, kind string) string {
	if group == "" { // kubeconform has it so for the core group
		group = version
	}
	return filepath.Join(dir, strings.ToLower(group+"_"+version+"_"+kind)+".json")
}

const schemaLocation = "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"

const definitions = "#/definitions/"

// writeKubernetes writes a schema for each kind of the API's OpenAPI document,
// with the definitions that it needs.
func writeKubernetes(dir, document string) error {
	data, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	var api struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(data, &api); err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	for _, definition := range api.Definitions {
		tighten(definition)
	}
	for name, definition := range api.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		if properties, _ := definition["properties"].(map[string]any); len(kinds) != 1 || properties["metadata"] == nil {
			continue // no object of its own, such as DeleteOptions
		}
		needed := map[string]any{}
		collect(api.Definitions, definitions+name, needed)
		file := schemaFile(dir, fmt.Sprint(follow(kinds[0], "group")), fmt.Sprint(follow(kinds[0], "version")), fmt.Sprint(follow(kinds[0], "kind")))
		if err := writeJSON(file, map[string]any{"$ref": definitions + name, "definitions": needed}); err != nil {
			return err
		}
	}
	return nil
}

// collect adds the definition that a reference names and all that it refers to.
func collect(all map[string]map[string]any, at any, needed map[string]any) {
	switch v := at.(type) {
	case string:
		name, ok := strings.CutPrefix(v, definitions)
		if _, known := needed[name]; ok && !known {
			needed[name] = all[name]
			collect(all, all[name], needed)
		}
	case map[string]any:
		for _, value := range v {
			collect(all, value, needed)
		}
	case []any:
		for _, value := range v {
			collect(all, value, needed)
		}
	}
}

// writeCRD writes a schema for each version of a custom resource.
func writeCRD(dir, definition string) error {
	data, err := os.ReadFile(definition)
	if err != nil {
		return err
	}
	var crd map[string]any
	if err := yaml.Unmarshal(data, &crd); err != nil {
		return fmt.Errorf("%s: %w", definition, err)
	}
	versions, _ := follow(crd, "spec", "versions").([]any)
	for _, version := range versions {
		schema, _ := follow(version, "schema", "openAPIV3Schema").(map[string]any)
		tighten(schema)
		file := schemaFile(dir, fmt.Sprint(follow(crd, "spec", "group")), fmt.Sprint(follow(version, "name")), fmt.Sprint(follow(crd, "spec", "names", "kind")))
		if err := writeJSON(file, schema); err != nil {
			return err
		}
	}
	return nil
}

// tighten turns what Kubernetes writes into a JSON schema that refuses what the
// API server would only drop, or warn of: properties that are not declared.
func tighten(schema map[string]any) {
	properties, _ := schema["properties"].(map[string]any)
	for _, property := range properties {
		if property, ok := property.(map[string]any); ok {
			tighten(property)
		}
	}
	for _, inner := range []string{"items", "additionalProperties"} {
		if of, ok := schema[inner].(map[string]any); ok {
			tighten(of)
		}
	}
	_, open := schema["additionalProperties"]
	if len(properties) > 0 && !open && schema["x-kubernetes-preserve-unknown-fields"] != true {
		schema["additionalProperties"] = false
	}
	description, _ := schema["description"].(string)
	switch {
	case schema["format"] == "int-or-string", schema["x-kubernetes-int-or-string"] == true:
		delete(schema, "format")
		delete(schema, "anyOf")
		schema["type"] = []any{"integer", "string"}
	case strings.HasPrefix(description, "Quantity is a fixed-point"):
		schema["type"] = []any{"number", "string"}
	}
	delete(schema, "description") // nothing reads it here, and it is most of the text
}

func writeJSON(file string, value any) error {
	var text bytes.Buffer
	if err := json.NewEncoder(&text).Encode(value); err != nil {
		return err
	}
	return os.WriteFile(file, text.Bytes(), 0o600)
}
