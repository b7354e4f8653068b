package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool/serverlist"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// The variables of examples/templates/enroll.
const (
	varPool      = "pool"
	varServers   = "servers"
	varPasswords = "passwords"
)

// serverNames are those of machines, which servers that are enrolled are.
var serverNames = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func poolsEnrollCommand(a *app) *cobra.Command {
	r := deployRequest{by: "trellis pools enroll"}
	var fingerprint string
	var replace, follow bool
	cmd := &cobra.Command{
		Use:   "enroll POOL FILE",
		Short: "Enroll the bare-metal servers of a CSV file",
		Long: `Queues a run that makes servers known to the Ironic of a pool and brings them to where
machines can be made on them. The file is CSV with a header. Its columns are name, driver
(redfish or ipmi) and address (of the BMC), and as needed user, password, system, verify_ca,
macs and traits (with spaces between), resource_class, cores, memory (MiB), disk (GiB),
kernel, ramdisk and inspect. "-" reads standard input.

Passwords are sealed to the cluster, and only its agents open them. A server without one
keeps what was given before, while its BMC is the same. Each needs 8 bytes or more.

Servers that are enrolled already stay, and those of the file are changed to what it says.
With --replace the others are removed from Ironic; one that is in use is not. The agent's
operator says which workspaces may enroll servers ("enroll" in "[[pools]]").`,
		Example: `  trellis pools enroll metal rack1.csv --follow
  trellis pools enroll metal rack1.csv --workspace pools/rack1 --approval always`,
		Args: each("a pool", "a CSV file with servers"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			if err := followOrJSON(a, follow); err != nil {
				return err
			}
			servers, err := readServers(a, args[1])
			if err != nil {
				return err
			}
			p, err := s.FindPool(ctx, args[0], r.cluster)
			if err != nil {
				return err
			}
			if p.Kind != "ironic" {
				return wrongUsage("pool %s is of kind %s: servers are enrolled in pools of kind ironic", p.Name, p.Kind)
			}
			r.cluster, r.workspace = p.Cluster, cmp.Or(r.workspace, "pools/"+p.Name)
			cluster, err := r.find(ctx, s)
			if err != nil {
				return err
			}
			before, err := enrolledBefore(ctx, s, &r)
			if err != nil {
				return err
			}
			vars, kept, err := enrollVariables(before, p.Name, servers, replace)
			if err != nil {
				return err
			}
			r.vars = vars
			to := sealRequest{workspace: r.workspace, repo: r.repo, fingerprint: fingerprint}
			sealed, err := sealPasswords(to, &cluster, servers)
			if err != nil {
				return err
			}
			r.sealed, r.template = sealed, "" // the very version that they are sealed for
			queued, err := queueRun(ctx, s, r)
			if err != nil {
				return err
			}
			tellEnrolling(a, args[1], servers, kept)
			return tellQueued(ctx, a, s, cmd, queued, follow)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&r.template, "template", "enroll", "template of the catalogue, such as examples/templates/enroll")
	flags.StringVar(&r.workspace, "workspace", "", "the workspace that the servers belong to; default: pools/POOL")
	flags.StringVar(&r.cluster, "cluster", "", "the pool's cluster, by its name or id, where several have a pool of that name")
	flags.StringVar(&fingerprint, "fingerprint", "", "the fingerprint that the cluster's key must have, SHA256:…")
	flags.BoolVar(&replace, "replace", false, "remove the servers that the file does not have")
	flags.StringVar(&r.approval, "approval", "", "have a person approve the plan: never, destructive or always; never less than the cluster wants")
	flags.StringVar(&r.reason, "reason", "", "why, for others to read")
	addFollow(a, cmd, &follow)
	return cmd
}

// readServers reads a list of servers. Its errors quote no cell.
func readServers(a *app, file string) ([]serverlist.Server, error) {
	text, err := readFile(a, file, "the servers", serverlist.MaxRead)
	if err != nil {
		return nil, err
	}
	servers, err := serverlist.Read(bytes.NewReader(text))
	if err != nil {
		return nil, wrongUsage("%s: %v", file, err)
	}
	if len(servers) == 0 {
		return nil, wrongUsage("%s: the list has no server", file)
	}
	for _, s := range servers {
		switch {
		case !serverNames.MatchString(s.Name):
			return nil, wrongUsage("%s: name %s: use lowercase letters, digits and dashes, with a letter or digit at both ends, and 63 characters at most", file, s.Name)
		case s.Password != "" && len(strings.TrimSpace(s.Password)) < seal.MinSecret:
			return nil, wrongUsage("%s: the password of %s has less than %d bytes, which could not be kept out of logs: set a longer one at its BMC first", file, s.Name, seal.MinSecret)
		}
	}
	return servers, nil
}

// before is what a workspace has of servers that were enrolled before.
type before struct {
	vars map[string]json.RawMessage // of the newest deploy
	// machines are the servers that are there, by name.
	machines []string
}

// enrolledBefore reads what the workspace has. Where a run is going on that is not known yet.
func enrolledBefore(ctx context.Context, s *client.Client, r *deployRequest) (b before, err error) {
	w, err := s.FindWorkspace(ctx, r.workspace)
	if refused, is := errors.AsType[*problem.RefusedError](err); is && refused.Reason == "workspace_not_found" {
		return b, nil // it is made by the first run
	}
	if err != nil {
		return b, err
	}
	if w.Cluster != r.cluster {
		return b, wrongUsage("workspace %s is on cluster %s, and the pool on cluster %s: name another --workspace", w.Name, w.Cluster, r.cluster)
	}
	r.workspace = w.Name
	runs, err := s.ProvisionPage(ctx, client.ProvisionFilter{Workspace: w.Name, Cluster: r.cluster}, client.Part{Limit: 50})
	if err != nil {
		return b, err
	}
	for _, run := range runs.Items {
		if !run.Status.Terminal() {
			return b, &problem.RefusedError{
				Code: "PT409", Reason: "workspace_busy", Message: fmt.Sprintf("run %d of workspace %s has not ended, so it is not known which servers there will be", run.Number, w.Name),
				Hint: "wait for its end, approve or cancel it, then enroll again",
			}
		}
	}
	all, err := s.Machines(ctx, client.MachineFilter{Workspace: w.Name})
	if err != nil {
		return b, err
	}
	for _, m := range all {
		if !slices.Contains([]string{"planned", "reserved", "gone"}, m.Status) {
			b.machines = append(b.machines, m.Name)
		}
	}
	if len(b.machines) == 0 {
		return b, nil // what was deployed is gone
	}
	_, last, err := s.LastApplied(ctx, w.ID)
	if err != nil {
		return b, err
	}
	snapshot, err := provision.ParseSnapshot(last)
	if err != nil {
		return b, fmt.Errorf("read what was deployed to workspace %s: %w", w.Name, err)
	}
	if of := snapshot.TemplateSource; canonical.Address(of.Repo) != canonical.Address(r.repo) || of.Path != r.path {
		return b, wrongUsage("workspace %s has machines of another template (%s %s): name another --workspace, or the --template that they are of", w.Name, of.Repo, of.Path)
	}
	b.vars = snapshot.TerraformVars
	return b, nil
}

// enrollVariables are the variables with the servers of a list, and those that are there: kept says
// how many stay as they are.
func enrollVariables(b before, pool string, list []serverlist.Server, replace bool) (vars map[string]json.RawMessage, kept int, err error) {
	vars = maps.Clone(b.vars)
	if vars == nil {
		vars = map[string]json.RawMessage{}
	}
	if was, has := vars[varPool]; has && string(was) != string(jsonText(pool)) {
		return nil, 0, wrongUsage("the servers of the workspace are in the pool %s: name another --workspace for pool %s", was, pool)
	}
	servers, known := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for _, one := range list {
		if servers[one.Name], err = json.Marshal(one); err != nil {
			return nil, 0, fmt.Errorf("encode the server %s: %w", one.Name, err)
		}
	}
	if was := b.vars[varServers]; len(was) > 0 && json.Unmarshal(was, &known) != nil {
		return nil, 0, errors.New("the variable servers of what was deployed is no object: is it a template such as examples/templates/enroll?")
	}
	for _, name := range b.machines {
		switch described, is := known[name]; {
		case servers[name] != nil || replace:
		case !is: // a run that failed has left it
			return nil, 0, wrongUsage("the server %s is there, and the newest deploy does not have it, so it would be removed: add it to the file, or say --replace to remove it", name)
		default:
			servers[name] = described
			kept++
		}
	}
	vars[varPool] = jsonText(pool)
	if vars[varServers], err = json.Marshal(servers); err != nil {
		return nil, 0, fmt.Errorf("encode the servers: %w", err)
	}
	delete(vars, varPasswords) // which no deploy has in plain
	return vars, kept, nil
}

// sealPasswords seals the list's passwords to the cluster, for this workspace and template alone.
func sealPasswords(r sealRequest, cluster *wire.Cluster, list []serverlist.Server) (map[string]string, error) {
	passwords := map[string]string{}
	for _, one := range list {
		if one.Password != "" {
			passwords[one.Name] = one.Password
		}
	}
	if len(passwords) == 0 {
		return nil, nil
	}
	key, _, err := r.recipient(cluster)
	if err != nil {
		return nil, err
	}
	to, err := seal.ParseRecipient(key)
	if err != nil {
		return nil, fmt.Errorf("the key of the cluster %s: %w", cluster.Name, err)
	}
	value, err := json.Marshal(passwords)
	if err != nil {
		return nil, errors.New("encode the passwords") // whose error would quote them
	}
	use := seal.Use{Cluster: cluster.Name, Workspace: r.workspace, Repo: canonical.Address(r.repo), Name: varPasswords}
	message, err := seal.Variable{Use: use, Value: value}.Seal(to)
	if err != nil {
		return nil, fmt.Errorf("the passwords of %d servers cannot be sealed: %w; enroll the file in parts", len(passwords), err)
	}
	return map[string]string{varPasswords: message}, nil
}

// tellEnrolling says what the run does, and what is left to do.
func tellEnrolling(a *app, file string, list []serverlist.Server, kept int) {
	var secret, classless int
	for _, one := range list {
		if one.Password != "" {
			secret++
		}
		if one.ResourceClass == "" {
			classless++
		}
	}
	a.say("Servers of %s: %d. Enrolled before, and kept: %d.", file, len(list), kept)
	if secret > 0 {
		a.say("Passwords sealed to the cluster: %d. The file has them in the clear: delete it, or keep it safe.", secret)
	}
	if classless > 0 {
		a.say("Servers without resource_class: %d. No machine is made on a server until it has one.", classless)
	}
}
