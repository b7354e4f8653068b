package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/personkey"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

func machinesCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "machines",
		Short: "List machines, sign in to them, plan, start or destroy some",
		Long: `Lists the machines that runs have made, as they were last reported, and those that are
planned. A template with machines of its own reports them; a Terraform template does in an
output called machines.`,
		Args: verb,
	}
	cmd.AddCommand(machinesListCommand(a), machinesShowCommand(a), machinesSSHCommand(a), machinesRevealCommand(a),
		machinesPlanCommand(a), machinesImportCommand(a), machinesProvisionCommand(a), machinesDeleteCommand(a))
	for _, act := range machineActs {
		cmd.AddCommand(machineActCommand(a, act.do, act.short, act.more))
	}
	return cmd
}

func machinesListCommand(a *app) *cobra.Command {
	var f client.MachineFilter
	var follow bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List machines, also as an Ansible inventory or an ssh_config",
		Long: `Lists machines by name. Those that are gone are left out, but for --status gone.

-o ansible prints what Ansible wants of an inventory script, with groups by workspace, pool,
status and label. Give Ansible an executable file with these two lines:

  #!/bin/sh
  exec trellis machines list -o ansible

-o ansible-file prints the same as a file that Ansible reads as it is: inventory.json.

-o ssh-config prints Host entries; include them at the end of ~/.ssh/config, so that none
comes before your own. Both leave out machines without an IP address, and names that are no
host's.`,
		Example: `  trellis machines list
  trellis machines list --workspace demo/machines --label class=a
  trellis machines list -o ssh-config > ~/.ssh/tendril.conf`,
		Args: none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			for _, label := range f.Labels {
				if !strings.Contains(label, "=") || strings.Contains(label, ",") {
					return wrongUsage("--label %s: a label is NAME=VALUE, without a comma", label)
				}
			}
			read := func(ctx context.Context) ([]wire.Machine, error) { return s.Machines(ctx, f) }
			if follow {
				return watch(ctx, a, read, func(list []wire.Machine) error { return printMachines(a, list) })
			}
			list, err := read(ctx)
			if err != nil {
				return err
			}
			return printMachines(a, list)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Workspace, "workspace", "", "only those of this workspace, by its name or id")
	flags.StringVar(&f.Status, "status", "", "only those that are planned, reserved, creating, running, stopped, failed, unknown or gone")
	flags.StringVar(&f.Pool, "pool", "", "only those of this pool")
	flags.StringVar(&f.Health, "health", "", "only those that are healthy, unhealthy or unknown")
	flags.StringArrayVar(&f.Labels, "label", nil, "only those with this label: NAME=VALUE; may be repeated")
	flags.StringVar(&f.Words, "search", "", "only those with this in the name, an IP address or the id in their cloud")
	flags.BoolVar(&follow, "watch", false, "show the list again whenever it has changed, until Ctrl-C")
	addFormat(a, cmd, "ansible", "ansible-file", "ssh-config")
	return cmd
}

// printMachines prints a list in the format that was asked for.
func printMachines(a *app, list []wire.Machine) error {
	if len(list) >= client.MostItems {
		a.say("These are the first %d machines. Narrow the list, for example with --workspace.", len(list))
	}
	there := slices.DeleteFunc(slices.Clone(list), func(m wire.Machine) bool { return m.Status == wire.Planned || m.Status == wire.Reserved })
	switch a.format {
	case "ansible":
		document, left := inventory(there)
		a.sayLeftOut(left)
		return a.printJSON(document)
	case "ansible-file":
		document, left := inventory(there)
		a.sayLeftOut(left)
		return a.printJSON(inventoryFile(document))
	case "ssh-config":
		text, left := sshConfig(there)
		a.sayLeftOut(left)
		_, err := io.WriteString(a.out, text)
		return err
	}
	return listing(&a.printer, list, nil, "No machines match.", "MACHINE\tWORKSPACE\tSTATUS\tHEALTH\tADDRESS\tSIZE\tNODE\tAGE", func(m wire.Machine) []any {
		return []any{m.Name, m.Workspace, m.Status, deref(m.Health), strings.Join(m.IPAddresses, " "), m.Size(), deref(m.Node), ago(time.Since(m.CreatedAt))}
	})
}

func machinesShowCommand(a *app) *cobra.Command {
	var workspace string
	cmd := formatted(a, &cobra.Command{
		Use:     "show MACHINE",
		Short:   "Show one machine, and what it has been",
		Example: `  trellis machines show ada`,
		Args:    one("a machine's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			m, err := s.FindMachine(ctx, args[0], workspace)
			if err != nil {
				return err
			}
			history, err := s.MachineHistory(ctx, m.ID)
			if err != nil {
				return err
			}
			server, err := serverOf(ctx, s, m)
			switch {
			case err != nil:
				return err
			case a.json():
				return a.printJSON(struct {
					wire.Machine
					History []wire.MachineEvent `json:"history"`
					Server  *wire.Server        `json:"server,omitempty"`
				}{m, history, server})
			}
			return printMachine(a, m, server, history)
		}),
	})
	addInWorkspace(cmd, &workspace)
	return cmd
}

// addInWorkspace adds the flag of verbs that name one machine.
func addInWorkspace(cmd *cobra.Command, workspace *string) {
	cmd.Flags().StringVar(workspace, "workspace", "", "the workspace that the machine is of, where several have one of that name")
}

// serverOf is the bare-metal server that a machine is on, or is itself, as the pool's last report has
// it; nil: none.
func serverOf(ctx context.Context, s *client.Client, m wire.Machine) (*wire.Server, error) {
	known := uuid.Validate(deref(m.ExternalID)) == nil
	if m.Pool == nil || !known {
		return nil, nil // no server is known by anything else
	}
	p, err := s.FindPool(ctx, *m.Pool, m.Cluster)
	if refused, is := errors.AsType[*problem.RefusedError](err); is && refused.Code == "PT404" {
		return nil, nil // it is no longer reported
	}
	if err != nil {
		return nil, err
	}
	for _, n := range p.NodeList {
		if n.Server != nil && n.Server.ID == *m.ExternalID {
			return n.Server, nil
		}
	}
	return nil, nil
}

func printMachine(a *app, m wire.Machine, server *wire.Server, history []wire.MachineEvent) error {
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		labels = append(labels, name+"="+m.Labels[name])
	}
	run := ""
	if m.Number != nil {
		run = fmt.Sprint(*m.Number)
	}
	command := ""
	if to, err := m.SSH(); err == nil {
		command = to.Command()
	}
	var plan provision.Snapshot
	if len(m.Plan) > 0 {
		if err := json.Unmarshal(m.Plan, &plan); err != nil {
			return fmt.Errorf("read the plan of machine %s: %w", m.Name, err)
		}
	}
	var rows [][]string
	for _, row := range [][]string{
		{"machine", m.Name}, {"status", m.Status}, {"health", strings.TrimSuffix(deref(m.Health)+": "+deref(m.HealthWhy), ": ")}, {"server", serverText(server)}, {"workspace", m.Workspace}, {"cluster", m.Cluster}, {"addresses", strings.Join(m.IPAddresses, " ")},
		{"ssh", command}, {"id in its cloud", deref(m.ExternalID)}, {"pool", deref(m.Pool)}, {"node", deref(m.Node)}, {"image", deref(m.Image)}, {"size", m.Size()}, {"template", strings.TrimSpace(plan.TemplateSource.Repo + " " + plan.TemplateSource.Path + " " + plan.TemplateSource.Version)},
		{"labels", strings.Join(labels, " ")}, {"owner", m.OwnerName}, {"changed by run", run}, {"id", m.ID.String()},
	} {
		if row[1] != "" {
			rows = append(rows, row)
		}
	}
	rows = append(rows, []string{""})
	for _, e := range history {
		by := ""
		if e.Number != nil {
			by = fmt.Sprintf("run %d", *e.Number)
		}
		became := e.Status
		if e.Health != nil {
			became, by = *e.Health, deref(e.Why)
		}
		rows = append(rows, []string{at(&e.At), became, by})
	}
	return a.pairs(rows...)
}

func machinesSSHCommand(a *app) *cobra.Command {
	var workspace string
	cmd := &cobra.Command{
		Use:   "ssh MACHINE [-- COMMAND…]",
		Short: "Sign in to a machine with ssh",
		Long: `Runs ssh with the address, the port and the user that are recorded of the machine. What is
behind -- is given to ssh: a command, or options. Your own ~/.ssh/config and keys count; Tendril gives ssh none.`,
		Example: `  trellis machines ssh ada
  trellis machines ssh ada -- uptime`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return wrongUsage("a machine's name or id is missing")
			}
			return nil
		},
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			m, err := s.FindMachine(ctx, args[0], workspace)
			if err != nil {
				return err
			}
			to, err := m.SSH()
			if err != nil {
				return err
			}
			program, err := exec.LookPath("ssh")
			if err != nil {
				return fmt.Errorf("sign in to %s: there is no program ssh on PATH. Install it (apt-get install openssh-client), or connect to %s by other means", m.Name, to.Address)
			}
			// In place of this program: the terminal, its signals and the exit code are ssh's.
			err = syscall.Exec(program, slices.Concat([]string{"ssh"}, to.Args(), args[1:]), os.Environ())
			return fmt.Errorf("start %s: %w", program, err)
		}),
	}
	addInWorkspace(cmd, &workspace)
	return cmd
}

// hostName is a name that an ssh_config and an inventory can have as it is.
var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// canBeHost says whether a machine can have that name there. What means this machine, or
// all of them, a template can't take.
func canBeHost(name string) bool {
	return hostName.MatchString(name) && !slices.Contains([]string{"localhost", "all", "ungrouped", "ip6-localhost"}, strings.ToLower(name))
}

// sayLeftOut names the machines that a file can't have.
func (a *app) sayLeftOut(left []wire.Machine) {
	for _, m := range left {
		a.say("Left out, because its name, its user or its address can't stand there: %s", printable.Text(m.Name))
	}
}

// sshConfig has an entry for each machine that can have one, and says which can't.
func sshConfig(list []wire.Machine) (text string, left []wire.Machine) {
	var b strings.Builder
	for name, m := range hostNames(list) {
		to, err := m.SSH()
		if err != nil || !canBeHost(name) {
			left = append(left, m)
			continue
		}
		fmt.Fprintf(&b, "Host %s\n  HostName %s\n  Port %d\n", name, to.Address, to.Port)
		if to.User != "" {
			fmt.Fprintf(&b, "  User %s\n", to.User)
		}
	}
	return b.String(), left
}

// hostNames iterates machines with a name that no other has here: their own, behind it the
// workspace's where several have that, and the beginning of their id where that is not enough.
func hostNames(list []wire.Machine) func(yield func(string, wire.Machine) bool) {
	count := map[string]int{}
	for _, m := range list {
		count[m.Name]++
	}
	return func(yield func(string, wire.Machine) bool) {
		taken := map[string]bool{}
		for _, m := range list {
			name := m.Name
			if count[name] > 1 {
				name += "." + strings.ReplaceAll(m.Workspace, "/", ".")
			}
			if taken[name] {
				name += "." + m.ID.String()[:8]
			}
			taken[name] = true
			if !yield(name, m) {
				return
			}
		}
	}
}

// group is one of an Ansible inventory.
type group struct {
	Hosts []string `json:"hosts"`
}

// inventory is an Ansible inventory as an inventory script prints it.
// https://docs.ansible.com/ansible/latest/dev_guide/developing_inventory.html
//
// Ansible computes expressions in texts, such as {{ lookup('pipe', 'id') }}, and labels are a
// template's words: those with unusual characters are left out, as such names are.
func inventory(list []wire.Machine) (document map[string]any, left []wire.Machine) {
	all, vars, groups := []string{}, map[string]map[string]any{}, map[string]*group{}
	for name, m := range hostNames(list) {
		to, err := m.SSH()
		if err != nil || !canBeHost(name) {
			left = append(left, m)
			continue
		}
		labels := maps.Clone(m.Labels)
		maps.DeleteFunc(labels, func(label, value string) bool { return !plainLabel.MatchString(label + value) })
		host := map[string]any{
			"ansible_host": to.Address, "ansible_port": to.Port, "tendril_machine": m.ID, "tendril_workspace": m.Workspace, "tendril_status": m.Status, "tendril_labels": labels,
		}
		if to.User != "" {
			host["ansible_user"] = to.User
		}
		all, vars[name] = append(all, name), host
		in := []string{"workspace_" + m.Workspace, "status_" + m.Status}
		if m.Pool != nil {
			in = append(in, "pool_"+*m.Pool)
		}
		for label, value := range labels {
			in = append(in, "label_"+label+"_"+value)
		}
		for _, title := range in {
			title = groupName(title)
			groups[title] = cmp.Or(groups[title], &group{})
			if hosts := groups[title].Hosts; len(hosts) == 0 || hosts[len(hosts)-1] != name { // two titles may become one
				groups[title].Hosts = append(hosts, name)
			}
		}
	}
	document = map[string]any{"_meta": map[string]any{"hostvars": vars}, "all": group{all}}
	for title, g := range groups {
		document[title] = g
	}
	return document, left
}

// inventoryFile is an inventory as a file has it, in YAML or JSON: what a script prints in
// _meta stands with each host there.
// https://docs.ansible.com/ansible/latest/collections/ansible/builtin/yaml_inventory.html
func inventoryFile(document map[string]any) map[string]any {
	children := map[string]any{}
	for title, hosts := range document {
		g, is := hosts.(*group)
		if !is { // all, and what all of them are
			continue
		}
		members := map[string]any{}
		for _, name := range g.Hosts {
			members[name] = map[string]any{}
		}
		children[title] = map[string]any{"hosts": members}
	}
	return map[string]any{"all": map[string]any{"hosts": document["_meta"].(map[string]any)["hostvars"], "children": children}} //nolint:forcetypeassert // made by inventory
}

// plainLabel is a label that is no expression of Ansible's.
var plainLabel = regexp.MustCompile(`^[A-Za-z0-9 ._:/@+=-]*$`)

// groupName is a text as the name of a group in Ansible: letters, digits and underscores.
func groupName(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, text)
}

// machineActs are the verbs that queue a run for one machine.
var machineActs = []struct {
	do          wire.Act
	short, more string
}{
	{wire.ActStart, "Start a machine", ""},
	{wire.ActStop, "Stop a machine", ""},
	{wire.ActRestart, "Restart a machine", ""},
	{wire.ActRescue, "Boot a bare-metal machine from a rescue system", `Its disks stay as they are. In the rescue system the user "rescue" signs in with a password that
is made for it: "trellis machines reveal" shows that as rescue_password, to admins whom the
agent's policy.requester_keys names. A machine in rescue gets a new one.`},
	{wire.ActUnrescue, "Boot a machine in rescue from its own disks again", ""},
	{wire.ActRefresh, "Ask a machine's cloud how the machine is", "What has changed outside is in the run's log, and nothing is done about it."},
	{wire.ActRebuild, "Make a machine again from its image", "What is on its disk is lost. A person must approve the plan first. With --yes that is so only\nwhere the cluster wants it."},
	{wire.ActDestroy, "Destroy one machine", `The plan has what depends on the machine as well. The next deploy makes it again, unless
the variables no longer ask for it. A person must approve the plan first. With --yes that is
so only where the cluster wants it.`},
}

// machineActCommand is the verb of one of them.
func machineActCommand(a *app, do wire.Act, short, more string) *cobra.Command {
	var workspace string
	var sealed sealedFlags
	var follow, yes, all bool
	verb := string(do)
	use, example := verb+" MACHINE", "  trellis machines "+verb+" ada --follow"
	if offersAll(do) {
		use = verb + " {MACHINE | --all --workspace NAME}"
		example += "\n  trellis machines " + verb + " --all --workspace class/2026"
	}
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Long: strings.TrimSpace(`Queues a run to ` + verb + ` this machine alone, with the template and the variables of the newest
deploy in its workspace. The template's provisioner must be able to. ` + more),
		Example: example,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case all && (len(args) > 0 || workspace == ""):
				return wrongUsage("--all is for all machines of a workspace: name it with --workspace, and no machine")
			case all:
				return nil
			}
			return one("a machine's name or id")(cmd, args)
		},
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			again, err := sealed.readToQueue(a, follow)
			if err != nil {
				return err
			}
			which, operation := workspace, provision.OperationPower
			var change func(*provision.Snapshot)
			if all {
				change, err = allOf(ctx, s, workspace, do)
			} else {
				var m wire.Machine
				if m, err = s.FindMachine(ctx, args[0], workspace); err != nil {
					return err
				}
				which = m.WorkspaceID.String()
				operation, change, err = m.Ask(do, !yes)
			}
			if err != nil {
				return err
			}
			w, err := s.FindWorkspace(ctx, which)
			if err != nil {
				return err
			}
			queued, err := queueOn(ctx, a, s, w, operation, "trellis machines "+verb, func(asked *provision.Snapshot) {
				change(asked)
				asked.SealedVars = withSealed(asked.SealedVars, again)
			})
			if err != nil {
				return err
			}
			return tellQueued(ctx, a, s, cmd, queued, follow)
		}),
	}
	addInWorkspace(cmd, &workspace)
	if offersAll(do) {
		cmd.Flags().BoolVar(&all, "all", false, "all machines of the workspace that can "+verb+", by one run")
	}
	if do == wire.ActRebuild || do == wire.ActDestroy {
		cmd.Flags().BoolVar(&yes, "yes", false, "no approval, unless the cluster wants one")
	}
	sealed.addMessages(cmd)
	addFollow(a, cmd, &follow)
	return cmd
}

// offersAll says whether all machines of a workspace can be told to do this at once.
func offersAll(do wire.Act) bool { return do == wire.ActStart || do == wire.ActStop }

// allOf asks for an act on all machines of a workspace that it makes sense for.
func allOf(ctx context.Context, s *client.Client, workspace string, do wire.Act) (func(*provision.Snapshot), error) {
	list, err := s.Machines(ctx, client.MachineFilter{Workspace: workspace})
	if err != nil {
		return nil, err
	}
	var targets []string
	for _, m := range list {
		if slices.Contains(m.Offers(), do) {
			targets = append(targets, *m.Address)
		}
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("workspace %s has no machine that can %s", workspace, do)
	}
	return func(asked *provision.Snapshot) { asked.Targets, asked.Power = targets, provision.Power(do) }, nil
}

func machinesRevealCommand(a *app) *cobra.Command {
	var workspace string
	var all bool
	cmd := &cobra.Command{
		Use:   "reveal {MACHINE | --all --workspace NAME}",
		Short: "Show a machine's credentials, such as its password",
		Long: `Has an agent seal the credentials that are recorded of a machine to your key ("trellis
keys"), which the agent's policy.requester_keys must name, and opens them here. Neither the
database nor the control plane can read them. It is for admins, and it is audited.

--all shows those of all machines of a workspace, by one run: name, address, SSH port, user,
password and the command that signs in. -o csv prints that for a spreadsheet; a cell that
it would take for a formula gets an apostrophe before it.`,
		Example: `  trellis machines reveal ada
  trellis machines reveal --all --workspace class/2026
  trellis machines reveal --all --workspace class/2026 -o csv > class.csv`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case all && (len(args) > 0 || workspace == ""):
				return wrongUsage("--all is for all machines of a workspace: name it with --workspace, and no machine")
			case all:
				return nil
			case a.format == "csv":
				return wrongUsage("-o csv goes with --all")
			}
			return one("a machine's name or id, or --all with --workspace")(nil, args)
		},
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			own, err := ownKey(a)
			if err != nil {
				return err
			}
			if all {
				var handedOut []provision.HandedOut
				if err := reveal(ctx, a, s, own, workspace, wire.RevealAll, &handedOut); err != nil {
					return err
				}
				return printHandOut(a, handedOut)
			}
			m, err := s.FindMachine(ctx, args[0], workspace)
			if err != nil {
				return err
			}
			_, change, err := m.Ask(wire.ActReveal, false)
			if err != nil {
				return err
			}
			credentials := map[string]string{}
			if err := reveal(ctx, a, s, own, m.WorkspaceID.String(), change, &credentials); err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(credentials)
			}
			var rows [][]string
			for _, name := range slices.Sorted(maps.Keys(credentials)) {
				rows = append(rows, []string{name, credentials[name]})
			}
			return a.pairs(rows...)
		}),
	}
	addInWorkspace(cmd, &workspace)
	cmd.Flags().BoolVar(&all, "all", false, "those of all machines of the workspace")
	addFormat(a, cmd, "csv")
	return cmd
}

// reveal has an agent seal credentials of a workspace's machines to this person's key, waits
// for that, and opens them.
func reveal(ctx context.Context, a *app, s *client.Client, own personkey.Key, workspace string, which func(*provision.Snapshot), into any) error {
	w, err := s.FindWorkspace(ctx, workspace)
	if err != nil {
		return err
	}
	queued, err := queueOn(ctx, a, s, w, provision.OperationState, "trellis machines reveal", func(asked *provision.Snapshot) {
		which(asked)
		asked.RequesterKey = own.Asks(time.Now())
	})
	if err != nil {
		return err
	}
	p, err := awaitSuccess(ctx, a, s, queued.ID)
	if err != nil {
		return err
	}
	text, err := own.Open([]byte(p.Outputs[provision.HandOutOutput].Sealed), mostOutput)
	if err != nil {
		return fmt.Errorf("open the credentials that run %d has left: %w", queued.Number, err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read the credentials that run %d has left: %w", queued.Number, err)
	}
	return nil
}

// printHandOut prints what the users of machines get, in the format that was asked for.
func printHandOut(a *app, list []provision.HandedOut) error {
	switch a.format {
	case "json":
		return a.printJSON(list)
	case "csv":
		text := provision.HandOutCSV(list)
		if a.out.tty {
			text = a.out.fit(text)
		}
		_, err := io.WriteString(a.out, text)
		return err
	}
	rows := [][]string{{"MACHINE", "ADDRESS", "PORT", "USER", "PASSWORD", "SIGN IN", "OTHER"}}
	for _, h := range list {
		var others []string
		for _, name := range slices.Sorted(maps.Keys(h.Others)) {
			others = append(others, name+"="+h.Others[name])
		}
		rows = append(rows, []string{h.Name, h.Address, strconv.Itoa(h.Port), h.User, h.Password, h.Command, strings.Join(others, " ")})
	}
	return a.print("%s", printable.Table(0, rows...)) // a password is never cut
}
