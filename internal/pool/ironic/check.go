package ironic

import (
	"context"
	"fmt"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/v1/conductors"

	"github.com/tendril-run/tendril/internal/pool"
)

// Check implements pool.Driver.
func (d *Driver) Check(ctx context.Context) (all []pool.Finding) {
	ok := func(what, detail string, args ...any) {
		all = append(all, pool.Finding{What: what, Detail: fmt.Sprintf(detail, args...)})
	}
	bad := func(warning bool, what, problem, detail string) {
		all = append(all, pool.Finding{What: what, Problem: problem, Warning: warning, Detail: detail})
	}
	if d.config.Insecure && d.config.Fingerprint == "" && d.config.CAFile == "" {
		bad(true, "certificate", "the server's certificate is not checked, so anyone between here and there gets the credentials", "set fingerprint or ca_file in [[pools]] in place of verify_ssl = false")
	}
	if strings.HasPrefix(d.config.URL, "http://") && !local(d.config.URL) {
		bad(true, "url", "what is sent to "+d.config.URL+" is not encrypted, config drives with their passwords included", "serve Ironic's API by https")
	}
	servers, err := d.all(ctx)
	if err != nil {
		what, detail := "reach", "check url in [[pools]], and that this machine reaches it"
		if p, has := asProblem(err); has {
			detail = p.class.does
			if p.class == classDenied || p.class == classMay {
				what = "token"
			}
		}
		bad(false, what, clean(err.Error()), detail)
		return all
	}
	ok("reach", "Ironic's API 1.%d at %s", d.client.agreed(), d.client.address())
	ok("token", "%s", d.client.signedIn())
	if v := d.client.agreed(); v < withDeploySteps {
		bad(true, "version", fmt.Sprintf("Ironic's API 1.%d has no deploy steps", v), fmt.Sprintf("templates can't set bios and raid; upgrade Ironic to one with 1.%d", withDeploySteps))
	}
	d.checkConductors(ctx, bad, ok)
	if len(servers) == 0 {
		bad(false, "servers", "Ironic shows none that the pool may use", "enroll servers, and correct nodes in [[pools]]")
	}
	free := 0
	for _, n := range servers {
		why := n.free()
		switch {
		case why == "":
			free++
		case n.InstanceUUID == "" || n.Maintenance || n.Fault != "" || stageOf(n.ProvisionState).failed:
			bad(true, "servers", fmt.Sprintf("%s: %s", &n, why), "no machine is made of it")
		}
	}
	ok("servers", "%d, of which %d are free", len(servers), free)
	images, err := d.listed(ctx)
	switch {
	case err != nil:
		bad(true, "image", clean(err.Error()), "only those of [[pools.images]] can be used")
	case len(images) == 0:
		bad(true, "image", "there is no image", "add one to [[pools.images]]: name, source and checksum")
	default:
		ok("image", "%d images", len(images))
	}
	for _, i := range d.config.Images {
		if strings.Contains(i.Source, "://") && i.Checksum == "" && i.HashValue == "" {
			bad(true, "image", "image "+i.Name+" has no checksum", "Ironic refuses most images without: set os_hash_algo and os_hash_value, or checksum")
		}
	}
	return all
}

func (d *Driver) checkConductors(ctx context.Context, bad func(bool, string, string, string), ok func(string, string, ...any)) {
	var names, dead []string
	err := d.client.once(ctx, "list the conductors", func(ctx context.Context, api *gophercloud.ServiceClient) error {
		var body struct {
			Conductors []conductors.Conductor `json:"conductors"`
		}
		if err := get(ctx, api, api.ServiceURL("conductors"), &body); err != nil {
			return err
		}
		for _, c := range body.Conductors {
			if c.Alive {
				names = append(names, clean(c.Hostname))
			} else {
				dead = append(dead, clean(c.Hostname))
			}
		}
		return nil
	})
	switch {
	case err != nil:
		bad(true, "conductors", clean(err.Error()), "give the agent's user the right to list conductors")
	case len(names) == 0:
		bad(false, "conductors", "no conductor is alive, so nothing can be deployed", "start ironic-conductor")
	default:
		ok("conductors", "%s", strings.Join(names, ", "))
	}
	if len(dead) > 0 {
		bad(true, "conductors", "not alive: "+strings.Join(dead, ", "), "start them, or remove them")
	}
}
