package terraform

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/provision"
)

// Constraint is a required_version of a template.
type Constraint struct {
	Text string // ">= 1.9"
	At   string // where it stands: "versions.tf:2"
	// Legacy says that OpenTofu heeds it before version 1.12 only: it stands in a
	// .tf file and so speaks, to the newer ones, of Terraform.
	Legacy bool
}

// ModuleCall is a module that a template uses.
type ModuleCall struct {
	Name   string
	Source string // "" where it is no literal text, which OpenTofu allows
	At     string
}

// Needs is what a module asks of its engine and of the world.
type Needs struct {
	Versions []Constraint
	Modules  []ModuleCall
}

// ReadNeeds reads what the module in dir needs, as an engine of that kind would.
// A module that an override file calls otherwise is listed twice, for whoever
// judges sources must not depend on which of them wins. A file that does not
// parse fails with CodeTemplateInvalid.
func ReadNeeds(dir, kind string) (Needs, error) {
	files, err := configFiles(dir)
	if err != nil {
		return Needs{}, err
	}
	files = readBy(kind, files)
	var found Needs
	for _, override := range []bool{false, true} {
		for _, name := range files {
			if isOverride(name) != override {
				continue
			}
			n, err := readNeedsFile(dir, kind, name)
			if err != nil {
				return Needs{}, err
			}
			if override && len(n.Versions) > 0 { // as the engines do
				found.Versions = nil
			}
			found.Versions = append(found.Versions, n.Versions...)
			found.Modules = append(found.Modules, n.Modules...)
		}
	}
	return found, nil
}

func readNeedsFile(dir, kind, name string) (Needs, error) {
	content, err := parseConfig(dir, name, &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{
		{Type: "terraform"}, {Type: "module", LabelNames: []string{"name"}}, {Type: "language"},
	}})
	if err != nil {
		return Needs{}, err
	}
	var n Needs
	for _, block := range content.Blocks {
		switch block.Type {
		case "module":
			source, at := literal(block, "source")
			n.Modules = append(n.Modules, ModuleCall{Name: block.Labels[0], Source: source, At: at})
		case "terraform":
			if text, at := literal(block, "required_version"); text != "" {
				n.Versions = append(n.Versions, Constraint{Text: text, At: at, Legacy: kind == OpenTofu && !strings.Contains(strings.TrimPrefix(name, stem(name)), ".tofu")})
			}
		case "language":
			if kind != OpenTofu {
				continue
			}
			inner, _, _ := block.Body.PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "compatible_with"}}})
			for _, with := range inner.Blocks {
				if text, at := literal(with, "opentofu"); text != "" {
					n.Versions = append(n.Versions, Constraint{Text: text, At: at})
				}
			}
		}
	}
	return n, nil
}

// literal is the text of an argument and where it stands; "" where it is no
// literal text, or there is none. What is wrong with it the engine says itself.
func literal(block *hcl.Block, argument string) (text, at string) {
	inner, _, _ := block.Body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: argument}}})
	where := block.DefRange
	if attribute, ok := inner.Attributes[argument]; ok {
		where = attribute.Range
		if v, diags := attribute.Expr.Value(nil); !diags.HasErrors() && v.Type() == cty.String && v.IsKnown() && !v.IsNull() {
			text = v.AsString()
		}
	}
	return text, fmt.Sprintf("%s:%d", where.Filename, where.Start.Line)
}

// parseConfig reads, of one configuration file, what a schema names.
func parseConfig(dir, name string, schema *hcl.BodySchema) (*hcl.BodyContent, error) {
	path := filepath.Join(dir, name)
	if info, err := os.Stat(path); err == nil && info.Size() > maxConfigFile {
		return nil, provision.Fail(provision.CodeTemplateInvalid, fmt.Sprintf(
			"%s has %d bytes, more than the %d that are read of one file", name, info.Size(), maxConfigFile), nil)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the template: %w", err)
	}
	parser := hclparse.NewParser()
	parse := parser.ParseHCL
	if strings.HasSuffix(name, ".json") {
		parse = parser.ParseJSON
	}
	file, diags := parse(source, name)
	if diags.HasErrors() {
		return nil, invalid(diags)
	}
	content, _, diags := file.Body.PartialContent(schema)
	if diags.HasErrors() {
		return nil, invalid(diags)
	}
	return content, nil
}
