package terraform

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/provision"
)

// Backend is where a template says its state lives.
type Backend struct {
	// Type is the backend's name, "cloud" for a cloud block, and "local"
	// where the template declares none.
	Type string
	// Declared tells the template's own "local" from the default.
	Declared bool
	// Config has the arguments whose values are literal strings; Keys lists all
	// arguments and nested blocks that are set, sorted.
	Config map[string]string
	Keys   []string
	// File is where it is declared, relative to the directory.
	File string
	// Starts says that it may start commands that the template names, and does
	// so during init. Encrypts says the same of OpenTofu's state encryption, which
	// goes with any backend.
	Starts, Encrypts bool
}

// ReadBackend reads which backend the root module in dir declares to an engine
// of that kind, override files included. A file that does not parse fails with
// CodeTemplateInvalid.
func ReadBackend(dir, kind string) (Backend, error) {
	files, err := configFiles(dir)
	if err != nil {
		return Backend{}, err
	}
	files = readBy(kind, files)
	found, encrypts := Backend{Type: "local"}, false
	for _, override := range []bool{false, true} {
		for _, name := range files {
			if isOverride(name) != override {
				continue
			}
			b, encrypted, err := readBackendFile(dir, name)
			if err != nil {
				return Backend{}, err
			}
			if b != nil {
				found = *b
			}
			encrypts = encrypts || encrypted
		}
	}
	found.Starts, found.Encrypts = startsCommands(found), encrypts
	return found, nil
}

// startsCommands reports whether a backend may start commands that the template
// names, such as one that brings credentials. Backends that are not known here
// may, too.
func startsCommands(b Backend) bool {
	arguments, known := map[string][]string{
		"local": nil, "http": nil, "consul": nil, "pg": nil, "azurerm": nil,
		"s3":         {"shared_config_files", "shared_credentials_file", "shared_credentials_files"}, // credential_process
		"gcs":        {"credentials"},                                                                // of an external account
		"kubernetes": {"exec", "config_path", "config_paths"},
	}[b.Type]
	return !known || slices.ContainsFunc(arguments, func(name string) bool { return slices.Contains(b.Keys, name) })
}

// configExtensions are those an engine reads; .tofu is OpenTofu's.
var configExtensions = []string{".tf", ".tf.json", ".tofu", ".tofu.json"}

// configFiles lists the root module's files in the order the engine reads
// them. Anything but a regular file is left out: reading a pipe would hang.
func configFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the template: %w", err)
	}
	var files []string
	for _, entry := range entries {
		name := entry.Name()
		if stem(name) == name || strings.HasPrefix(name, ".") {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.Mode().IsRegular() {
			continue
		}
		files = append(files, name)
	}
	return files, nil
}

// readBy leaves the files that an engine reads. Terraform does not know .tofu,
// and to OpenTofu x.tofu hides x.tf.
func readBy(kind string, files []string) []string {
	return slices.DeleteFunc(files, func(name string) bool {
		if kind != OpenTofu {
			return strings.Contains(strings.TrimPrefix(name, stem(name)), ".tofu")
		}
		hidden := stem(name) + strings.Replace(strings.TrimPrefix(name, stem(name)), ".tf", ".tofu", 1)
		return hidden != name && slices.Contains(files, hidden)
	})
}

// stem is a configuration file's name without its extension, and any other
// name as it is.
func stem(name string) string {
	// Longest first: .json belongs to the extension.
	for _, extension := range slices.Backward(configExtensions) {
		if s, ok := strings.CutSuffix(name, extension); ok {
			return s
		}
	}
	return name
}

func isOverride(name string) bool {
	s := stem(name)
	return s == "override" || strings.HasSuffix(s, "_override")
}

// maxConfigFile is the largest file read, in bytes.
const maxConfigFile = 16 << 20

// readBackendFile also reports whether OpenTofu is to encrypt what it writes: its
// keys may come from a command.
func readBackendFile(dir, name string) (found *Backend, encrypts bool, err error) {
	content, err := parseConfig(dir, name, &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "terraform"}}})
	if err != nil {
		return nil, false, err
	}
	for _, block := range content.Blocks {
		inner, _, diags := block.Body.PartialContent(&hcl.BodySchema{
			Blocks: []hcl.BlockHeaderSchema{{Type: "backend", LabelNames: []string{"type"}}, {Type: "cloud"}, {Type: "encryption"}},
		})
		if diags.HasErrors() {
			return nil, false, invalid(diags)
		}
		for _, b := range inner.Blocks {
			if b.Type == "encryption" {
				encrypts = true
				continue
			}
			found = describe(b, name)
		}
	}
	return found, encrypts, nil
}

func describe(block *hcl.Block, file string) *Backend {
	b := &Backend{Type: "cloud", Declared: true, File: file, Config: map[string]string{}}
	if block.Type == "backend" {
		b.Type = block.Labels[0]
	}
	// Diagnostics are about nested blocks, which JustAttributes does not expect
	// and which the engine will check itself.
	attributes, _ := block.Body.JustAttributes()
	for key, attribute := range attributes {
		b.Keys = append(b.Keys, key)
		value, diags := attribute.Expr.Value(nil)
		if !diags.HasErrors() && value.Type() == cty.String && value.IsKnown() && !value.IsNull() {
			b.Config[key] = value.AsString()
		}
	}
	if native, ok := block.Body.(*hclsyntax.Body); ok {
		for _, nested := range native.Blocks {
			b.Keys = append(b.Keys, nested.Type)
		}
	}
	slices.Sort(b.Keys)
	return b
}

// invalid makes the first syntax error a Failure. It quotes nothing of the
// file.
func invalid(diags hcl.Diagnostics) error {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		message := d.Summary
		if d.Detail != "" {
			message += ": " + d.Detail
		}
		if d.Subject != nil {
			message = fmt.Sprintf("%s line %d: %s", d.Subject.Filename, d.Subject.Start.Line, message)
		}
		return provision.Fail(provision.CodeTemplateInvalid, "the template does not parse: "+truncate(message, maxMessage), diags)
	}
	return nil
}

// overrideName is the name of what Override writes, without its extension.
const overrideName = "zz_tendril_override"

// Override replaces whatever backend the template in dir declares. The values
// end up in a file of the work directory and in .terraform, so what is secret
// belongs into the environment. A template whose own override files declare a
// backend is refused with CodeTemplateInvalid: which of the two won would
// depend on their names.
func Override(dir, backend string, config map[string]string) error {
	files, err := configFiles(dir)
	if err != nil {
		return err
	}
	for _, name := range files {
		if !isOverride(name) || name == overrideName+".tf" {
			continue
		}
		declared, _, err := readBackendFile(dir, name)
		if err != nil {
			return err
		}
		if declared != nil || stem(name) == overrideName {
			return provision.Fail(provision.CodeTemplateInvalid, fmt.Sprintf(
				"%s overrides the backend, and this agent's policy sets the backend %q itself: remove it from the template", name, backend), nil)
		}
	}
	file := hclwrite.NewEmptyFile()
	block := file.Body().AppendNewBlock("terraform", nil).Body().AppendNewBlock("backend", []string{backend})
	setStrings(block.Body(), config)
	return writeNew(filepath.Join(dir, overrideName+".tf"), file.Bytes())
}

// writeBackendConfig writes a file for -backend-config and returns its path.
func writeBackendConfig(config map[string]string) (string, error) {
	file := hclwrite.NewEmptyFile()
	setStrings(file.Body(), config)
	out, err := os.CreateTemp("", "tendril-*.tfbackend") // 0600
	if err != nil {
		return "", fmt.Errorf("write the backend's configuration: %w", err)
	}
	_, err = out.Write(file.Bytes())
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = os.Remove(out.Name())
		return "", fmt.Errorf("write the backend's configuration: %w", err)
	}
	return out.Name(), nil
}

// asBackendConfig is the argument for such a file. The engine takes one with an
// equals sign for a value, so a path through a directory of such a name is told
// from where the engine runs.
func (r *Runner) asBackendConfig(file string) (string, error) {
	if !strings.Contains(file, "=") {
		return file, nil
	}
	relative, err := filepath.Rel(r.dir, file)
	if err == nil && strings.Contains(relative, "=") {
		err = errors.New("it contains an equals sign, which the engine takes for a value's; use another directory for the agent's data")
	}
	if err != nil {
		return "", fmt.Errorf("name the backend's configuration %s: %w", file, err)
	}
	return relative, nil
}

// setStrings sets arguments, quoted so that nothing in a value is evaluated.
func setStrings(body *hclwrite.Body, config map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(config)) {
		body.SetAttributeValue(key, cty.StringVal(config[key]))
	}
}

// writeNew replaces a file without following a link that a template left in
// its place.
func writeNew(path string, content []byte) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("replace %s: %w", filepath.Base(path), err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	_, err = file.Write(content)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
