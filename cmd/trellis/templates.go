package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

func (a *app) templatesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "templates",
		Short: "List the catalogue, add to it, see a template's variables",
		Args:  verb,
	}
	cmd.AddCommand(a.templatesListCommand(), a.templatesShowCommand(), a.templatesAddCommand(), a.templatesInspectCommand(), a.templatesPinCommand(), a.templatesRemoveCommand())
	return cmd
}

func (a *app) templatesListCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the templates of the catalogue",
		Example: `  trellis templates list`,
		Args:    none,
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			list, err := s.Templates(ctx)
			if err != nil {
				return err
			}
			var rows []string
			for _, t := range list {
				rows = append(rows, row(t.Name, t.Version, strings.TrimSpace(t.Repo+" "+t.Path), t.Description))
			}
			return a.listing(out, list, "The catalogue is empty: an admin adds a template with trellis templates add.", "NAME\tVERSION\tREPOSITORY\tDESCRIPTION", rows)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) templatesShowCommand() *cobra.Command {
	var version string
	var out format
	cmd := &cobra.Command{
		Use:     "show NAME",
		Short:   "Show a template and the variables that it declares",
		Example: `  trellis templates show hello`,
		Args:    one("a template's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
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
			if out == "json" {
				return a.printJSON(struct {
					store.Template
					Version    string           `json:"version"`
					Inspection store.Inspection `json:"inspection"`
				}{t, version, i})
			}
			return a.printTemplate(cmd, t, version, i)
		}),
	}
	cmd.Flags().StringVar(&version, "version", "", "tag or commit whose variables to show; default: the catalogue's own")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) printTemplate(cmd *cobra.Command, t store.Template, version string, i store.Inspection) error {
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

func (a *app) templatesAddCommand() *cobra.Command {
	var t store.Template
	var out format
	cmd := &cobra.Command{
		Use:   "add NAME --repo URL --version TAG [--path DIR]",
		Short: "Put a template into the catalogue, or change what stands there",
		Long: `Puts a template into the catalogue under a name, at the version that is offered first,
or changes what stands there under that name. Which variables it declares is looked up
then: "trellis templates show" tells.`,
		Example: `  trellis templates add network --repo https://github.com/acme/network \
      --version v1.2.0 --path vpc`,
		Args: one("the template's name"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			if t.Repo == "" || t.Version == "" {
				return wrongUsage("--repo and --version are needed: a git repository, and a tag or a full commit of it")
			}
			t.Name = args[0]
			saved, err := s.SaveTemplate(ctx, t)
			if err != nil {
				return err
			}
			return a.answer(out, saved, "The template %s is in the catalogue at %s. Look:  %s", saved.Name, saved.Version, a.hint(cmd, "templates show "+quote(saved.Name)))
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&t.Repo, "repo", "", "git repository of the template")
	flags.StringVar(&t.Version, "version", "", "tag or full commit that is offered first")
	flags.StringVar(&t.Path, "path", "", "directory of the template within the repository")
	flags.StringVar(&t.Description, "description", "", "what it is for, for those who choose")
	flags.StringVar(&t.Approval, "approval", "", "which of its plans wait for approval: never, destructive or always")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) templatesInspectCommand() *cobra.Command {
	var version string
	var out format
	cmd := &cobra.Command{
		Use:     "inspect NAME",
		Short:   "Have a template looked at again, for its variables",
		Example: `  trellis templates inspect network`,
		Args:    one("a template's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			i, err := s.InspectTemplate(ctx, args[0], version)
			if err != nil {
				return err
			}
			show := "templates show " + quote(args[0])
			if version != "" {
				show += " --version " + quote(version)
			}
			return a.answer(out, i, "The template %s is looked at. See what was found:  %s", args[0], a.hint(cmd, show))
		}),
	}
	cmd.Flags().StringVar(&version, "version", "", "tag or commit to look at; default: the catalogue's own")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) templatesPinCommand() *cobra.Command {
	var version, reason string
	var out format
	cmd := &cobra.Command{
		Use:   "pin NAME COMMIT",
		Short: "Say which commit a template's tag means",
		Long: `Says which commit a template's tag means, for all clusters of the organisation and whatever
was pinned before. A tag is pinned without this by an inspection of the control plane,
or on each cluster by its first use; a tag that moves afterwards is refused.`,
		Example: `  trellis templates pin network 4b825dc642cb6eb9a060e54bf8d69288fbee4904 \
      --reason "reviewed"`,
		Args: cobra.MatchAll(cobra.ExactArgs(2)),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			if reason == "" {
				return wrongUsage("--reason is needed: the audit keeps it")
			}
			if err := s.PinTemplate(ctx, args[0], version, args[1], reason); err != nil {
				return err
			}
			return a.answer(out, map[string]any{"template": args[0], "version": version, "commit": args[1]}, "The tag of %s means commit %s on all clusters now.", args[0], args[1])
		}),
	}
	cmd.Flags().StringVar(&version, "version", "", "the tag; default: the catalogue's own")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) templatesRemoveCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "remove NAME",
		Short:   "Take a template out of the catalogue; what was deployed stays",
		Example: `  trellis templates remove network`,
		Args:    one("a template's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			if err := s.RemoveTemplate(ctx, args[0]); err != nil {
				return err
			}
			return a.answer(out, map[string]any{"template": args[0], "removed": true}, "The template %s is out of the catalogue; what was deployed from it stays.", args[0])
		}),
	}
	addFormat(cmd, &out)
	return cmd
}
