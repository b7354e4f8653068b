package agentcmd

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agent"
	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/process"
)

// dataDirFlags say which agent's data directory is meant.
type dataDirFlags struct{ run runFlags }

func (f *dataDirFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.run.config, "config", "c", "", "TOML file with the agent's configuration (TENDRIL_CONFIG)")
	cmd.Flags().StringVar(&f.run.dataDir, "data-dir", "", "the agent's data directory (TENDRIL_DATA_DIR); then no configuration is needed")
}

// find reads no configuration where the directory is named: an operator need not
// have the agent's secrets.
func (f *dataDirFlags) find() (string, error) {
	if f.run.dataDir != "" {
		return f.run.dataDir, nil
	}
	if dir := os.Getenv("TENDRIL_DATA_DIR"); dir != "" {
		return dir, nil
	}
	if err := process.Undumpable(); err != nil { // before the token is read, as the agent does it
		return "", failure{err, ExitFailure}
	}
	settings, err := config.Load(f.run.file(), os.Environ())
	if err != nil {
		return "", failure{fmt.Errorf("find the agent's data directory: give --data-dir, or the agent's own configuration: %w", err), ExitUsage}
	}
	return settings.DataDir, nil
}

// completeKnown offers the ids of the workspaces that the agent knows. Nobody who has
// only pressed Tab asked for an error.
func (f *dataDirFlags) completeKnown(_ *cobra.Command, args []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
	if data, err := f.find(); err == nil && len(args) == 0 {
		all, _ := agent.KnownWorkspaces(data)
		for _, w := range all {
			ids = append(ids, w.ID.String()+"\t"+w.Name)
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

func workspacesCommand() *cobra.Command {
	var dir dataDirFlags
	var output string
	cmd := &cobra.Command{
		Use:   "workspaces",
		Short: "List the workspaces that this agent knows; accept a changed one",
		Long: `Lists what this agent remembers of the workspaces that it has run: name, id, and the
version and SHA-256 of the newest managed state. It refuses to run a workspace for which
the database says otherwise, until you accept that: "tendril workspaces accept".

It reads the data directory only, so it may run while the agent is at work.`,
		Example: `  tendril workspaces
  tendril workspaces accept 0b6ff0b1-4a3c-4c39-9f64-5f6f6f0b5a11 \
      --name acme/prod`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return wrongOutput(output)
			}
			data, err := dir.find()
			if err != nil {
				return err
			}
			all, err := agent.KnownWorkspaces(data)
			if err != nil {
				return failure{err, ExitFailure}
			}
			if err := writeWorkspaces(cmd, all, output); err != nil {
				return failure{fmt.Errorf("write the list: %w", err), ExitFailure}
			}
			return nil
		},
	}
	dir.add(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.AddCommand(acceptCommand())
	return cmd
}

func writeWorkspaces(cmd *cobra.Command, all []agent.KnownWorkspace, output string) error {
	if output == "json" {
		encoder := json.NewEncoder(cmd.OutOrStdout())
		encoder.SetIndent("", "  ")
		return encoder.Encode(all)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "This agent has run no workspace yet.")
		return err
	}
	rows := [][]string{{"NAME", "ID", "STATE", "SHA-256", "ACCEPTED"}}
	for _, w := range all {
		name, version, accepted := w.Name, "-", "-"
		if w.StateVersion > 0 {
			version = fmt.Sprint(w.StateVersion)
		}
		if w.Accepted != nil {
			accepted = "name " + w.Accepted.Name
			if w.Accepted.State != "" {
				accepted += ", state " + abbreviated(w.Accepted.State)
			}
		}
		if w.Problem != "" {
			name = "? (" + w.Problem + ")"
		}
		rows = append(rows, []string{orDash(name), w.ID.String(), version, orDash(abbreviated(w.StateDigest)), accepted})
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), printable.Table(0, rows...))
	return err
}

// abbreviated is the beginning of a digest, for people.
func abbreviated(digest string) string { return digest[:min(12, len(digest))] }

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

var digest = regexp.MustCompile(`^[0-9a-f]{64}$`)

func acceptCommand() *cobra.Command {
	var dir dataDirFlags
	var a agent.Acceptance
	cmd := &cobra.Command{
		Use:   "accept ID --name NAME [--state SHA-256]",
		Short: "Accept a workspace's new name or another state",
		Long: `Accepts what the database says of a workspace and this agent refuses: another name or id
than the agent remembers (error workspace_changed), or a managed state that is older than
the one it knows or did not come after it (error state_invalid, "step back" or "fork").
The error's message has the whole command.

Find out first who made the change, and whether they meant it: credentials and sealed
values follow the name, and with another state the next apply may make things a second
time or forget them.

The answer waits in the data directory and is good for the next run of that workspace. It
counts for this agent: repeat it on each agent of the cluster that refuses.`,
		Example: `  tendril workspaces accept 0b6ff0b1-4a3c-4c39-9f64-5f6f6f0b5a11 \
      --name acme/prod
  tendril workspaces accept 0b6ff0b1-4a3c-4c39-9f64-5f6f6f0b5a11 \
      --name acme/prod --state none`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: dir.completeKnown,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := uuid.Parse(args[0])
			if err != nil || id == uuid.Nil {
				return fmt.Errorf("invalid argument %q: the workspace's id is needed, as the error's message has it", args[0])
			}
			if a.Name == "" {
				return fmt.Errorf("--name is missing: the only name that is to be accepted")
			}
			if problem := canonical.WorkspaceProblem(a.Name); problem != "" {
				return fmt.Errorf("--name %q: %s", a.Name, problem)
			}
			if a.State != "" && a.State != agent.NoState && !digest.MatchString(a.State) {
				return fmt.Errorf("--state %q: SHA-256 of the state in the database, as the error's message has it, or %s", a.State, agent.NoState)
			}
			data, err := dir.find()
			if err != nil {
				return err
			}
			return accept(cmd, data, id, a)
		},
	}
	dir.add(cmd)
	cmd.Flags().StringVar(&a.Name, "name", "", "the name to accept, and no other (required)")
	cmd.Flags().StringVar(&a.State, "state", "", `SHA-256 of the state to accept, or "none" where the database has none any more`)
	return cmd
}

func accept(cmd *cobra.Command, data string, id uuid.UUID, a agent.Acceptance) error {
	all, err := agent.KnownWorkspaces(data)
	if err == nil {
		err = agent.Accept(data, id, a)
	}
	if err != nil {
		return failure{err, ExitFailure}
	}
	text := fmt.Sprintf("Accepted for the next run: workspace %s is called %s.\n", id, a.Name)
	for _, w := range all {
		switch {
		case w.ID == id && w.Name != "" && w.Name != a.Name:
			text += fmt.Sprintf("So far this agent knew it as %s.\n", w.Name)
		case w.ID != id && w.Name == a.Name:
			text += fmt.Sprintf("So far this agent knew that name as workspace %s's, which it then runs under this name no more.\n", w.ID)
		}
		if w.ID == id && a.State != "" && w.StateVersion > 0 {
			text += fmt.Sprintf("It gives up state version %d (%s), the newest that it knows.\n", w.StateVersion, abbreviated(w.StateDigest))
		}
	}
	switch a.State {
	case "":
	case agent.NoState:
		text += "It may begin without a state: the next apply makes everything a second time, unless you bring a state in first.\n"
	default:
		text += fmt.Sprintf("It goes on from the state %s, or from one that came after it.\n", abbreviated(a.State))
	}
	if _, err := fmt.Fprint(cmd.OutOrStdout(), text+"Deploy again to use it.\n"); err != nil {
		return failure{fmt.Errorf("say what was done: %w", err), ExitFailure}
	}
	return nil
}
