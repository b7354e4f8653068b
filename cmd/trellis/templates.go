package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/tfvars"
)

func templatesCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "templates",
		Aliases: []string{"template"},
		Short:   "List the catalogue, add to it, see a template's variables",
		Args:    verb,
	}
	cmd.AddCommand(templatesListCommand(a), templatesShowCommand(a), templatesAddCommand(a), templatesCheckCommand(a), templatesInspectCommand(a), templatesPinCommand(a), templatesRemoveCommand(a))
	return cmd
}

func templatesListCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "list",
		Short:   "List the templates of the catalogue",
		Example: `  trellis templates list`,
		Args:    none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			list, err := s.Templates(ctx)
			return listing(&a.printer, list, err, "The catalogue is empty: an admin adds a template with trellis templates add.", "NAME\tVERSION\tREPOSITORY\tDESCRIPTION", func(t wire.Template) []any {
				return []any{t.Name, t.Version, strings.TrimSpace(t.Repo + " " + t.Path), t.Description}
			})
		}),
	})
}

func templatesShowCommand(a *app) *cobra.Command {
	var version string
	cmd := &cobra.Command{
		Use:     "show NAME",
		Short:   "Show a template and the variables that it declares",
		Example: `  trellis templates show hello`,
		Args:    one("a template's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			t, err := s.Template(ctx, args[0])
			if err != nil {
				return err
			}
			i, err := s.TemplateVariables(ctx, args[0], version)
			if err != nil {
				return err
			}
			if version == "" {
				version = t.Version
			}
			if a.json() {
				return a.printJSON(struct {
					wire.Template
					Version    string          `json:"version"`
					Inspection wire.Inspection `json:"inspection"`
				}{t, version, i})
			}
			return printTemplate(a, cmd, t, version, i)
		}),
	}
	cmd.Flags().StringVar(&version, "version", "", "tag or commit whose variables to show; default: the catalogue's own")
	addFormat(a, cmd)
	return cmd
}

func printTemplate(a *app, cmd *cobra.Command, t wire.Template, version string, i wire.Inspection) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s\n", t.Name, version)
	for _, line := range [][2]string{{"about", t.Description}, {"from", strings.TrimSpace(t.Repo + " " + t.Path)}, {"commit", deref(i.Commit)}, {"approval", t.Approval}} {
		if line[1] != "" {
			fmt.Fprintf(&text, "  %-10s %s\n", line[0], line[1])
		}
	}
	switch {
	case !i.Inspected && i.Problem != "":
		fmt.Fprintf(&text, "  variables  not known: %s\n", i.Problem)
	case !i.Inspected:
		fmt.Fprintf(&text, "  variables  not known yet: %s\n", a.hint(cmd, "templates inspect "+quote(t.Name)))
	case len(i.Variables) == 0:
		text.WriteString("  variables  none\n")
	default:
		text.WriteString("  variables\n")
		for _, v := range i.Variables {
			text.WriteString(variableLine(v))
		}
	}
	_, err := fmt.Fprint(a.out, printable.Text(text.String()))
	return err
}

func variableLine(v provision.Variable) string {
	line := fmt.Sprintf("    %s: %s", v.Name, cmp.Or(v.Type, "any"))
	switch {
	case v.Required:
		line += ", required"
	case v.Default != nil && !v.Sensitive:
		line += " = " + string(v.Default)
	}
	if v.Sensitive {
		line += ", sensitive"
	}
	if v.Description != "" {
		line += "  # " + strings.ReplaceAll(v.Description, "\n", " ")
	}
	return line + "\n"
}

func templatesAddCommand(a *app) *cobra.Command {
	var t wire.SaveTemplateInputBody
	cmd := &cobra.Command{
		Use:   "add NAME --repo URL --version TAG [--path DIR]",
		Short: "Put a template into the catalogue, or change what stands there",
		Long: `Puts a template into the catalogue under a name, at the version that is offered first,
or changes what stands there under that name. Which variables it declares is looked up
then: "trellis templates show" tells.`,
		Example: `  trellis templates add network --repo https://github.com/acme/network \
      --version v1.2.0 --path vpc`,
		Args: one("the template's name"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			if t.Repo == "" || t.Version == "" {
				return wrongUsage("--repo and --version are needed: a git repository, and a tag or a full commit of it")
			}
			t.Name = args[0]
			saved, err := s.SaveTemplate(ctx, t)
			return a.answer(err, saved, "The template %s is in the catalogue at %s. Look:  %s", saved.Name, saved.Version, a.hint(cmd, "templates show "+quote(saved.Name)))
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&t.Repo, "repo", "", "git repository of the template")
	flags.StringVar(&t.Version, "version", "", "tag or full commit that is offered first")
	flags.StringVar(&t.Path, "path", "", "directory of the template within the repository")
	flags.StringVar(&t.Description, "description", "", "what it is for, for those who choose")
	flags.StringVar(&t.Approval, "approval", "", "which of its plans wait for approval: never, destructive or always")
	addFormat(a, cmd)
	return cmd
}

func templatesCheckCommand(a *app) *cobra.Command {
	var vars variableFlags
	cmd := &cobra.Command{
		Use:   "check DIR",
		Short: "Check a template's directory as an agent would",
		Long: `Checks the variables that a template declares, their validation blocks with the defaults,
and its tendril.hcl, as an agent does before it runs anything. It asks no server. With the
variables of a run it checks their values as well, and lists the machines that the template
would make.`,
		Example: `  trellis templates check .
  trellis templates check ./class --var class=c1 --var-json 'students=["ada"]'`,
		Args: one("a template's directory"),
		RunE: func(_ *cobra.Command, args []string) error {
			if info, err := os.Stat(args[0]); err != nil || !info.IsDir() {
				return wrongUsage("%s is not a directory", args[0])
			}
			given, err := readVariables(a, vars)
			if err != nil {
				return err
			}
			c, err := checkTemplate(args[0], given)
			switch {
			case err != nil:
				return err
			case a.json():
				return a.printJSON(c)
			}
			return c.print(a)
		},
	}
	vars.addFlags(cmd)
	addFormat(a, cmd)
	return cmd
}

// checkedTemplate is what a template's directory has, as -o json shows it.
type checkedTemplate struct {
	Title       string               `json:"title,omitempty"`
	Description string               `json:"description,omitempty"`
	Icon        string               `json:"icon,omitempty"`
	Provisioner templatefile.Kind    `json:"provisioner"`
	Variables   []provision.Variable `json:"variables"`
	Steps       []string             `json:"steps,omitempty"`
	// Machines is nil where Missing are variables without a value.
	Machines []checkedMachine `json:"machines,omitempty"`
	Missing  []string         `json:"missing,omitempty"`
	// Unchecked are validation blocks that only Terraform can evaluate, and why.
	Unchecked []string `json:"unchecked,omitempty"`
}

type checkedMachine struct {
	Name      string            `json:"name"`
	Pool      string            `json:"pool,omitempty"`
	Image     string            `json:"image,omitempty"`
	Address   string            `json:"address,omitempty"`
	Cores     int               `json:"cores,omitempty"`
	MemoryMiB int               `json:"memory_mib,omitempty"`
	DiskGiB   int               `json:"disk_gib,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// checkTemplate reads a directory. Both files are read before it ends with an error, so
// that all problems are said at once.
func checkTemplate(dir string, given map[string]json.RawMessage) (checkedTemplate, error) {
	declared, err := tfvars.Load(dir, "terraform")
	file, fileErr := templatefile.Read(dir)
	if err := errors.Join(err, fileErr); err != nil {
		return checkedTemplate{}, err
	}
	c := checkedTemplate{Title: file.Title, Description: file.Description, Icon: file.Icon, Provisioner: file.Kind}
	if c.Variables, err = declared.Declared(); err != nil {
		return c, err
	}
	if err := file.CheckVariables(c.Variables); err != nil {
		return c, err
	}
	for _, step := range file.Steps {
		c.Steps = append(c.Steps, step.Label)
	}
	for _, v := range c.Variables {
		if v.Required && given[v.Name] == nil {
			c.Missing = append(c.Missing, v.Name)
		}
	}
	if len(given) == 0 && len(c.Missing) > 0 {
		defaults, err := declared.Defaults()
		if err != nil {
			return c, err
		}
		return c, c.validate(declared, defaults)
	}
	// Who gives a secret on their own machine shows it to nobody.
	values, err := declared.Values(tfvars.Given{Plain: given, PlainSensitive: true})
	if err != nil {
		return c, err
	}
	validationErr := c.validate(declared, values)
	machines, err := file.Machines(values)
	_, placementErr := file.Placement(values)
	_, instructionsErr := file.Instructions(dir, values)
	for _, m := range machines {
		c.Machines = append(c.Machines, checkedMachine{m.Name, m.Pool, m.Image, m.Address, m.Cores, m.Memory, m.Disk, m.Labels})
	}
	return c, errors.Join(validationErr, err, placementErr, instructionsErr)
}

// validate evaluates the validation blocks whose variables all have a value. Terraform
// evaluates its templates' own, and knows more functions and names there.
func (c *checkedTemplate) validate(declared *tfvars.Template, values map[string]cty.Value) error {
	var problems []error
	for _, check := range declared.Validations() {
		if slices.ContainsFunc(check.Uses, func(name string) bool { return slices.Contains(c.Missing, name) && values[name] == cty.NilVal }) {
			continue
		}
		refused, err := templatefile.Refusals([]tfvars.Validation{check}, values)
		switch {
		case err != nil && c.Provisioner == templatefile.Terraform:
			c.Unchecked = append(c.Unchecked, err.Error())
		case err != nil:
			problems = append(problems, err)
		case refused != nil:
			problems = append(problems, provision.Fail(provision.CodeVariablesInvalid, "The template refuses a value: "+strings.Join(refused, "\n"), nil))
		}
	}
	return errors.Join(problems...)
}

func (c checkedTemplate) print(a *app) error {
	names := make([]string, len(c.Variables))
	for i, v := range c.Variables {
		names[i] = v.Name
	}
	count := func(list []string) string {
		if len(list) == 0 {
			return "none"
		}
		return fmt.Sprintf("%d: %s", len(list), strings.Join(list, ", "))
	}
	rows := [][]string{{"provisioner", string(c.Provisioner)}, {"variables", count(names)}}
	if c.Title != "" {
		rows = append([][]string{{"title", c.Title}}, rows...)
	}
	if len(c.Steps) > 0 {
		rows = append(rows, []string{"steps", count(c.Steps)})
	}
	if err := a.pairs(rows...); err != nil {
		return err
	}
	for _, why := range c.Unchecked {
		a.say("Only Terraform can evaluate a validation block. %s", why)
	}
	if len(c.Missing) > 0 {
		a.say("No problems found. To check a run's values as well, give them with --var: %s", strings.Join(c.Missing, ", "))
		return nil
	}
	if len(c.Machines) > 0 {
		table := [][]string{{"MACHINE", "POOL", "IMAGE", "CORES", "MEMORY", "DISK"}}
		size := func(n int, unit string) string {
			if n == 0 {
				return "-"
			}
			return strings.TrimSpace(fmt.Sprintf("%d %s", n, unit))
		}
		for _, m := range c.Machines {
			table = append(table, []string{m.Name, cmp.Or(m.Pool, "-"), cmp.Or(m.Image, "-"), size(m.Cores, ""), size(m.MemoryMiB, "MiB"), size(m.DiskGiB, "GiB")})
		}
		if err := a.print("\n%s", printable.Table(0, table...)); err != nil {
			return err
		}
	}
	a.say("No problems found.")
	return nil
}

func templatesInspectCommand(a *app) *cobra.Command {
	var version string
	cmd := &cobra.Command{
		Use:     "inspect NAME",
		Short:   "Re-scan a template for its variables",
		Example: `  trellis templates inspect network`,
		Args:    one("a template's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			i, err := s.InspectTemplate(ctx, args[0], version)
			if err != nil {
				return err
			}
			show := "templates show " + quote(args[0])
			if version != "" {
				show += " --version " + quote(version)
			}
			return a.answer(nil, i, "The template %s is being scanned. See the result:  %s", args[0], a.hint(cmd, show))
		}),
	}
	cmd.Flags().StringVar(&version, "version", "", "tag or commit to scan; default: the catalogue's own")
	addFormat(a, cmd)
	return cmd
}

func templatesPinCommand(a *app) *cobra.Command {
	var version, reason string
	cmd := &cobra.Command{
		Use:   "pin NAME COMMIT",
		Short: "Say which commit a template's tag means",
		Long: `Says which commit a template's tag means, for all clusters of the organisation and whatever
was pinned before. A tag is pinned without this by an inspection of the control plane,
or on each cluster by its first use; a tag that moves afterwards is refused.`,
		Example: `  trellis templates pin network 4b825dc642cb6eb9a060e54bf8d69288fbee4904 \
      --reason "reviewed"`,
		Args: cobra.MatchAll(cobra.ExactArgs(2)),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			if reason == "" {
				return wrongUsage("--reason is needed: the audit keeps it")
			}
			return a.answer(s.PinTemplate(ctx, args[0], version, args[1], reason), map[string]any{"template": args[0], "version": version, "commit": args[1]}, "The tag of %s means commit %s on all clusters now.", args[0], args[1])
		}),
	}
	cmd.Flags().StringVar(&version, "version", "", "the tag; default: the catalogue's own")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	addFormat(a, cmd)
	return cmd
}

func templatesRemoveCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "remove NAME",
		Short:   "Take a template out of the catalogue; what was deployed stays",
		Example: `  trellis templates remove network`,
		Args:    one("a template's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			return a.answer(s.RemoveTemplate(ctx, args[0]), map[string]any{"template": args[0], "removed": true}, "The template %s is out of the catalogue; what was deployed from it stays.", args[0])
		}),
	})
}
