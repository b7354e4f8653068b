package terraform

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/provision"
)

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
