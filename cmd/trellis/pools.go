package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

func poolsCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pools",
		Short: "List pools, where machines are made, and set their quotas",
		Long: `Lists the pools that agents can reach, as they were last reported: how much of them is in
use, which images they have, and which machines have a place there. Pools are configured
at the agents ("[[pools]]" in their configuration).`,
		Args: verb,
	}
	cmd.AddCommand(poolsListCommand(a), poolsShowCommand(a), poolsPreviewCommand(a), poolsFreeCommand(a), poolsEnrollCommand(a), poolsQuotaCommand(a), poolsSetImageCommand(a), poolsDeleteImageCommand(a), poolsSetTemplateCommand(a), poolsDeleteTemplateCommand(a))
	return cmd
}

func poolsListCommand(a *app) *cobra.Command {
	var cluster string
	var follow bool
	cmd := formatted(a, &cobra.Command{
		Use:     "list",
		Short:   "List pools and how much of each is in use",
		Example: `  trellis pools list`,
		Args:    none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			read := func(ctx context.Context) ([]wire.Pool, error) { return s.Pools(ctx, cluster) }
			show := func(list []wire.Pool) error {
				return listing(&a.printer, list, nil, "No agent has reported a pool yet.", "POOL\tCLUSTER\tKIND\tSTATE\tNODES\tCPU\tMEMORY\tMACHINES\tSEEN", func(p wire.Pool) []any {
					return []any{p.Name, p.Cluster, p.Kind, p.State, fmt.Sprintf("%d/%d", p.Online, p.Nodes), share(p.CoresUsed+p.CoresNew, p.Cores), share(p.MemoryUsed+p.MemoryNew, p.MemoryMiB), p.Machines, ago(time.Since(p.ReportedAt)) + " ago"}
				})
			}
			if follow {
				return watch(ctx, a, read, show)
			}
			list, err := read(ctx)
			if err != nil {
				return err
			}
			return show(list)
		}),
	})
	addOnCluster(cmd, &cluster)
	cmd.Flags().BoolVar(&follow, "watch", false, "show the list again whenever it has changed, until Ctrl-C")
	return cmd
}

// addOnCluster adds the flag of verbs that name one pool, or list them.
func addOnCluster(cmd *cobra.Command, cluster *string) {
	cmd.Flags().StringVar(cluster, "cluster", "", "only pools of this cluster, by its name or id")
}

// share is how much of something is in use, in words.
func share(used float64, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", math.Min(100, 100*used/float64(of)))
}

func poolsShowCommand(a *app) *cobra.Command {
	var cluster string
	cmd := formatted(a, &cobra.Command{
		Use:     "show POOL",
		Short:   "Show a pool's nodes, images and machines",
		Example: `  trellis pools show lab`,
		Args:    one("a pool's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			p, err := s.FindPool(ctx, args[0], cluster)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(p)
			}
			return printPool(a, p)
		}),
	})
	addOnCluster(cmd, &cluster)
	return cmd
}

func printPool(a *app, p wire.PoolDetail) error {
	names := make([]string, len(p.ImageNames))
	for i, n := range p.ImageNames {
		names[i] = n.Image + "=" + n.Name
	}
	var rows [][]string
	for _, row := range [][]string{
		{"pool", p.Name}, {"cluster", p.Cluster}, {"kind", p.Kind}, {"state", p.State}, {"problem", deref(p.Problem)},
		{"seen", strings.TrimSpace(ago(time.Since(p.ReportedAt)) + " ago by " + cmp.Or(p.Agent, "an agent that is deleted"))},
		{"images", strings.Join(p.Images, " ")}, {"image names", strings.Join(names, " ")}, {"id", p.ID.String()},
	} {
		if row[1] != "" {
			rows = append(rows, row)
		}
	}
	if err := a.pairs(rows...); err != nil {
		return err
	}
	if err := a.print(""); err != nil {
		return err
	}
	err := listing(&a.printer, p.NodeList, nil, "No node was reported.", "NODE\tONLINE\tCPU\tMEMORY\tNEW\tSTORAGE FREE\tLABELS\tMACHINES\tHEALTH\tSERVER", func(n wire.PoolNode) []any {
		var labels, free []string
		for _, name := range slices.Sorted(maps.Keys(n.Labels)) {
			labels = append(labels, name+"="+n.Labels[name])
		}
		for _, storage := range n.Storages {
			free = append(free, fmt.Sprintf("%s %.0f GiB", storage.Name, storage.FreeGiB))
		}
		fresh := ""
		if n.CoresNew > 0 || n.MemoryNew > 0 {
			fresh = fmt.Sprintf("+%.0f cores, +%.0f MiB", n.CoresNew, n.MemoryNew)
		}
		return []any{
			n.Name, map[bool]string{true: "yes", false: "no"}[n.Online], fmt.Sprintf("%.1f of %d cores", n.CoresUsed, n.Cores), fmt.Sprintf("%.0f of %d MiB", n.MemoryUsed, n.MemoryMiB), fresh,
			strings.Join(free, ", "), strings.Join(labels, " "), n.Machines, serverHealth(n.Server), serverText(n.Server),
		}
	})
	if err != nil || len(p.Reservations) == 0 {
		return err
	}
	if err := a.print(""); err != nil {
		return err
	}
	return listing(&a.printer, p.Reservations, nil, "", "MACHINE\tWORKSPACE\tNODE\tADDRESS\tWHY THERE", func(r wire.Reservation) []any {
		return []any{r.Name, r.Workspace, r.Node, deref(r.Address), r.Why}
	})
}

// serverHealth is how a bare-metal server is; "" of none.
func serverHealth(s *wire.Server) string {
	if s == nil {
		return ""
	}
	return string(s.Health)
}

// serverText is what is to be said of a bare-metal server; "" of none.
func serverText(s *wire.Server) string {
	if s == nil {
		return ""
	}
	text := s.ProvisionState + ": " + s.Reason
	if s.Health != provision.ServerOK && !strings.Contains(text, s.HealthWhy) {
		text = strings.TrimSuffix(text, ".") + ". Health " + string(s.Health) + ": " + s.HealthWhy
	}
	if s.LastError != "" && !strings.Contains(text, strings.TrimSuffix(s.LastError, ".")) {
		text += ". Last error: " + s.LastError
	}
	return text
}

func poolsPreviewCommand(a *app) *cobra.Command {
	r := deployRequest{by: "trellis pools preview"}
	var vars variableFlags
	var sealed sealedFlags
	cmd := formatted(a, &cobra.Command{
		Use:   "preview {--template NAME | --repo URL --version TAG [--path DIR]} --workspace NAME",
		Short: "Show where the machines of a deploy would go",
		Long: `Shows where the machines of "trellis deploy" with the same words would go, and why, or what
would refuse them. Nothing is reserved: a deploy later may find another place better.`,
		Example: `  trellis pools preview --template class --workspace class/2026 \
      --var class=net --var pool=lab --var image=debian-13`,
		Args: none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) (err error) {
			if r.vars, err = readVariables(a, vars); err != nil {
				return err
			}
			if r.sealed, err = sealed.read(); err != nil {
				return err
			}
			cluster, err := r.find(ctx, s)
			if err != nil {
				return err
			}
			snapshot, err := r.snapshot()
			if err != nil {
				return err
			}
			p, err := s.PreviewPlacement(ctx, cluster.ID, snapshot)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(p)
			}
			if err := a.print("%s", p.Text); err != nil || len(p.Machines) == 0 {
				return err
			}
			if err := a.print(""); err != nil {
				return err
			}
			return listing(&a.printer, p.Machines, nil, "", "MACHINE\tPOOL\tNODE\tWHY THERE", func(m wire.PlacedMachine) []any {
				if m.Exists {
					m.Why = "it exists and stays"
				}
				return []any{m.Name, m.Pool, m.Node, m.Why}
			})
		}),
	})
	r.addSource(cmd)
	vars.addFlags(cmd)
	sealed.addFlags(cmd)
	cmd.Flags().StringArrayVar(&r.targets, "target", nil, "resource address to which this is confined (repeatable)")
	return cmd
}

func poolsFreeCommand(a *app) *cobra.Command {
	var workspace string
	cmd := formatted(a, &cobra.Command{
		Use:   "free MACHINE --workspace NAME",
		Short: "Free the place of a machine that is gone or was never made",
		Long: `Frees the place that is reserved for a machine, for example after a run that failed. It is
refused while the machine is there, or a run may still make it. Runs that wait for room are
tried again. It is for admins.`,
		Example: `  trellis pools free net-ann --workspace class/2026`,
		Args:    one("the machine's name"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			if workspace == "" {
				return wrongUsage("--workspace is missing: a machine's name is unique in its workspace")
			}
			return a.answer(s.FreePlace(ctx, workspace, args[0]), map[string]any{"machine": args[0], "workspace": workspace, "freed": true}, "The place of %s in %s is free.", args[0], workspace)
		}),
	})
	cmd.Flags().StringVar(&workspace, "workspace", "", "the workspace of the machine, by its name or id")
	return cmd
}

func poolsQuotaCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "List, set and delete quotas of pools",
		Long: `Quotas say how many machines, cores and how much memory workspaces may have in pools. A
run that would exceed one is refused before anything is made.`,
		Args: verb,
	}
	cmd.AddCommand(formatted(a, &cobra.Command{
		Use:     "list",
		Short:   "List quotas and what is used of them",
		Example: `  trellis pools quota list`,
		Args:    none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			quotas, err := s.PoolQuotas(ctx)
			return listing(&a.printer, quotas, err, "There is no quota: an admin sets one with trellis pools quota set.", "WORKSPACES\tPOOL\tMACHINES\tCORES\tMEMORY\tMOST BY\tID", func(q wire.PoolQuota) []any {
				var top []string
				for _, use := range q.Top {
					top = append(top, fmt.Sprintf("%s (%d)", use.Workspace, use.Machines))
				}
				return []any{q.Workspaces, cmp.Or(deref(q.Pool), "all"), ofQuota(q.MachinesUsed, q.Machines, ""), ofQuota(q.CoresUsed, q.Cores, ""), ofQuota(q.MemoryUsed, q.MemoryMiB, " MiB"), strings.Join(top, ", "), q.ID}
			})
		}),
	}), poolsQuotaSetCommand(a), formatted(a, &cobra.Command{
		Use:     "delete QUOTA",
		Short:   "Delete a quota",
		Example: `  trellis pools quota delete 6ba7b810-9dad-11d1-80b4-00c04fd430c8`,
		Args:    one("a quota's id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			id, err := uuid.Parse(args[0])
			if err != nil {
				return wrongUsage("%q is no quota's id: trellis pools quota list", args[0])
			}
			return a.answer(s.DeletePoolQuota(ctx, id), map[string]any{"id": id, "deleted": true}, "The quota %s is deleted.", id)
		}),
	}))
	listAlone(cmd)
	return cmd
}

// ofQuota is what is used of a part of a quota, in words; "" where any amount is allowed.
func ofQuota(used int64, most *int, unit string) string {
	if most == nil {
		return ""
	}
	return fmt.Sprintf("%d of %d%s", used, *most, unit)
}

func poolsQuotaSetCommand(a *app) *cobra.Command {
	var asked wire.PoolQuotaBody
	var machines, cores, memory int
	cmd := formatted(a, &cobra.Command{
		Use:   "set {--machines N | --cores N | --memory MIB}",
		Short: "Set how much workspaces may have in pools",
		Long: `Sets how much workspaces may have in pools. It replaces the quota of the same workspaces
and pool. Machines that are there stay, though they be more. It is for admins.`,
		Example: `  trellis pools quota set --workspaces 'class/*' --pool lab --machines 40
  trellis pools quota set --cores 200 --memory 524288`,
		Args: none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, _ []string) error {
			for _, part := range []struct {
				flag  string
				value *int
				to    **int
			}{{"machines", &machines, &asked.Machines}, {"cores", &cores, &asked.Cores}, {"memory", &memory, &asked.MemoryMiB}} {
				if !cmd.Flags().Changed(part.flag) {
					continue
				}
				if *part.value < 0 {
					return wrongUsage("--%s %d: a whole number from 0 is wanted", part.flag, *part.value)
				}
				*part.to = part.value
			}
			if asked.Machines == nil && asked.Cores == nil && asked.MemoryMiB == nil {
				return wrongUsage("give --machines, --cores or --memory")
			}
			id, err := s.SetPoolQuota(ctx, asked)
			return a.answer(err, wire.PoolQuotaAnswer{ID: id}, "The quota is set (id %s).", id)
		}),
	})
	flags := cmd.Flags()
	flags.StringVar(&asked.Workspaces, "workspaces", "", "the workspaces that share it, such as 'class/*'; default: all")
	flags.StringVar(&asked.Pool, "pool", "", "the pool, by its name or id; default: all together")
	flags.StringVar(&asked.Cluster, "cluster", "", "the cluster of that pool, where several have one of that name")
	flags.IntVar(&machines, "machines", 0, "the most machines")
	flags.IntVar(&cores, "cores", 0, "the most processor cores of all of them")
	flags.IntVar(&memory, "memory", 0, "the most memory of all of them in MiB")
	return cmd
}

func poolsSetImageCommand(a *app) *cobra.Command {
	var cluster string
	cmd := formatted(a, &cobra.Command{
		Use:   "set-image POOL IMAGE NAME",
		Short: "Set what an image that templates name is called in a pool",
		Long: `Templates name images, and pools may call them otherwise. Machines are placed on nodes that
have the image of the pool's own name, and made from it. "trellis pools show" lists the
names. It is for admins.`,
		Example: `  trellis pools set-image lab debian-13 template-9013`,
		Args:    each("a pool", "the image's name in templates", "its name in the pool"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			asked := wire.PoolImageBody{Image: args[1], Name: args[2]}
			return a.answer(s.SetPoolImage(ctx, args[0], cluster, asked), asked, "%s is %s in pool %s.", args[1], args[2], args[0])
		}),
	})
	addOnCluster(cmd, &cluster)
	return cmd
}

func poolsDeleteImageCommand(a *app) *cobra.Command {
	var cluster string
	cmd := formatted(a, &cobra.Command{
		Use:     "delete-image POOL IMAGE",
		Short:   "Delete what an image is called in a pool",
		Long:    `Deletes what an image is called in a pool. It has the same name there as in templates then. It is for admins.`,
		Example: `  trellis pools delete-image lab debian-13`,
		Args:    each("a pool", "the image's name in templates"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			return a.answer(s.DeletePoolImage(ctx, args[0], cluster, args[1]), map[string]any{"image": args[1], "deleted": true}, "%s has the same name in pool %s as in templates.", args[1], args[0])
		}),
	})
	addOnCluster(cmd, &cluster)
	return cmd
}

func poolsSetTemplateCommand(a *app) *cobra.Command {
	var cluster string
	cmd := formatted(a, &cobra.Command{
		Use:   "set-template POOL TEMPLATE",
		Short: "Set with which template servers of a pool are provisioned",
		Long: `POST /api/v1/provision, and the tool provision_server, provision a bare-metal server by a
template of the catalogue, such as examples/templates/bare-metal. It is for admins.`,
		Example: `  trellis pools set-template metal bare-metal`,
		Args:    each("a pool", "a template of the catalogue"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			return a.answer(s.SetPoolTemplate(ctx, args[0], cluster, args[1]), map[string]string{"pool": args[0], "template": args[1]}, "Servers of pool %s are provisioned with template %s.", args[0], args[1])
		}),
	})
	addOnCluster(cmd, &cluster)
	return cmd
}

func poolsDeleteTemplateCommand(a *app) *cobra.Command {
	var cluster string
	cmd := formatted(a, &cobra.Command{
		Use:     "delete-template POOL",
		Short:   "Have no servers of a pool provisioned by the API",
		Long:    `Takes back what set-template has set. Servers that are provisioned stay. It is for admins.`,
		Example: `  trellis pools delete-template metal`,
		Args:    one("a pool"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			return a.answer(s.SetPoolTemplate(ctx, args[0], cluster, ""), map[string]string{"pool": args[0]}, "Servers of pool %s are not provisioned by the API any more.", args[0])
		}),
	})
	addOnCluster(cmd, &cluster)
	return cmd
}
