package terraform

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// ConfigFile is the variable that names an engine's configuration, OpenTofu's as
// well.
const ConfigFile = "TF_CLI_CONFIG_FILE"

// WriteProviderMirror writes an engine configuration that takes providers from a
// mirror: a directory, or the URL of a network mirror. Direct adds the providers'
// own registries, which are out of reach otherwise; so are the directories where
// engines, and templates, keep providers by themselves.
func WriteProviderMirror(path, mirror string, direct bool) error {
	file := hclwrite.NewEmptyFile()
	installation := file.Body().AppendNewBlock("provider_installation", nil).Body()
	if filepath.IsAbs(mirror) {
		installation.AppendNewBlock("filesystem_mirror", nil).Body().SetAttributeValue("path", cty.StringVal(mirror))
	} else {
		installation.AppendNewBlock("network_mirror", nil).Body().SetAttributeValue("url", cty.StringVal(strings.TrimRight(mirror, "/")+"/"))
	}
	if direct {
		installation.AppendNewBlock("direct", nil)
	}
	if err := writeNew(path, file.Bytes()); err != nil {
		return fmt.Errorf("configure the provider mirror: %w", err)
	}
	return nil
}
