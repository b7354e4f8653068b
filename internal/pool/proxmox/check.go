package proxmox

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tendril-run/tendril/internal/pool"
)

// Check says what an operator should know of the pool.
func (d *Driver) Check(ctx context.Context) []pool.Finding {
	var out []pool.Finding
	ok := func(what, detail string, args ...any) {
		out = append(out, pool.Finding{What: what, Detail: fmt.Sprintf(detail, args...)})
	}
	bad := func(warning bool, what, problem, detail string) {
		out = append(out, pool.Finding{What: what, Problem: problem, Warning: warning, Detail: detail})
	}
	if d.config.Insecure && d.config.Fingerprint == "" && d.config.CAFile == "" {
		bad(true, "certificate", "the server's certificate is not checked, so anyone between here and there gets the token", "set fingerprint or ca_file in [[pools]] in place of verify_ssl = false")
	}
	var version struct {
		Version string `json:"version"`
	}
	if _, err := d.client.once(ctx, "GET", "/version", nil, &version); err != nil {
		what := "reach"
		var certificate *tls.CertificateVerificationError
		switch {
		case errors.As(err, &certificate):
			bad(false, "certificate", clean(err.Error()), "set ca_file to the cluster's /etc/pve/pve-root-ca.pem, or fingerprint to the SHA-256 of the node's certificate")
			return out
		case status(err, 401):
			what = "token"
		}
		detail := d.advice(err)
		if detail == "" {
			detail = "check url in [[pools]], and that this machine reaches it"
		}
		bad(false, what, clean(err.Error()), detail)
		return out
	}
	major, _ := strconv.Atoi(strings.SplitN(version.Version, ".", 2)[0])
	ok("reach", "Proxmox VE %s at %s", clean(version.Version), d.client.base)
	ok("token", "%s is accepted", d.client.identity())
	if major < 7 {
		bad(true, "version", "Proxmox VE "+clean(version.Version)+" is older than what this was made for", "upgrade to 7 or newer")
	}
	for _, p := range d.needs(major) {
		d.lacks(ctx, p, bad, ok)
	}
	inv, err := d.list(ctx)
	if err != nil {
		bad(false, "inventory", clean(err.Error()), d.advice(err))
		return out
	}
	d.stock(inv, bad, ok)
	return out
}

// need is what must be allowed at a path and below it, or, where alone is set, at the path only.
type need struct {
	path       string
	alone      bool
	privileges []string
	optional   bool
	why        string
}

func (d *Driver) needs(major int) []need {
	agent := "VM.GuestAgent.Audit"
	commands := "VM.GuestAgent.Unrestricted"
	if major < 9 {
		agent, commands = "VM.Monitor", "VM.Monitor"
	}
	out := []need{
		{path: "/vms", privileges: []string{"VM.Audit", "VM.Clone", "VM.Allocate", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.Config.Disk", "VM.Config.Cloudinit", "VM.PowerMgmt"}, why: "make machines"},
		{path: "/vms", privileges: []string{agent}, optional: true, why: "learn machines' addresses"},
		{path: "/vms", privileges: []string{commands}, optional: true, why: "run the commands of after { }"},
		{path: "/vms", privileges: []string{"VM.Migrate", "VM.Snapshot", "VM.Snapshot.Rollback"}, optional: true, why: "move machines and make snapshots"},
		{path: "/nodes", privileges: []string{"Sys.Audit"}, why: "see how busy nodes are"},
	}
	where := d.config.Storages
	if len(where) == 0 {
		out = append(out, need{path: "/storage", privileges: []string{"Datastore.Audit", "Datastore.AllocateSpace"}, why: "make disks"})
	}
	for _, s := range where {
		out = append(out, need{path: "/storage/" + s, alone: true, privileges: []string{"Datastore.Audit", "Datastore.AllocateSpace"}, why: "make disks"})
	}
	if major >= 8 {
		if len(d.config.Networks) == 0 {
			out = append(out, need{path: "/sdn/zones/localnetwork", privileges: []string{"SDN.Use"}, why: "connect machines to bridges, which cloning needs too"})
		}
		for _, b := range d.config.Networks {
			out = append(out, need{path: "/sdn/zones/localnetwork/" + b, privileges: []string{"SDN.Use"}, why: "connect machines to it, which cloning needs too"})
		}
	}
	return out
}

func (d *Driver) lacks(ctx context.Context, n need, bad func(bool, string, string, string), ok func(string, string, ...any)) {
	have, err := d.privileges(ctx, n.path, !n.alone)
	if err != nil {
		bad(false, "privileges", clean(err.Error()), d.advice(err))
		return
	}
	missing := slices.DeleteFunc(slices.Clone(n.privileges), func(p string) bool { return have[p] })
	if len(missing) == 0 {
		ok("privileges", "%s at %s", strings.Join(n.privileges, ", "), n.path)
		return
	}
	where := n.path
	if !n.alone {
		where += " and below"
	}
	bad(n.optional, "privileges", fmt.Sprintf("%s lacks %s at %s, to %s", d.client.identity(), strings.Join(missing, ", "), where, n.why), d.grant(n.path, missing...))
}

// stock says what nodes, storages and images are good for.
func (d *Driver) stock(inv pool.Inventory, bad func(bool, string, string, string), ok func(string, string, ...any)) {
	if len(inv.Nodes) == 0 {
		bad(false, "nodes", "none of the nodes that [[pools]] names exists", "correct nodes in [[pools]]")
	}
	images := map[string]bool{}
	for _, n := range inv.Nodes {
		if !n.Online {
			bad(true, "nodes", "node "+n.Name+" is offline", "machines are made on the others")
			continue
		}
		ok("nodes", "%s: %d cores, %d MiB", n.Name, n.Cores, n.Memory)
		for _, s := range n.Storages {
			if !s.Linked {
				bad(true, "storage", fmt.Sprintf("storage %s of node %s can't make linked clones", s.Name, n.Name), "machines there are full copies, which take longer and more room")
			} else {
				ok("storage", "%s of node %s: %d of %d GiB free", s.Name, n.Name, s.Free, s.Size)
			}
		}
		for _, img := range n.Images {
			if images[img.Name] {
				continue
			}
			images[img.Name] = true
			switch {
			case !img.CloudInit:
				bad(true, "image", "image "+img.Name+" has no cloud-init drive", "machines made from it get no user, keys or address; add one: qm set "+img.ID+" --ide2 STORAGE:cloudinit")
			case !img.Agent:
				bad(true, "image", "image "+img.Name+" has no guest agent configured", "addresses from DHCP are not known; install qemu-guest-agent in it and run qm set "+img.ID+" --agent 1")
			default:
				ok("image", "%s has cloud-init and guest agent", img.Name)
			}
		}
	}
	if len(images) == 0 {
		bad(true, "image", "there is no template", "make one: qm template VMID")
	}
}
