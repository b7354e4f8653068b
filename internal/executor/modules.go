package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/modules"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/source"
	"github.com/tendril-run/tendril/internal/terraform"
)

// templateModules are a template's modules, and where they may come from.
type templateModules struct {
	policy   modules.Policy
	kind     string // of the engine
	checkout string // all of its files
	template string // the template's directory in it
	fetched  string // where the engine has those that it fetched
}

// judge reads what the template and the modules in its checkout need, and
// refuses sources that the agent's policy does not allow, before anything is
// fetched. It returns the engine versions that they want.
func (m templateModules) judge() ([]terraform.Constraint, error) {
	root, err := filepath.EvalSymlinks(m.checkout)
	if err != nil {
		return nil, fmt.Errorf("look through the checkout: %w", err)
	}
	dir, err := filepath.EvalSymlinks(m.template)
	if err != nil {
		return nil, fmt.Errorf("look through the checkout: %w", err)
	}
	w := moduleWalk{modules: m, root: root, seen: map[string]bool{}}
	if err := w.walk(dir, ""); err != nil {
		return nil, err
	}
	return w.versions, w.tooMany()
}

// moduleWalk looks at each directory of the checkout that is a module.
type moduleWalk struct {
	modules  templateModules
	root     string
	seen     map[string]bool
	versions []terraform.Constraint
}

// maxLocalModules is how many directories of a template are read.
const maxLocalModules = 1000

func (w *moduleWalk) tooMany() error {
	if len(w.seen) <= maxLocalModules {
		return nil
	}
	return provision.Fail(provision.CodeTemplateInvalid, fmt.Sprintf("the template has more than %d modules of its own", maxLocalModules), nil)
}

// walk reads the module in a directory; path is its name, "" for the root's.
func (w *moduleWalk) walk(dir, path string) error {
	if w.seen[dir] || len(w.seen) > maxLocalModules {
		return nil
	}
	w.seen[dir] = true
	needs, err := terraform.ReadNeeds(dir, w.modules.kind)
	if err != nil {
		return err
	}
	within, err := filepath.Rel(w.root, dir)
	if err != nil {
		return err
	}
	at := func(place string) string { return filepath.Join(within, place) }
	for _, v := range needs.Versions {
		v.At = at(v.At)
		w.versions = append(w.versions, v)
	}
	for _, call := range needs.Modules {
		name := strings.TrimPrefix(path+".module."+call.Name, ".")
		switch {
		case call.Source == "":
			// An engine's error, or OpenTofu's to evaluate: what that comes to is
			// judged once it is written down.
		case modules.IsLocal(call.Source):
			named := filepath.Join(dir, strings.ReplaceAll(call.Source, `\`, "/"))
			inside, err := filepath.EvalSymlinks(named)
			if errors.Is(err, fs.ErrNotExist) && isIn(named, w.root) {
				continue // for the engine to say
			}
			if err != nil || !isIn(inside, w.root) {
				return refuseModule(name, at(call.At), call.Source, "it leads out of the template's checkout")
			}
			if err := w.walk(inside, name); err != nil {
				return err
			}
		default:
			if err := w.modules.permit(name, at(call.At), call.Source); err != nil {
				return err
			}
		}
	}
	return nil
}

// judgeFetched judges the modules that were fetched, those that modules name
// included, by the engine's own list of them.
func (m templateModules) judgeFetched() error {
	manifest, err := m.manifest()
	if err != nil {
		return provision.Fail(provision.CodeInitFailed, "the list of modules that "+m.kind+" has made cannot be read: "+reason(err), err)
	}
	homes := []string{m.checkout, m.fetched}
	for i, home := range homes {
		if real, err := filepath.EvalSymlinks(home); err == nil {
			homes[i] = real
		}
	}
	for _, one := range manifest {
		if one.Key == "" {
			continue // the template
		}
		name := "module." + strings.ReplaceAll(one.Key, ".", ".module.")
		if !modules.IsLocal(one.Source) {
			if err := m.permit(name, "", one.Source); err != nil {
				return err
			}
			continue
		}
		dir := one.Dir
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(m.template, dir)
		}
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil || !slices.ContainsFunc(homes, func(home string) bool { return isIn(dir, home) }) {
			return refuseModule(name, "", one.Source, "it leads out of the checkout")
		}
	}
	return nil
}

// permit refuses a source that no pattern names.
func (m templateModules) permit(name, at, text string) error {
	s := modules.ParseSource(text, m.kind)
	if m.policy.Permits(s) {
		return nil
	}
	pattern := modules.Pattern(s)
	return refuseModule(name, at, text, fmt.Sprintf(
		"no pattern of [policy] modules or repos in the agent's configuration names it; %q among [policy] modules would allow it", pattern))
}

func refuseModule(name, at, text, why string) error {
	if at != "" {
		name += " (" + at + ")"
	}
	return provision.Fail(provision.CodeRepoRefused, fmt.Sprintf("%s: this agent refuses the source %s: %s", name, source.Redact(text), why), nil)
}

// fetchedModule is a line of the engine's list of modules.
type fetchedModule struct{ Key, Source, Dir string }

// manifest is empty where there are no modules.
func (m templateModules) manifest() ([]fetchedModule, error) {
	text, err := readBounded(filepath.Join(m.fetched, "modules.json"), maxMade)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var manifest struct{ Modules []fetchedModule }
	err = json.Unmarshal(text, &manifest)
	return manifest.Modules, err
}

// isIn reports whether a path is a directory or in it. Both have no links.
func isIn(path, dir string) bool {
	relative, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(relative)
}
