package ironic

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
)

// Server is one to be enrolled: a BMC, and what Ironic is to know of what it manages.
type Server struct {
	// Name is by what the server is known again.
	Name string
	// Driver is the hardware type: redfish, ipmi, or another that Ironic has.
	Driver string
	// Address is the BMC's, for Redfish with https:// (which may be left out); User and Password
	// sign in there. Password is a secret.
	Address, User, Password string
	// System is the path of the Redfish system where a BMC has several, such as /redfish/v1/Systems/1.
	System string
	// VerifyCA is the file on the conductor with the authority of the BMC's certificate; "false": it
	// is not checked; "": by the conductor's own.
	VerifyCA string
	// MACs are the addresses of its ports.
	MACs []string
	// ResourceClass and Traits are by what it is chosen.
	ResourceClass string
	Traits        []string
	// Cores, Memory (MiB) and Disk (GiB) are its properties; 0: inspection says them, or nobody.
	Cores, Memory, Disk int
	// Kernel and Ramdisk are those that deployments boot; "": the conductor's own.
	Kernel, Ramdisk string
	// Inspect has Ironic read the hardware.
	Inspect bool
}

// columns are those of a list of servers. Each sets something of a Server.
var columns = map[string]func(*Server, string) error{
	"name":           func(s *Server, text string) error { s.Name = text; return nil },
	"driver":         func(s *Server, text string) error { s.Driver = text; return nil },
	"address":        func(s *Server, text string) error { s.Address = text; return nil },
	"user":           func(s *Server, text string) error { s.User = text; return nil },
	"password":       func(s *Server, text string) error { s.Password = text; return nil },
	"system":         func(s *Server, text string) error { s.System = text; return nil },
	"verify_ca":      func(s *Server, text string) error { s.VerifyCA = text; return nil },
	"macs":           func(s *Server, text string) error { s.MACs = strings.Fields(text); return nil },
	"resource_class": func(s *Server, text string) error { s.ResourceClass = text; return nil },
	"traits":         func(s *Server, text string) error { s.Traits = strings.Fields(text); return nil },
	"cores":          func(s *Server, text string) error { return whole(&s.Cores, text) },
	"memory":         func(s *Server, text string) error { return whole(&s.Memory, text) },
	"disk":           func(s *Server, text string) error { return whole(&s.Disk, text) },
	"kernel":         func(s *Server, text string) error { s.Kernel = text; return nil },
	"ramdisk":        func(s *Server, text string) error { s.Ramdisk = text; return nil },
	"inspect": func(s *Server, text string) (err error) {
		if s.Inspect, err = strconv.ParseBool(text); err != nil {
			return errors.New("write true or false")
		}
		return nil
	},
}

func whole(into *int, text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1<<30 {
		return errors.New("write a whole number")
	}
	*into = n
	return nil
}

// mostServers bounds a list.
const mostServers = 500

// ReadServers reads a list in CSV, whose first line names the columns: name, driver and address, and
// as needed user, password, system, verify_ca, macs and traits (with spaces between), resource_class,
// cores, memory (MiB), disk (GiB), kernel, ramdisk and inspect. Errors name the line, and quote no
// cell.
func ReadServers(from io.Reader) (all []Server, err error) {
	reader := csv.NewReader(from)
	reader.TrimLeadingSpace = true
	head, err := reader.Read()
	if err != nil {
		return nil, errors.New("the list of servers has no first line with the names of its columns, such as name,driver,address,user,password,macs,resource_class")
	}
	var known []string
	for name := range columns {
		known = append(known, name)
	}
	slices.Sort(known)
	for i, name := range head {
		head[i] = strings.ToLower(strings.TrimSpace(strings.TrimPrefix(name, "\ufeff")))
		if columns[head[i]] == nil {
			return nil, fmt.Errorf("line 1: unknown column %q%s", clean(head[i]), provision.DidYouMean(head[i], known))
		}
		if slices.Contains(head[:i], head[i]) {
			return nil, fmt.Errorf("line 1: the column %s is there twice", head[i])
		}
	}
	named := map[string]bool{}
	for {
		row, err := reader.Read()
		line, _ := reader.FieldPos(0)
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, errors.New("the list of servers is no CSV: a line has another number of cells than the first, or a quotation mark is missing")
		case len(all) == mostServers:
			return nil, fmt.Errorf("the list has more than %d servers", mostServers)
		}
		var s Server
		for i, cell := range row {
			if cell = strings.TrimSpace(cell); cell == "" {
				continue
			}
			if err := columns[head[i]](&s, cell); err != nil {
				return nil, fmt.Errorf("line %d: %s: %w", line, head[i], err)
			}
		}
		if err := s.check(); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if named[s.Name] {
			return nil, fmt.Errorf("line %d: the server %s is there twice", line, s.Name)
		}
		named[s.Name] = true
		all = append(all, s)
	}
}

// serverNames are what Ironic takes as names: host names.
var serverNames = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)

func (s *Server) check() error {
	switch {
	case !serverNames.MatchString(s.Name):
		return errors.New("name: write a host name of its own")
	case s.Driver == "":
		return errors.New("driver is missing: redfish or ipmi")
	case s.Address == "" && (s.Driver == "redfish" || s.Driver == "ipmi"):
		return errors.New("address is missing: that of the BMC")
	case (s.Kernel == "") != (s.Ramdisk == ""):
		return errors.New("kernel and ramdisk go together")
	case s.ResourceClass != "" && !classNames.MatchString(s.ResourceClass):
		return errors.New("resource_class: write a class as Ironic has it, such as baremetal")
	}
	if s.Driver == "redfish" {
		if u, err := url.Parse(s.redfish()); err != nil || u.Host == "" || u.User != nil {
			return errors.New("address: write https://HOST of the BMC, without user and password")
		}
	}
	for _, mac := range s.MACs {
		if hardware, err := net.ParseMAC(mac); err != nil || len(hardware) != 6 {
			return errors.New("macs: write addresses such as 52:54:00:12:34:56, with spaces between")
		}
	}
	for _, trait := range s.Traits {
		if !traitNames.MatchString(trait) {
			return errors.New("traits: write capital letters, digits and _, such as CUSTOM_GPU, with spaces between")
		}
	}
	return nil
}

func (s *Server) redfish() string {
	if strings.Contains(s.Address, "://") {
		return s.Address
	}
	return "https://" + s.Address
}

// info is how Ironic reaches the BMC.
func (s *Server) info() map[string]any {
	info := map[string]any{}
	set := func(name, text string) {
		if text != "" {
			info[name] = text
		}
	}
	switch s.Driver {
	case "redfish":
		set("redfish_address", s.redfish())
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

func (s *Server) properties() map[string]any {
	all := map[string]any{}
	for name, value := range map[string]int{"cpus": s.Cores, "memory_mb": s.Memory, "local_gb": s.Disk} {
		if value > 0 {
			all[name] = value
		}
	}
	return all
}

// Enroll makes a server known to Ironic and brings it to available: its BMC is verified, its ports
// are set, its hardware is inspected where that is asked for. A server of that name is brought on
// from where it is, with the list's values; one that is in use is left as it is.
func (d *Driver) Enroll(ctx context.Context, server Server, progress pool.Progress) (pool.Server, error) {
	progress.Secret(server.Password)
	if err := server.check(); err != nil {
		return pool.Server{}, fmt.Errorf("enrolling server %s: %w", clean(server.Name), err)
	}
	n, err := d.enroll(ctx, server, &told{progress: progress})
	if err != nil {
		err = coded(fmt.Errorf("enrolling server %s: %w", server.Name, err))
	}
	if n == nil {
		return pool.Server{}, err
	}
	return *n.server(), err
}

func (d *Driver) enroll(ctx context.Context, s Server, t *told) (*node, error) {
	t.at("enroll", "Enrolling the server", 0)
	n, err := d.read(ctx, s.Name)
	if err != nil {
		return n, err
	}
	if n == nil {
		if n, err = d.register(ctx, s); err != nil {
			return n, err
		}
	} else if n.InstanceUUID != "" || slices.Contains(deployed, n.ProvisionState) {
		t.progress.Log("the server %s is in use (%s), and is left as it is", n, n.user())
		return n, nil
	} else if err := d.patch(ctx, n, "set what Ironic knows of the server", s.changes); err != nil {
		return n, err
	}
	t.at("ports", "Setting the server's ports and traits", 15)
	if err := d.ports(ctx, n, s.MACs); err != nil {
		return n, err
	}
	for _, trait := range s.Traits {
		err := d.client.call(ctx, "set the server's trait "+trait, func(ctx context.Context, api *gophercloud.ServiceClient) error {
			_, err := api.Put(ctx, api.ServiceURL("nodes", n.UUID, "traits", trait), map[string]any{}, nil, &gophercloud.RequestOpts{OkCodes: []int{http.StatusNoContent}}) //nolint:bodyclose // gophercloud closes it
			return err
		})
		if err != nil {
			return n, err
		}
	}
	return d.offer(ctx, s, n, t)
}

// register makes a server known. One that is there already, because the answer to this was lost, is
// read.
func (d *Driver) register(ctx context.Context, s Server) (*node, error) {
	var n node
	err := d.client.call(ctx, "enroll the server", func(ctx context.Context, api *gophercloud.ServiceClient) error {
		body := map[string]any{"name": s.Name, "driver": s.Driver, "driver_info": s.info(), "properties": s.properties(), "extra": map[string]any{}}
		if s.ResourceClass != "" {
			body["resource_class"] = s.ResourceClass
		}
		_, err := api.Post(ctx, api.ServiceURL("nodes"), body, &n, nil) //nolint:bodyclose // gophercloud closes what it decodes
		return err
	})
	if is(err, classConflict) {
		return d.read(ctx, s.Name)
	}
	if err != nil {
		return nil, err
	}
	return &n, nil
}

// changes bring a server that is known to what the list says. Values that the list has not stay.
func (s *Server) changes(n *node) (all []map[string]any) {
	if n.Driver != s.Driver {
		all = append(all, add("/driver", s.Driver))
	}
	for _, name := range sortedKeys(s.info()) {
		all = append(all, add("/driver_info/"+name, s.info()[name]))
	}
	for _, name := range sortedKeys(s.properties()) {
		all = append(all, add("/properties/"+name, s.properties()[name]))
	}
	if s.ResourceClass != "" && s.ResourceClass != n.ResourceClass {
		all = append(all, add("/resource_class", s.ResourceClass))
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

// ports adds the ports that the server has not yet.
func (d *Driver) ports(ctx context.Context, n *node, macs []string) error {
	there, err := d.portsOf(ctx, n)
	for _, mac := range macs {
		mac = strings.ToLower(mac)
		if err != nil || there[mac] {
			continue
		}
		there[mac] = true
		err = d.client.call(ctx, "add the server's port "+mac, func(ctx context.Context, api *gophercloud.ServiceClient) error {
			var made struct {
				UUID string `json:"uuid"`
			}
			_, err := api.Post(ctx, api.ServiceURL("ports"), map[string]any{"node_uuid": n.UUID, "address": mac}, &made, nil) //nolint:bodyclose // gophercloud closes what it decodes
			return err
		})
		if is(err, classConflict) { // by the same request, whose answer was lost, or another server's
			if now, look := d.portsOf(ctx, n); look != nil || now[mac] {
				err = look
				continue
			}
			return fmt.Errorf("another server has a port with the address %s; correct the list, or delete that port (`baremetal port list --address %s`)", mac, mac)
		}
	}
	return err
}

// portsOf are the MAC addresses of the server's ports, in small letters.
func (d *Driver) portsOf(ctx context.Context, n *node) (map[string]bool, error) {
	var body struct {
		Ports []struct {
			Address string `json:"address"`
		} `json:"ports"`
	}
	err := d.client.call(ctx, "read the server's ports", func(ctx context.Context, api *gophercloud.ServiceClient) error {
		return get(ctx, api, api.ServiceURL("ports")+"?"+url.Values{"node": {n.UUID}, "fields": {"address"}}.Encode(), &body)
	})
	there := map[string]bool{}
	for _, p := range body.Ports {
		there[strings.ToLower(p.Address)] = true
	}
	return there, err
}

// offer brings a server from wherever it is to available.
//
//	enroll ──manage──► verifying ──► manageable ──inspect──► manageable ──provide──► (cleaning) ──► available
func (d *Driver) offer(ctx context.Context, s Server, n *node, t *told) (*node, error) {
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
		stage := stageOf(n.ProvisionState)
		var target string
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
