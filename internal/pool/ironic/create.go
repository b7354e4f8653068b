package ironic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/v1/allocations"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
)

// mostDeploys is how often a deployment is begun that ended because its conductor did.
const mostDeploys = 4

// Create implements pool.Driver: a server is allocated, told what to become, and deployed.
func (d *Driver) Create(ctx context.Context, spec pool.Spec, progress pool.Progress) (pool.Found, error) {
	progress.Secret(spec.Init.Password)
	found, err := d.create(ctx, spec, progress)
	if errors.Is(err, pool.ErrForeign) {
		found = pool.Found{} // what was found is another's
	}
	return found, coded(err)
}

func (d *Driver) create(ctx context.Context, spec pool.Spec, progress pool.Progress) (pool.Found, error) {
	s, err := parse(spec.Settings)
	if err != nil {
		return pool.Found{}, err
	}
	if s.Enroll != nil {
		return d.enroll(ctx, spec, s.Enroll, progress)
	}
	image, err := d.image(ctx, spec.Image)
	if err != nil {
		return pool.Found{}, err
	}
	if err := d.versionFor(&s); err != nil {
		return pool.Found{}, err
	}
	t := &told{progress: progress}
	t.at("allocate", "Choosing a server", 0)
	n, err := d.allocate(ctx, spec, &s, progress)
	if err != nil {
		return pool.Found{}, err
	}
	if told, hears := progress.(pool.Beginner); hears {
		began := n.found()
		began.Ready = false
		told.Begun(began)
	}
	if n.String() != spec.Node {
		progress.Log("Ironic gives it the server %s, because %s is in use", n, cmp.Or(spec.Node, "the one that was meant"))
	}
	return d.deploy(ctx, spec, &s, image, n, t)
}

// deploy brings a server that bears the mark to active, from whatever state it is in.
func (d *Driver) deploy(ctx context.Context, spec pool.Spec, s *settings, image pool.ImageSource, n *node, t *told) (pool.Found, error) {
	asked, prepared := 0, false
	if n.rebuilt() {
		asked, prepared = 1, true
	}
	for {
		var err error
		if n.ProvisionState != "available" || asked > 0 {
			n, err = d.follow(ctx, n.UUID, s, t.of, t.progress, func(n *node) (bool, error) {
				if !n.ours(spec.ID) {
					return true, fmt.Errorf("the server %s is no longer this machine's (%s): %w", n, cmp.Or(n.InstanceUUID, "it has no instance"), pool.ErrForeign)
				}
				return stageOf(n.ProvisionState).ends, nil
			})
		}
		if errors.Is(err, pool.ErrForeign) {
			return pool.Found{}, err
		}
		if err != nil {
			return n.found(), err
		}
		switch state := n.ProvisionState; {
		case slices.Contains(deployed, state):
			t.at("active", stageOf("active").Label, 100)
			return d.settled(ctx, spec, s, n)
		case state == "available" || state == "deploy failed" && (asked == 0 || asked < mostDeploys && faultIn(n.LastError).again):
			if asked > 0 {
				t.progress.Log("the deployment is begun again, because its conductor ended: %s", clean(n.LastError))
			}
			if n.Maintenance {
				return n.found(), notAvailable(n, "it is in maintenance"+because(n.MaintenanceReason)+". Unset that: `baremetal node maintenance unset "+n.String()+"`")
			}
			var request map[string]any
			if request, err = d.request(ctx, spec, s, n); err != nil {
				return n.found(), err
			}
			if !prepared {
				t.at("prepare", "Telling the server what to become", 5)
				if err := d.prepare(ctx, spec, s, image, n); err != nil {
					return n.found(), err
				}
				prepared = true
			}
			if asked++; asked > mostDeploys {
				return n.found(), d.failure(n)
			}
			switch err := d.provision(ctx, n, request); {
			case errors.Is(err, errMoved):
				if err := d.pause(ctx, 0); err != nil {
					return n.found(), err
				}
			case err != nil:
				return n.found(), d.refused(n, err)
			}
		case stageOf(state).failed:
			return n.found(), d.failure(n)
		default: // enroll, manageable: somebody has taken it out of what is offered
			return n.found(), notAvailable(n, fmt.Sprintf("it is in the state %s (%s). %s, or destroy the machine", state, stageOf(state).Label, strings.ReplaceAll(stageOf(state).Do, "SERVER", n.String())))
		}
	}
}

// settled is a machine that is made. A deployment that was begun by hand bears no texts of ours.
func (d *Driver) settled(ctx context.Context, spec pool.Spec, s *settings, n *node) (pool.Found, error) {
	_, rebuilt := n.Extra[extraRebuild]
	if n.extra(extraMachine) != spec.ID || rebuilt {
		if err := d.patch(ctx, n, "write the machine's id on the server", func(n *node) []map[string]any { return d.texts(spec, n, s) }); err != nil {
			return n.found(), err
		}
	}
	if n.ProvisionState == "active" && n.PowerState == "power off" { // some hardware is left so
		on, err := d.power(ctx, n, "power on", "power on", false, func(n *node) bool { return n.ours(spec.ID) })
		if err != nil {
			return n.found(), fmt.Errorf("the server %s is deployed, and can't be switched on: %w", n, err)
		}
		n = on
	}
	f := n.found()
	if spec.Address.IsValid() && len(f.Addresses) == 0 {
		f.Addresses = append(f.Addresses, spec.Address.Addr())
	}
	f.Name = spec.Name
	return f, nil
}

// failure is what a deployment ended with.
func (d *Driver) failure(n *node) error {
	s, f := stageOf(n.ProvisionState), faultIn(n.LastError)
	text := fmt.Sprintf("the server %s is in the state %s: %s%s. %s; %s", n, n.ProvisionState, s.Label, because(n.LastError), f.name, f.does)
	if n.Maintenance {
		text += fmt.Sprintf(". It is in maintenance%s", because(n.MaintenanceReason))
	}
	if f.code != "" {
		return &pool.CodeError{Code: f.code, Err: errors.New(text)}
	}
	return errors.New(text)
}

// refused is a deployment that Ironic does not begin. It has checked the server and the image.
func (d *Driver) refused(n *node, err error) error {
	p, has := errors.AsType[*problem](err)
	if !has || p.class != classRefused {
		return err
	}
	f := faultIn(p.text)
	err = fmt.Errorf("Ironic does not deploy the server %s: %s. %s", n, strings.TrimSuffix(p.text, "."), capital(f.does)) //nolint:staticcheck // Ironic is a name
	if f.code != "" {
		return &pool.CodeError{Code: f.code, Err: err}
	}
	return err
}

// allocate has Ironic give the machine a server: the one that the database has chosen, or else
// another one that would do. One that it has already is taken.
func (d *Driver) allocate(ctx context.Context, spec pool.Spec, s *settings, progress pool.Progress) (*node, error) {
	n, err := d.marked(ctx, spec.ID)
	if err != nil || n != nil {
		return n, err
	}
	placed, err := d.read(ctx, spec.Node)
	switch {
	case err != nil:
		return nil, err
	case placed == nil && spec.Named:
		return nil, notFound(spec.Node, d.config.Name)
	}
	class, why := cmp.Or(s.ResourceClass, spec.Labels[classLabel]), "it is no longer there"
	if placed != nil {
		class = cmp.Or(class, placed.ResourceClass)
		if why = placed.free(); why == "" {
			n, why, err = d.ask(ctx, spec, s, class, placed.UUID)
			if err != nil || n != nil {
				return n, err
			}
			if again, err := d.read(ctx, placed.UUID); err == nil && again != nil && again.free() != "" {
				placed, why = again, again.free()
			}
		}
		if spec.Named {
			return nil, notAvailable(placed, why)
		}
	}
	if class == "" {
		return nil, notFound(spec.Node, d.config.Name)
	}
	progress.Log("the server %s can't be used: %s. Another of the class %s is asked for", cmp.Or(spec.Node, "that was meant"), why, class)
	// Ironic compares classes and traits alone, and does not know the pool's nodes.
	all, err := d.every(ctx, "look for another server")
	if err != nil {
		return nil, err
	}
	var candidates []string
	for _, one := range all {
		if d.usable(&one) && one.free() == "" && one.ResourceClass == class && one.does(spec) {
			candidates = append(candidates, one.UUID)
		}
	}
	if len(candidates) == 0 {
		return nil, noServer(class, traits(spec, s), "none that the pool may use, and that has the labels, cores and memory, is free")
	}
	n, reason, err := d.ask(ctx, spec, s, class, candidates...)
	if err != nil || n != nil {
		return n, err
	}
	return nil, noServer(class, traits(spec, s), reason)
}

// traits are those that an allocation asks for: the settings' own, and the labels that are traits.
func traits(spec pool.Spec, s *settings) []string {
	all := slices.Clone(s.Traits)
	for _, name := range slices.Sorted(maps.Keys(spec.Labels)) {
		if traitNames.MatchString(name) && spec.Labels[name] == "true" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

func noServer(class string, traits []string, reason string) error {
	with := ""
	if len(traits) > 0 {
		with = " with the traits " + strings.Join(traits, ", ")
	}
	return &pool.CodeError{Code: provision.CodeNoServer, Err: fmt.Errorf("No available servers matching criteria: the class %s%s (%s). Wait until one is free, or ask for another class", class, with, clean(reason))} //nolint:staticcheck // the words of the REST API, which hands them on
}

// allocation is one of Ironic's.
func (d *Driver) allocation(ctx context.Context, id string) (a *allocations.Allocation, err error) {
	err = d.client.call(ctx, "read the allocation "+id, func(ctx context.Context, api *gophercloud.ServiceClient) error {
		a, err = allocations.Get(ctx, api, id).Extract()
		return err
	})
	if is(err, classMissing) {
		return nil, nil
	}
	return a, err
}

// ask makes an allocation for the machine among the candidates and waits for its end.
// Where Ironic has none it is removed again, and why says so.
func (d *Driver) ask(ctx context.Context, spec pool.Spec, s *settings, class string, candidates ...string) (n *node, why string, err error) {
	began := time.Now()
	made, err := d.requestAllocation(ctx, spec, s, class, candidates)
	if err != nil {
		return nil, "", err
	}
	for {
		a, err := d.allocation(ctx, spec.ID)
		if err != nil {
			return nil, "", err
		}
		switch {
		case a == nil:
			return nil, "the allocation was removed by somebody", nil
		case a.State == "error" && !made: // an earlier one, whose reason may be over
			if err := d.unallocate(ctx, spec.ID); err != nil {
				return nil, "", err
			}
			if _, err := d.requestAllocation(ctx, spec, s, class, candidates); err != nil {
				return nil, "", err
			}
			made = true
			continue
		case a.State == "error":
			return nil, a.LastError, d.unallocate(ctx, spec.ID)
		case a.State == "active":
			n, err := d.read(ctx, a.NodeUUID)
			if err == nil && (n == nil || !n.ours(spec.ID)) {
				err = fmt.Errorf("Ironic allocates the server %s to machine %s, and that server bears another mark: %w", a.NodeUUID, spec.Name, pool.ErrForeign) //nolint:staticcheck // Ironic is a name
			}
			return n, "", err
		}
		if time.Since(began) > d.client.scaled(actionPatience) {
			return nil, "", fmt.Errorf("the allocation %s is not decided after %s; see that a conductor is alive (`baremetal conductor list`)", spec.ID, actionPatience)
		}
		if err := d.pause(ctx, time.Since(began)); err != nil {
			return nil, "", err
		}
	}
}

// requestAllocation asks for an allocation, and reports whether it was made now. One that is there
// already is of an earlier attempt, or of a request whose answer was lost.
func (d *Driver) requestAllocation(ctx context.Context, spec pool.Spec, s *settings, class string, candidates []string) (made bool, err error) {
	err = d.client.call(ctx, "ask Ironic for a server of the class "+class, func(ctx context.Context, api *gophercloud.ServiceClient) error {
		_, err := allocations.Create(ctx, api, allocations.CreateOpts{
			UUID: spec.ID, Name: "tendril-" + spec.ID, ResourceClass: class, Traits: traits(spec, s), CandidateNodes: candidates,
			Extra: map[string]string{extraMachine: spec.ID, extraName: spec.Name, extraWorkspace: spec.Workspace},
		}).Extract()
		return err
	})
	if is(err, classConflict) {
		return false, nil
	}
	return err == nil, err
}

// unallocate removes the machine's allocation. One that is gone is no error.
func (d *Driver) unallocate(ctx context.Context, id string) error {
	err := d.client.call(ctx, "remove the allocation "+id, func(ctx context.Context, api *gophercloud.ServiceClient) error {
		return allocations.Delete(ctx, api, id).ExtractErr()
	})
	if is(err, classMissing) {
		return nil
	}
	return err
}

// texts are what is written on a server for people, and for the one who destroys the machine. more
// are names and texts of further ones.
func (d *Driver) texts(spec pool.Spec, n *node, s *settings, more ...string) (changes []map[string]any) {
	wanted := map[string]string{
		extraMachine: spec.ID, extraName: spec.Name, extraWorkspace: spec.Workspace, extraClean: s.Clean, extraCleanTime: s.CleanTimeout, extraPowerTime: s.PowerTimeout,
	}
	if spec.Address.IsValid() {
		wanted[extraAddress] = spec.Address.Addr().String()
	}
	for i := 1; i < len(more); i += 2 {
		wanted[more[i-1]] = more[i]
	}
	for _, name := range []string{extraMachine, extraName, extraWorkspace, extraAddress, extraClean, extraCleanTime, extraPowerTime, extraRebuild} {
		_, has := n.Extra[name]
		switch text := wanted[name]; {
		case text != "":
			changes = append(changes, add("/extra/"+name, text))
		case has: // an earlier machine's
			changes = append(changes, remove("/extra/"+name))
		}
	}
	if _, noted := n.Extra[extraCleaned]; noted { // of one whose cleaning failed: this machine's disks are cleaned
		changes = append(changes, restored(n), remove("/extra/"+extraCleaned))
	}
	return changes
}

// prepare writes on a server what it is to become, with the texts that texts takes.
func (d *Driver) prepare(ctx context.Context, spec pool.Spec, s *settings, image pool.ImageSource, n *node, more ...string) error {
	info := imageInfo(image)
	info["display_name"] = spec.Name
	if s.RootGB > 0 {
		info["root_gb"] = s.RootGB
	}
	if capabilities := s.capabilities(); len(capabilities) > 0 {
		info["capabilities"] = capabilities
	}
	if len(s.RootDevice) > 0 {
		info["root_device"] = s.RootDevice
	}
	if s.KernelParams != "" {
		info["kernel_append_params"] = s.KernelParams
	}
	return d.patch(ctx, n, "write on the server what it is to become", func(n *node) []map[string]any {
		// What an earlier attempt has written with other settings must not stay.
		changes := d.texts(spec, n, s, more...)
		for _, name := range []string{"capabilities", "display_name", "image_checksum", "image_disk_format", "image_os_hash_algo", "image_os_hash_value", "image_source", "image_type", "kernel", "kernel_append_params", "ramdisk", "root_device", "root_gb"} {
			value, wanted := info[name]
			_, has := n.InstanceInfo[name]
			switch {
			case wanted:
				changes = append(changes, add("/instance_info/"+name, value))
			case has:
				changes = append(changes, remove("/instance_info/"+name))
			}
		}
		return changes
	})
}

// request is the one for the deployment.
func (d *Driver) request(ctx context.Context, spec pool.Spec, s *settings, n *node) (map[string]any, error) {
	mac := ""
	if spec.Address.IsValid() && len(s.NetworkData) == 0 {
		var err error
		if mac, err = d.mac(ctx, n); err != nil {
			return nil, err
		}
	}
	object, err := drive(spec, *s, mac)
	if err != nil {
		return nil, err
	}
	request := map[string]any{"target": "active", "configdrive": object}
	if steps := s.steps(); len(steps) > 0 {
		request["deploy_steps"] = steps
	}
	return request, nil
}

// mac is the MAC address of the server's port: of the one that boots from the network, if there is
// such a one.
func (d *Driver) mac(ctx context.Context, n *node) (mac string, err error) {
	err = d.client.call(ctx, "read the server's ports", func(ctx context.Context, api *gophercloud.ServiceClient) error {
		var body struct {
			Ports []struct {
				Address string `json:"address"`
				PXE     bool   `json:"pxe_enabled"`
			} `json:"ports"`
		}
		query := url.Values{"node": {n.UUID}, "fields": {"address,pxe_enabled"}}
		if err := get(ctx, api, api.ServiceURL("ports")+"?"+query.Encode(), &body); err != nil {
			return err
		}
		mac = ""
		for _, p := range body.Ports {
			if mac == "" || p.PXE {
				mac = p.Address
			}
			if p.PXE {
				break
			}
		}
		return nil
	})
	return mac, err
}
