package proxmox

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/tendril-run/tendril/internal/lazyregexp"
)

var needed = lazyregexp.New(`Permission check failed \(([^,)]*), ([A-Za-z.|]+)\)`)

// advised adds to an error what its reader can do about it.
func (d *Driver) advised(err error) error {
	if err == nil {
		return nil
	}
	if what := d.advice(err); what != "" && !strings.Contains(err.Error(), what) {
		return fmt.Errorf("%w; %s", err, what)
	}
	return err
}

// remedies are by what Proxmox says, in its words.
var remedies = []struct{ says, do string }{
	{"KVM virtualisation configured, but not available", "switch virtualisation on in the node's BIOS"},
	{"vcpus allowed per VM", "ask for fewer cores, or place the machine on a larger node"},
	{"Cannot allocate memory", "the node has too little memory left; place the machine on another node"},
	{"bridge '", "name a bridge that the node has: proxmox { bridge = … }, or make it there"},
	{"No space left on device", "free space on the storage, or choose another: proxmox { storage = … }"},
	{"insufficient free space", "free space on the storage, or choose another: proxmox { storage = … }"},
	{"is disabled", "enable the storage, or choose another: proxmox { storage = … }"},
	{"does not support vm images", "choose a storage whose content has images: proxmox { storage = … }"},
	{"protection mode enabled", "someone protected the machine; switch that off on the hypervisor first (qm set VMID --protection 0)"},
	{"VM is locked", "another job holds the machine; wait until it ends, or, if none runs, unlock it on its node: qm unlock VMID"},
	{"got timeout", "another job holds the machine's lock file; check the node's running tasks"},
	{"no quorum", "the cluster has lost its majority; bring nodes back first"},
	{"SSH public key validation error", "one of the SSH keys is none"},
	{"only root can set", "a token may not set that, whatever its privileges"},
	{"VM uses local storage", "put the image on a storage that all nodes share, or make it on that node too"},
	{"snapshot feature is not available", "the machine's storage can't make snapshots; leave out proxmox { snapshot = true }"},
}

func (d *Driver) advice(err error) string {
	text := err.Error()
	if m := needed.FindStringSubmatch(text); m != nil {
		first, _, _ := strings.Cut(m[2], "|")
		return "give the token that privilege: " + d.grant(m[1], first)
	}
	var api *apiError
	if errors.As(err, &api) {
		switch api.status {
		case http.StatusUnauthorized:
			return fmt.Sprintf("the token %s is wrong, expired or of a disabled user; write a valid one to %s", d.client.identity(), d.client.tokenFile)
		case http.StatusForbidden:
			return "give the token the privileges that `tendril doctor` lists"
		}
	}
	for _, r := range remedies {
		if strings.Contains(text, r.says) {
			return r.do
		}
	}
	return ""
}

// grant is the command that gives the pool's token privileges at path.
func (d *Driver) grant(path string, privileges ...string) string {
	id := d.client.identity()
	user, _, _ := strings.Cut(id, "!")
	return fmt.Sprintf("pveum role add Tendril --privs '%[1]s' || pveum role modify Tendril --append 1 --privs '%[1]s'; pveum acl modify %[2]s --users %[3]s --tokens '%[4]s' --roles Tendril", strings.Join(privileges, " "), path, user, id)
}
