package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// problem is what is wrong with a part of a snapshot.
type problem struct {
	Path    string `json:"path"` // config_snapshot.terraform_vars.x; "" for all of it
	Message string `json:"message"`
}

// startingSnapshot is what a form begins with: what a provision asked for, else
// the template alone. What was said of that one run is left out.
func (z *wizard) startingSnapshot() string {
	s := provision.Snapshot{}
	if z.From != nil {
		if was, err := provision.ParseSnapshot(z.From.Snapshot); err == nil { // as the database took it
			s = provision.Snapshot{
				TerraformVars: was.TerraformVars, Workspace: was.Workspace, Terraform: was.Terraform,
				TimeoutSeconds: was.TimeoutSeconds, MaxAttempts: was.MaxAttempts, RequesterKey: was.RequesterKey,
			}
			if z.From.Cluster == z.Cluster.Name && canonical.Address(was.TemplateSource.Repo) == z.Repo() { // for which they were sealed
				s.SealedVars = was.SealedVars
			}
		}
		if s.Workspace == "" {
			if name, err := s.WorkspaceName(); err != nil || name != z.From.Workspace {
				s.Workspace = z.From.Workspace
			}
		}
	}
	s.TemplateSource = z.Source
	if s.TerraformVars == nil {
		s.TerraformVars = map[string]json.RawMessage{}
	}
	s.Meta = map[string]json.RawMessage{"triggered_by": json.RawMessage(`"console"`)}
	return pretty(struct { // with a place for variables, though there be none
		TemplateSource provision.TemplateSource   `json:"template_source"`
		TerraformVars  map[string]json.RawMessage `json:"terraform_vars"`
		provision.Snapshot
	}{s.TemplateSource, s.TerraformVars, s})
}

// sealedFor is for what a message of an earlier run was sealed.
type sealedFor struct {
	Cluster   string `json:"cluster"`
	Workspace string `json:"workspace"`
	Repo      string `json:"repo"`
	Message   string `json:"message"`
}

// SealedForJSON says for what each sealed value of the run was sealed from which
// this deploy begins, for the page's script.
func (z *wizard) SealedForJSON() (string, error) {
	known := map[string]sealedFor{}
	if z.From != nil {
		was, err := provision.ParseSnapshot(z.From.Snapshot)
		name, unnamed := was.WorkspaceName()
		if err == nil && unnamed == nil {
			for variable, message := range was.SealedVars {
				known[variable] = sealedFor{z.From.Cluster, name, canonical.Address(was.TemplateSource.Repo), message}
			}
		}
	}
	text, err := json.Marshal(known)
	return string(text), err
}

// sealedElsewhere says what is wrong with sealed values of the run from which this
// deploy began: they open where that run was, and nowhere else.
func (z *wizard) sealedElsewhere(asked provision.Snapshot) []problem {
	if z.From == nil {
		return nil
	}
	was, err := provision.ParseSnapshot(z.From.Snapshot)
	if err != nil {
		return nil // the agent compares
	}
	if err := was.SealedElsewhere(asked); err != nil {
		return problemsOf(err.Error())
	}
	var all []problem
	for _, name := range slices.Sorted(maps.Keys(asked.SealedVars)) {
		if z.From.Cluster != z.Cluster.Name && asked.SealedVars[name] == was.SealedVars[name] {
			all = append(all, problem{"config_snapshot.sealed_vars." + name, "it was sealed for the cluster " + z.From.Cluster + "; seal the value again"})
		}
	}
	return all
}

// pretty writes JSON for people; numbers stay as they are.
func pretty(value any) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(value) // what was read as JSON can be written
	return strings.TrimSuffix(out.String(), "\n")
}

// check is checkSnapshot, and that nothing is asked for that no agent will open.
func (z *wizard) check(text string, operation provision.Operation) (provision.Snapshot, string, []problem) {
	s, workspace, problems := checkSnapshot(text, operation)
	if problems == nil {
		problems = z.sealedElsewhere(s)
	}
	return s, workspace, problems
}

// checkSnapshot reads what a form has sent, by the rules that the database keeps.
func checkSnapshot(text string, operation provision.Operation) (s provision.Snapshot, workspace string, problems []problem) {
	s, err := provision.ParseSnapshot([]byte(text))
	if err == nil {
		err = s.CheckOperation(operation)
	}
	if err == nil {
		workspace, err = s.WorkspaceName()
	}
	if failure, ok := errors.AsType[*provision.Failure](err); ok {
		return s, "", problemsOf(failure.Message)
	} else if err != nil {
		return s, "", []problem{{Message: err.Error()}}
	}
	return s, workspace, nil
}

// problemsOf takes apart what is told a line for each problem, PATH: MESSAGE.
func problemsOf(text string) (all []problem) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		path, message, found := strings.Cut(line, ": ")
		switch {
		case line == "":
		case found && (strings.HasPrefix(path, "config_snapshot") || path == "operation"):
			all = append(all, problem{path, message})
		case found && (strings.HasPrefix(path, "terraform_vars.") || strings.HasPrefix(path, "sealed_vars.")): // as an agent says it
			all = append(all, problem{"config_snapshot." + path, message})
		default:
			all = append(all, problem{"", line})
		}
	}
	return all
}

// failedAt are the problems for which a provision failed, if its variables were
// to blame.
func failedAt(p *store.Provision) []problem {
	if p == nil || p.ErrorCode == nil || provision.Code(*p.ErrorCode) != provision.CodeVariablesInvalid || p.ErrorMessage == nil {
		return nil
	}
	return problemsOf(*p.ErrorMessage)
}
