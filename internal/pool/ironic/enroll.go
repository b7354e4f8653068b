package ironic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pool/serverlist"
	"github.com/tendril-run/tendril/provisioner"
)

// enrolment is a template's ironic { enroll = { … } }: the machine is a server that is made known to
// Ironic, under the machine's name. The fields are those of serverlist.Server.
type enrolment struct {
	Driver        string   `json:"driver"`
	Address       string   `json:"address"`
	User          string   `json:"user"`
	Password      string   `json:"password"`
	System        string   `json:"system"`
	VerifyCA      string   `json:"verify_ca"`
	MACs          []string `json:"macs"`
	ResourceClass string   `json:"resource_class"`
	Traits        []string `json:"traits"`
	Cores         int      `json:"cores"`
	Memory        int      `json:"memory"`
	Disk          int      `json:"disk"`
	Kernel        string   `json:"kernel"`
	Ramdisk       string   `json:"ramdisk"`
	Inspect       bool     `json:"inspect"`
	// Adopt takes over a server of that name which Ironic knows and nobody has enrolled by Tendril.
	Adopt bool `json:"adopt"`
}

func (e *enrolment) server(name string) server {
	return server{serverlist.Server{
		Name: name, Driver: e.Driver, Address: e.Address, User: e.User, Password: e.Password, System: e.System, VerifyCA: e.VerifyCA, MACs: e.MACs,
		ResourceClass: e.ResourceClass, Traits: e.Traits, Cores: e.Cores, Memory: e.Memory, Disk: e.Disk, Kernel: e.Kernel, Ramdisk: e.Ramdisk, Inspect: e.Inspect,
	}}
}

// bmc is where the password goes, and as whose.
func (e *enrolment) bmc() [5]string {
	return [5]string{e.Driver, e.Address, e.User, e.System, e.VerifyCA}
}

func (e *enrolment) check() error {
	// The name is the machine's, which is a DNS label.
	s := e.server("name")
	if err := s.Check(); err != nil {
		return fmt.Errorf("ironic: enroll: %w", err)
	}
	return nil
}

// Enrolls implements pool.Enroller.
func (d *Driver) Enrolls(raw json.RawMessage) bool {
	var block struct {
		Enroll json.RawMessage `json:"enroll"` // whatever it is: Settings says what is wrong with it
	}
	return json.Unmarshal(raw, &block) == nil && len(block.Enroll) > 0 && string(block.Enroll) != "null"
}

// Remembered implements pool.Enroller. A password stays only as long as it goes to the same BMC:
// a person who can change the address must not receive the password there.
func (d *Driver) Remembered(raw, recorded json.RawMessage) (json.RawMessage, error) {
	is, err := parse(raw)
	if err != nil || is.Enroll == nil || is.Enroll.Password != "" {
		return raw, err
	}
	was, err := parse(recorded)
	if err != nil {
		return nil, fmt.Errorf("%w, in what is recorded of it: another version of the agent has written that. Give the password again", err)
	}
	if was.Enroll == nil || was.Enroll.Password == "" {
		return raw, nil
	}
	if is.Enroll.bmc() != was.Enroll.bmc() {
		return nil, errors.New("ironic: enroll: password is missing: the recorded one is for another driver, address, user, system or verify_ca. Give it again")
	}
	var all, inner map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(all["enroll"], &inner); err != nil {
		return nil, err
	}
	if inner["password"], err = json.Marshal(was.Enroll.Password); err != nil {
		return nil, err
	}
	if all["enroll"], err = json.Marshal(inner); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// Secrets implements pool.Enroller.
func (d *Driver) Secrets(raw json.RawMessage) []string {
	s, err := parse(raw)
	if err != nil || s.Enroll == nil || s.Enroll.Password == "" {
		return nil
	}
	return []string{s.Enroll.Password}
}

// What is written into the extra of a server that Tendril has enrolled: the machine's id, which is
// its mark, the machine's workspace, and the traits and MAC addresses that Tendril has set. The names
// differ from extraPrefix: what a deployed machine leaves is removed, and these stay.
const (
	extraServer          = "tendril-server"
	extraServerWorkspace = "tendril-server-workspace"
	extraServerTraits    = "tendril-server-traits"
	extraServerMACs      = "tendril-server-macs"
)

// enrolledAs reports whether a server is the one that a machine stands for, by its mark alone.
func (n *node) enrolledAs(id string) bool { return id != "" && n.extra(extraServer) == id }

// busy reports whether somebody has the server.
func (n *node) busy() bool {
	return n.InstanceUUID != "" || n.AllocationUUID != "" || slices.Contains(deployed, n.ProvisionState)
}

// enrolled is what is known of a machine that is a server. It is on no node, for it is one.
func (n *node) enrolled() pool.Found {
	f := pool.Found{
		Mark: n.extra(extraServer), ExternalID: n.UUID, Name: n.String(), Status: provisioner.StatusUnknown,
		Ready: n.ProvisionState != "enroll" && n.ProvisionState != "verifying",
	}
	switch n.PowerState {
	case "power on":
		f.Status = provisioner.StatusRunning
	case "power off":
		f.Status = provisioner.StatusStopped
	}
	return f
}

// server is one to be enrolled, as Ironic is told of it.
type server struct{ serverlist.Server }

// info is how Ironic reaches the BMC.
func (s *server) info() map[string]any {
	info := map[string]any{}
	set := func(name, text string) {
		if text != "" {
			info[name] = text
		}
	}
	switch s.Driver {
	case "redfish":
		set("redfish_address", s.Redfish())
		set("redfish_username", s.User)
		set("redfish_password", s.Password)
		set("redfish_system_id", s.System)
		if s.VerifyCA == "false" {
			info["redfish_verify_ca"] = false
		} else {
			set("redfish_verify_ca", s.VerifyCA)
		}
	case "ipmi":
		set("ipmi_address", s.Address)
		set("ipmi_username", s.User)
		set("ipmi_password", s.Password)
	}
	set("deploy_kernel", s.Kernel)
	set("deploy_ramdisk", s.Ramdisk)
	return info
}

func (s *server) properties() map[string]any {
	all := map[string]any{}
	for name, value := range map[string]int{"cpus": s.Cores, "memory_mb": s.Memory, "local_gb": s.Disk} {
		if value > 0 {
			all[name] = value
		}
	}
	return all
}

// infoNames are the members of driver_info that a server's description decides about.
var infoNames = []string{
	"deploy_kernel", "deploy_ramdisk", "ipmi_address", "ipmi_password", "ipmi_username",
	"redfish_address", "redfish_password", "redfish_system_id", "redfish_username", "redfish_verify_ca",
}

// changes bring a server that is known to what its description says. Properties that it does not
// have stay, for inspection may have set them.
func (s *server) changes(n *node) (all []map[string]any) {
	if n.Driver != s.Driver {
		all = append(all, add("/driver", s.Driver))
	}
	info := s.info()
	for _, name := range infoNames {
		_, has := n.DriverInfo[name]
		switch value, wanted := info[name]; {
		case wanted: // also where it is there: Ironic does not show passwords
			all = append(all, add("/driver_info/"+name, value))
		case has:
			all = append(all, remove("/driver_info/"+name))
		}
	}
	properties := s.properties()
	for _, name := range []string{"cpus", "memory_mb", "local_gb"} {
		if value, wanted := properties[name]; wanted {
			all = append(all, add("/properties/"+name, value))
		}
	}
	if s.ResourceClass != "" && s.ResourceClass != n.ResourceClass {
		all = append(all, add("/resource_class", s.ResourceClass))
	}
	return all
}

// find finds the server that a machine stands for; nil: none bears its mark, says Ironic, which was
// asked for all.
func (d *Driver) find(ctx context.Context, ref pool.Ref) (*node, error) {
	for _, id := range []string{ref.ExternalID, ref.Name} {
		if id == "" {
			continue
		}
		n, err := d.read(ctx, id)
		if err != nil {
			return nil, err
		}
		if n != nil && n.enrolledAs(ref.ID) {
			return n, nil
		}
	}
	all, err := d.every(ctx, "look for the server that bears the mark "+clean(ref.ID))
	for _, n := range all {
		if err == nil && n.enrolledAs(ref.ID) {
			return d.read(ctx, n.UUID) // with what lists don't have
		}
	}
	return nil, err
}

// lookServer is Look of a machine that is a server.
func (d *Driver) lookServer(ctx context.Context, ref pool.Ref) (pool.Found, error) {
	n, err := d.find(ctx, ref)
	if err != nil {
		return pool.Found{}, fmt.Errorf("looking for server %s: %w", ref.Name, err)
	}
	if n == nil {
		return pool.Found{}, fmt.Errorf("no server of the pool %s bears the mark of machine %s: %w", d.config.Name, ref.Name, pool.ErrGone)
	}
	return n.enrolled(), nil
}

// mayEnroll says why a server of that name can't become the machine's; nil: n, if there is one, may.
func (d *Driver) mayEnroll(n *node, spec pool.Spec, e *enrolment) error {
	switch {
	case n == nil && !d.usable(&node{Name: spec.Name}):
		return fmt.Errorf("the pool %s does not use a server %s: add it to nodes in [[pools]] of the agent's configuration", d.config.Name, spec.Name)
	case n == nil || n.enrolledAs(spec.ID):
		return nil
	case n.extra(extraServer) != "":
		return fmt.Errorf("the server %s is enrolled by workspace %s: %w", n, clean(n.extra(extraServerWorkspace)), pool.ErrForeign)
	case !d.usable(n):
		return fmt.Errorf("the pool %s does not use the server %s: add it to nodes in [[pools]] of the agent's configuration", d.config.Name, n)
	case !e.Adopt:
		return fmt.Errorf("Ironic knows a server %s, and Tendril did not enroll it: write adopt = true to take it over, or choose another name: %w", n, pool.ErrForeign) //nolint:staticcheck // Ironic is a name
	}
	return nil
}

// admitServer is Admit of a machine that is a server.
func (d *Driver) admitServer(ctx context.Context, spec pool.Spec, e *enrolment) error {
	n, err := d.read(ctx, spec.Name)
	if err == nil {
		err = d.mayEnroll(n, spec, e)
	}
	return coded(err)
}

// enroll makes a server known to Ironic and brings it to available: its BMC is verified, its ports
// are set, its hardware is inspected where that is asked for. One that is known is brought on from
// where it is; one that somebody has is not taken out of use.
func (d *Driver) enroll(ctx context.Context, spec pool.Spec, e *enrolment, progress pool.Progress) (pool.Found, error) {
	s, t := e.server(spec.Name), &told{progress: progress}
	progress.Secret(s.Password)
	t.at("enroll", "Enrolling the server", 0)
	n, err := d.registered(ctx, spec, &s, e)
	if err != nil {
		return pool.Found{}, fmt.Errorf("enrolling server %s: %w", spec.Name, err)
	}
	if told, hears := progress.(pool.Beginner); hears {
		began := n.enrolled()
		began.Ready = false
		told.Begun(began)
	}
	if n, err = d.amend(ctx, spec, &s, n, t); err == nil && !n.busy() {
		n, err = d.offer(ctx, s, n, t)
	}
	if err == nil && n.PowerState == "" && !n.busy() { // allocations pass over such a server
		t.progress.Log("Ironic does not know the power state of the server %s, which is switched off", n)
		n, err = d.power(ctx, n, "power off", "power off", false, func(n *node) bool { return n.enrolledAs(spec.ID) && !n.busy() })
	}
	if err != nil {
		return n.enrolled(), fmt.Errorf("enrolling server %s: %w", spec.Name, err)
	}
	if n.busy() {
		t.progress.Log("the server %s is in use (%s), and stays so", n, n.user())
	}
	t.at("available", stageOf("available").Label, 100)
	return n.enrolled(), nil
}

// registered is the server that stands for the machine, made known to Ironic where it is not. It
// bears the mark from its first moment on.
func (d *Driver) registered(ctx context.Context, spec pool.Spec, s *server, e *enrolment) (*node, error) {
	n, err := d.find(ctx, pool.Ref{ID: spec.ID, Name: spec.Name})
	if err != nil || n != nil {
		return n, err
	}
	if n, err = d.read(ctx, spec.Name); err != nil {
		return nil, err
	}
	if err := d.mayEnroll(n, spec, e); err != nil {
		return nil, err
	}
	marks := map[string]any{extraServer: spec.ID, extraServerWorkspace: spec.Workspace}
	if n == nil {
		made := node{}
		err := d.client.call(ctx, "enroll the server", func(ctx context.Context, api *gophercloud.ServiceClient) error {
			body := map[string]any{"name": s.Name, "driver": s.Driver, "driver_info": s.info(), "properties": s.properties(), "extra": marks}
			if s.ResourceClass != "" {
				body["resource_class"] = s.ResourceClass
			}
			_, err := api.Post(ctx, api.ServiceURL("nodes"), body, &made, nil) //nolint:bodyclose // gophercloud closes what it decodes
			return err
		})
		if !is(err, classConflict) {
			return &made, err
		}
		// By this request, whose answer was lost, or by somebody else at the same time.
		if n, err = d.read(ctx, spec.Name); err != nil {
			return nil, err
		}
		if n == nil {
			return nil, fmt.Errorf("Ironic says that a server %s exists, and shows none; deploy again", spec.Name) //nolint:staticcheck // Ironic is a name
		}
		if err := d.mayEnroll(n, spec, e); err != nil || n.enrolledAs(spec.ID) {
			return n, err
		}
	}
	err = d.patch(ctx, n, "write the mark on the server", func(*node) (all []map[string]any) {
		for _, name := range sortedKeys(marks) {
			all = append(all, add("/extra/"+name, marks[name]))
		}
		return all
	})
	if err != nil {
		return nil, err
	}
	return d.read(ctx, n.UUID)
}

// amend brings what Ironic knows of a server to what its description says: driver and BMC,
// properties, class, traits and ports. Of a server that somebody has only what does not touch them
// is changed; where more differs, nothing is.
func (d *Driver) amend(ctx context.Context, spec pool.Spec, s *server, n *node, t *told) (*node, error) {
	n, err := d.follow(ctx, n.UUID, &settings{}, func(n *node) {
		t.at(n.ProvisionState, stageOf(n.ProvisionState).Label, 5)
	}, t.progress, func(n *node) (bool, error) { return stageOf(n.ProvisionState).ends || n.busy(), nil })
	if err != nil {
		return n, err
	}
	ports, err := d.portsOf(ctx, n)
	if err != nil {
		return n, err
	}
	macs := lower(s.MACs)
	newTraits, oldTraits := differ(s.Traits, n.Traits, n.extra(extraServerTraits))
	newMACs, oldMACs := differ(macs, sortedTexts(ports), n.extra(extraServerMACs))
	if n.busy() {
		var stays []string
		for what, differs := range map[string]bool{
			"driver": n.Driver != s.Driver, "resource_class": s.ResourceClass != "" && s.ResourceClass != n.ResourceClass,
			"traits": len(newTraits)+len(oldTraits) > 0, "macs": len(newMACs)+len(oldMACs) > 0,
		} {
			if differs {
				stays = append(stays, what)
			}
		}
		if slices.Sort(stays); len(stays) > 0 {
			return n, fmt.Errorf("the server %s is in use (%s), and %s can't be changed until it is free; nothing was changed", n, n.user(), strings.Join(stays, " and "))
		}
	}
	t.at("bmc", "Setting the server's BMC and properties", 10)
	// Noted before they are set, so that what an interrupted run has set is removed, too.
	if err := d.patch(ctx, n, "set what Ironic knows of the server", func(n *node) []map[string]any {
		return slices.Concat(s.changes(n), noted(n, slices.Concat(s.Traits, oldTraits), slices.Concat(macs, oldMACs)))
	}); err != nil {
		return n, err
	}
	t.at("ports", "Setting the server's ports and traits", 15)
	for _, mac := range newMACs {
		if err := d.addPort(ctx, n, mac); err != nil {
			return n, err
		}
	}
	for _, mac := range oldMACs {
		if err := d.delete(ctx, n, "remove the server's port "+mac, "ports", ports[mac]); err != nil {
			return n, err
		}
	}
	for _, trait := range newTraits {
		err := d.client.change(ctx, "set the server's trait "+trait, n, n.same, func(ctx context.Context, api *gophercloud.ServiceClient) error {
			_, err := api.Put(ctx, api.ServiceURL("nodes", n.UUID, "traits", trait), map[string]any{}, nil, &gophercloud.RequestOpts{OkCodes: []int{http.StatusNoContent}}) //nolint:bodyclose // gophercloud closes it
			return err
		})
		if err != nil {
			return n, err
		}
	}
	for _, trait := range oldTraits {
		if err := d.delete(ctx, n, "remove the server's trait "+trait, "nodes", n.UUID, "traits", trait); err != nil {
			return n, err
		}
	}
	if n, err = d.client.reread(ctx, n); err != nil {
		return n, err
	}
	return n, d.patch(ctx, n, "note the server's ports and traits", func(n *node) []map[string]any { return noted(n, s.Traits, macs) })
}

// reread reads a server that was there a moment ago.
func (c *client) reread(ctx context.Context, n *node) (now *node, err error) {
	err = c.call(ctx, "read the server "+n.String(), func(ctx context.Context, api *gophercloud.ServiceClient) error {
		now, err = c.node(ctx, api, n.UUID)
		return err
	})
	if err != nil {
		return n, err
	}
	return now, nil
}

// differ says which texts are to be added to those that are there, and which of the ones that Tendril
// has noted are to be removed.
func differ(wanted, there []string, note string) (added, removed []string) {
	for _, text := range wanted {
		if !slices.Contains(there, text) && !slices.Contains(added, text) {
			added = append(added, text)
		}
	}
	for _, text := range strings.Fields(note) {
		if slices.Contains(there, text) && !slices.Contains(wanted, text) {
			removed = append(removed, text)
		}
	}
	return added, removed
}

// noted are the changes that note which traits and MAC addresses Tendril has set.
func noted(n *node, traits, macs []string) (all []map[string]any) {
	for name, texts := range map[string][]string{extraServerTraits: traits, extraServerMACs: macs} {
		if text := strings.Join(texts, " "); text != n.extra(name) {
			all = append(all, add("/extra/"+name, text))
		}
	}
	return all
}

func lower(texts []string) (all []string) {
	for _, text := range texts {
		all = append(all, strings.ToLower(text))
	}
	return all
}

func sortedKeys(m map[string]any) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// addPort adds a port to the server.
func (d *Driver) addPort(ctx context.Context, n *node, mac string) error {
	err := d.client.call(ctx, "add the server's port "+mac, func(ctx context.Context, api *gophercloud.ServiceClient) error {
		var made struct {
			UUID string `json:"uuid"`
		}
		_, err := api.Post(ctx, api.ServiceURL("ports"), map[string]any{"node_uuid": n.UUID, "address": mac}, &made, nil) //nolint:bodyclose // gophercloud closes what it decodes
		return err
	})
	if !is(err, classConflict) {
		return err
	}
	// By the same request, whose answer was lost, or another server's.
	if now, err := d.portsOf(ctx, n); err != nil || now[mac] != "" {
		return err
	}
	return fmt.Errorf("another server has a port with the address %s; correct macs, or delete that port (`baremetal port list --address %s`)", mac, mac)
}

// portsOf are the ids of the server's ports by their MAC addresses, in small letters.
func (d *Driver) portsOf(ctx context.Context, n *node) (map[string]string, error) {
	var body struct {
		Ports []struct {
			UUID    string `json:"uuid"`
			Address string `json:"address"`
		} `json:"ports"`
	}
	err := d.client.call(ctx, "read the server's ports", func(ctx context.Context, api *gophercloud.ServiceClient) error {
		return get(ctx, api, api.ServiceURL("ports")+"?"+url.Values{"node": {n.UUID}, "fields": {"uuid,address"}}.Encode(), &body)
	})
	there := map[string]string{}
	for _, p := range body.Ports {
		there[strings.ToLower(p.Address)] = p.UUID
	}
	return there, err
}

// delete removes a server, or something of it, from Ironic. What is gone already is no error.
func (d *Driver) delete(ctx context.Context, n *node, what string, path ...string) error {
	err := d.client.change(ctx, what, n, n.same, func(ctx context.Context, api *gophercloud.ServiceClient) error {
		_, err := api.Delete(ctx, api.ServiceURL(path...), &gophercloud.RequestOpts{OkCodes: []int{http.StatusNoContent}}) //nolint:bodyclose // gophercloud closes it
		return err
	})
	if is(err, classMissing) {
		return nil
	}
	return err
}

// changeServer is Change of a machine that is a server.
func (d *Driver) changeServer(ctx context.Context, ref pool.Ref, spec pool.Spec, e *enrolment, progress pool.Progress) (pool.Found, error) {
	s := e.server(spec.Name)
	progress.Secret(s.Password)
	n, err := d.find(ctx, ref)
	if err == nil && n == nil {
		err = pool.ErrGone
	}
	if err == nil {
		n, err = d.amend(ctx, spec, &s, n, &told{progress: progress})
	}
	if err != nil {
		err = coded(fmt.Errorf("changing server %s: %w", ref.Name, err))
	}
	if n == nil {
		return pool.Found{}, err
	}
	return n.enrolled(), err
}

// removeServer is Destroy of a machine that is a server: Ironic forgets it. One that somebody has is
// not removed.
//
//	available ──manage──► manageable (which no allocation takes) ──► removed
func (d *Driver) removeServer(ctx context.Context, ref pool.Ref, progress pool.Progress) error {
	t := &told{progress: progress}
	t.at("remove", "Removing the server from Ironic", 0)
	n, err := d.find(ctx, ref)
	for asked := 0; err == nil && n != nil; {
		n, err = d.follow(ctx, n.UUID, &settings{}, func(n *node) {
			t.at(n.ProvisionState, stageOf(n.ProvisionState).Label, 10)
		}, progress, func(n *node) (bool, error) { return stageOf(n.ProvisionState).ends || n.busy(), nil })
		switch {
		case is(err, classMissing): // somebody else has removed it
			return nil
		case err != nil:
			return err
		case !n.enrolledAs(ref.ID):
			return nil // another machine's by now
		case n.busy():
			return fmt.Errorf("the server %s is in use, and is not removed from Ironic: %s. Destroy that machine first", n, n.user())
		}
		if n.ProvisionState != "available" || asked == mostDeploys {
			err = d.delete(ctx, n, fmt.Sprintf("remove the server %s from Ironic", n), "nodes", n.UUID)
			break
		}
		asked++
		if err = d.provision(ctx, n, map[string]any{"target": "manage"}); errors.Is(err, errMoved) {
			err = nil
		}
	}
	if err == nil {
		t.at("remove", "Removing the server from Ironic", 100)
	}
	return err
}

// offer brings a server from wherever it is to available.
//
//	enroll ──manage──► verifying ──► manageable ──inspect──► manageable ──provide──► (cleaning) ──► available
func (d *Driver) offer(ctx context.Context, s server, n *node, t *told) (*node, error) {
	inspected := !s.Inspect
	reach := map[string]int{"verifying": 25, "manageable": 40, "inspecting": 45, "inspect wait": 50, "cleaning": 75, "clean wait": 80}
	asked := map[string]int{}
	for {
		var err error
		n, err = d.follow(ctx, n.UUID, &settings{}, func(n *node) {
			t.at(n.ProvisionState, stageOf(n.ProvisionState).Label, reach[n.ProvisionState])
		}, t.progress, func(n *node) (bool, error) { return stageOf(n.ProvisionState).ends, nil })
		if err != nil {
			return n, err
		}
		var target string
		stage := stageOf(n.ProvisionState)
		switch n.ProvisionState {
		case "available":
			t.at("available", stage.Label, 100)
			return n, nil
		case "enroll", "inspect failed", "clean failed":
			if target = "manage"; asked[n.ProvisionState] > 0 {
				f := faultIn(n.LastError)
				err := fmt.Errorf("the server is in the state %s%s. %s; %s", n.ProvisionState, because(n.LastError), f.name, f.does)
				if f.code != "" {
					return n, &pool.CodeError{Code: f.code, Err: err}
				}
				return n, err
			}
			if n.ProvisionState == "clean failed" && n.Maintenance {
				if err := d.maintenance(ctx, n, ""); err != nil {
					return n, err
				}
			}
		case "manageable":
			if target = "provide"; !inspected {
				target, inspected = "inspect", true
			}
		default:
			return n, fmt.Errorf("the server is in the state %s (%s)%s. %s", n.ProvisionState, stage.Label, because(n.LastError), stage.Do)
		}
		if asked[n.ProvisionState]++; asked[n.ProvisionState] > mostDeploys {
			return n, fmt.Errorf("the server stays in the state %s (%s)%s. %s", n.ProvisionState, stage.Label, because(n.LastError), stage.Do)
		}
		if err := d.provision(ctx, n, map[string]any{"target": target}); err != nil && !errors.Is(err, errMoved) {
			return n, err
		}
	}
}
