package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/planned"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// planFlags are what planned machines have in common.
type planFlags struct {
	request     deployRequest
	vars        variableFlags
	pool, image string
	cores       int
	memory      int
	disk        int
	labels      []string
}

func (f *planFlags) addFlags(a *app, cmd *cobra.Command) {
	f.request.addSource(cmd)
	f.vars.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.pool, "pool", "", "the pool that they are to be in")
	flags.StringVar(&f.image, "image", "", "what they are made from")
	flags.IntVar(&f.cores, "cores", 0, "processor cores of each")
	flags.IntVar(&f.memory, "memory", 0, "memory of each in MiB")
	flags.IntVar(&f.disk, "disk", 0, "disk of each in GiB")
	flags.StringArrayVar(&f.labels, "label", nil, "label of each: NAME=VALUE; may be repeated")
	addFormat(a, cmd)
}

// common is what the flags say of each machine.
func (f *planFlags) common() (m wire.PlannedMachine, err error) {
	for _, text := range []struct {
		value string
		to    **string
	}{{f.pool, &m.Pool}, {f.image, &m.Image}} {
		if text.value != "" {
			*text.to = &text.value
		}
	}
	for _, size := range []struct {
		flag  string
		value int
		to    **int
	}{{"cores", f.cores, &m.Cores}, {"memory", f.memory, &m.MemoryMiB}, {"disk", f.disk, &m.DiskGiB}} {
		if size.value < 0 {
			return m, wrongUsage("--%s %d: a whole number above 0 is wanted", size.flag, size.value)
		} else if size.value > 0 {
			*size.to = &size.value
		}
	}
	if len(f.labels) > 0 {
		if m.Labels, err = planned.Labels(f.labels); err != nil {
			return m, wrongUsage("--label: %v", err)
		}
	}
	return m, nil
}

// plan draws the machines up, and says what to do next.
func (f *planFlags) plan(ctx context.Context, a *app, s *client.Client, cmd *cobra.Command, machines []wire.PlannedMachine) error {
	var err error
	if f.request.vars, err = readVariables(a, f.vars); err != nil {
		return err
	}
	cluster, err := f.request.find(ctx, s)
	if err != nil {
		return err
	}
	asked := provision.Snapshot{TemplateSource: f.request.source(), TerraformVars: f.request.vars, Workspace: f.request.workspace}
	if asked.Workspace, err = asked.WorkspaceName(); err != nil {
		return wrongUsage("--workspace is missing: it names the state that the machines will belong to, such as acme/lab")
	}
	snapshot, err := json.Marshal(asked)
	if err != nil {
		return fmt.Errorf("encode the plan: %w", err)
	}
	ids, err := s.PlanMachines(ctx, wire.PlanMachinesBody{Cluster: cluster.ID.String(), Snapshot: snapshot, Machines: machines})
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(wire.PlannedAnswer{IDs: ids})
	}
	count := fmt.Sprintf("%d machines are", len(ids))
	if len(ids) == 1 {
		count = "1 machine is"
	}
	return a.print("%s planned in workspace %s.\n\nProvision:  %s", count, asked.Workspace, a.hint(cmd, "machines provision --workspace "+asked.Workspace))
}

func machinesPlanCommand(a *app) *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan NAME… {--template NAME | --repo URL --version TAG [--path DIR]} --workspace NAME",
		Short: "Plan machines, to provision them later",
		Long: `Plans machines. They are listed as planned, and nothing is done about them until
"trellis machines provision". One that is planned already is replaced. Give no secret as
a variable: everyone in the organisation can read a plan.`,
		Example: `  trellis machines plan ada grace --template script-vm --workspace demo/lab \
      --cores 2 --memory 2048`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return wrongUsage("a machine's name is missing")
			}
			return nil
		},
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			common, err := f.common()
			if err != nil {
				return err
			}
			machines := make([]wire.PlannedMachine, len(args))
			for i, name := range args {
				machines[i] = common
				machines[i].Name = name
			}
			return f.plan(ctx, a, s, cmd, machines)
		}),
	}
	f.addFlags(a, cmd)
	return cmd
}

func machinesImportCommand(a *app) *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "import FILE {--template NAME | --repo URL --version TAG [--path DIR]} --workspace NAME",
		Short: "Plan machines from a CSV file",
		Long: `Plans the machines that a file lists, as "trellis machines plan" does: one name on each
line, or CSV with a header. The columns are name, pool, image, cores, memory_mib, disk_gib
and labels (NAME=VALUE, with spaces between). All but name may be missing. The flags count
for machines that don't say otherwise. "-" reads standard input. All are planned or none.`,
		Example: `  trellis machines import lab.csv --template script-vm --workspace demo/lab`,
		Args:    one("a CSV file"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			common, err := f.common()
			if err != nil {
				return err
			}
			text, err := readFile(a, args[0], "the machines", planned.MaxRead)
			if err != nil {
				return err
			}
			machines, err := planned.Read(string(text), common)
			if err != nil {
				return wrongUsage("%s: %v", args[0], err)
			}
			return f.plan(ctx, a, s, cmd, machines)
		}),
	}
	f.addFlags(a, cmd)
	return cmd
}

func machinesProvisionCommand(a *app) *cobra.Command {
	var asked wire.ProvisionMachinesBody
	var approval string
	var follow bool
	cmd := &cobra.Command{
		Use:   "provision [MACHINE…] --workspace NAME",
		Short: "Deploy machines that are planned",
		Long: `Queues a run that makes these planned machines, or all that are planned in the workspace.
It has the variables of the workspace's newest deploy, so the machines that are there stay.
It is refused while a run of the workspace has not ended.
The template's variables are filled in by their names: machines (a map of objects), else
names, else name; and image, cores, memory, disk, pool and labels.`,
		Example: `  trellis machines provision --workspace demo/lab --follow
  trellis machines provision ada --workspace demo/lab --approval always`,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			switch {
			case asked.Workspace == "":
				return wrongUsage("--workspace is missing: the one that the machines are planned in")
			case followOrJSON(a, follow) != nil:
				return followOrJSON(a, follow)
			}
			asked.Machines, asked.Approval = args, provision.Approval(approval)
			queued, err := s.ProvisionMachines(ctx, asked)
			if err != nil {
				return err
			}
			return tellQueued(ctx, a, s, cmd, queued, follow)
		}),
	}
	cmd.Flags().StringVar(&asked.Workspace, "workspace", "", "the workspace that they are planned in")
	cmd.Flags().StringVar(&approval, "approval", "", "have a person approve the plan: never, destructive or always; never less than the cluster wants")
	addFollow(a, cmd, &follow)
	return cmd
}

func machinesDeleteCommand(a *app) *cobra.Command {
	var workspace string
	cmd := &cobra.Command{
		Use:     "delete MACHINE",
		Short:   "Delete a machine that is planned",
		Long:    "Deletes a machine that is planned. One that is there is destroyed instead: \"trellis machines destroy\".",
		Example: "  trellis machines delete ada",
		Args:    one("a machine's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			m, err := s.FindMachine(ctx, args[0], workspace)
			if err == nil {
				err = s.DeletePlannedMachine(ctx, m.ID)
			}
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(m)
			}
			return a.print("Machine %s is no longer planned.", m.Name)
		}),
	}
	addInWorkspace(cmd, &workspace)
	addFormat(a, cmd)
	return cmd
}

// watchEvery is how often a list is read that is watched.
const watchEvery = 2 * time.Second

// watch shows a list, and again when it has changed, until the context ends.
func watch[T any](ctx context.Context, a *app, read func(context.Context) (T, error), show func(T) error) error {
	var shown *T
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		now, err := read(ctx)
		switch {
		case ctx.Err() != nil:
			return nil // the person has seen enough
		case err != nil:
			return err
		case shown == nil || !reflect.DeepEqual(now, *shown):
			if a.out.tty && !a.json() {
				fmt.Fprint(a.out, "\x1b[H\x1b[2J") //nolint:errcheck // show says
			} else if shown != nil && !a.json() {
				fmt.Fprintln(a.out) //nolint:errcheck // show says
			}
			if err := show(now); err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
			shown = &now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
