package ironic

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/provisioner"
)

// node is a server as Ironic has it.
type node struct {
	UUID                 string                     `json:"uuid"`
	Name                 string                     `json:"name"`
	InstanceUUID         string                     `json:"instance_uuid"`
	AllocationUUID       string                     `json:"allocation_uuid"`
	ProvisionState       string                     `json:"provision_state"`
	TargetProvisionState string                     `json:"target_provision_state"`
	PowerState           string                     `json:"power_state"`
	TargetPowerState     string                     `json:"target_power_state"`
	ProvisionUpdatedAt   string                     `json:"provision_updated_at"` // when its state changed last
	Maintenance          bool                       `json:"maintenance"`
	MaintenanceReason    string                     `json:"maintenance_reason"`
	Fault                string                     `json:"fault"`
	LastError            string                     `json:"last_error"`
	Reservation          string                     `json:"reservation"`
	ResourceClass        string                     `json:"resource_class"`
	Traits               []string                   `json:"traits"`
	Properties           map[string]json.RawMessage `json:"properties"`
	Extra                map[string]json.RawMessage `json:"extra"`
	Driver               string                     `json:"driver"`
	DriverInfo           map[string]json.RawMessage `json:"driver_info"` // in lists it is not asked for
	Owner                string                     `json:"owner"`
	Lessee               string                     `json:"lessee"`
	Protected            bool                       `json:"protected"`
	Retired              bool                       `json:"retired"`
	AutomatedClean       *bool                      `json:"automated_clean"`
	DeployStep           map[string]any             `json:"deploy_step"`
	InstanceInfo         map[string]json.RawMessage `json:"instance_info"` // in lists it is not asked for
	Internal             struct {
		Steps []json.RawMessage `json:"deploy_steps"`
		Index *int              `json:"deploy_step_index"`
	} `json:"driver_internal_info"`
}

// What is written into a server's extra. The first is checked with the mark, the others are for
// people and for the one who destroys the machine.
const (
	extraMachine   = "tendril_machine"
	extraName      = "tendril_name"
	extraWorkspace = "tendril_workspace"
	extraAddress   = "tendril_address"
	extraClean     = "tendril_clean"
	extraCleanTime = "tendril_clean_timeout"
	extraPowerTime = "tendril_power_timeout"
	// extraRebuild is there while Tendril has a server rebuilt, see Driver.Rebuild.
	extraRebuild = "tendril_rebuild"
	// extraCleaned is what automated_clean was before Tendril switched it off: "true", "false" or "".
	extraCleaned = "tendril_automated_clean"
	extraPrefix  = "tendril_"
)

// extra is a text of the server's extra.
func (n *node) extra(name string) (text string) {
	_ = json.Unmarshal(n.Extra[name], &text) // what is no text is none of ours
	return text
}

// mostName is how long a node's name in a pool may be, in bytes.
const mostName = 200

// String is what people call it, and the node's name in the pool.
func (n *node) String() string {
	if n.Name != "" && len(n.Name) <= mostName {
		return n.Name
	}
	return n.UUID
}

// steps are how many steps of a deployment are done, and how many there are.
func (n *node) steps() (done, total int) {
	if n.Internal.Index != nil {
		done = *n.Internal.Index
	}
	return min(max(done, 0), len(n.Internal.Steps)), len(n.Internal.Steps)
}

// property is a whole number of the server's properties, which may be a text.
func (n *node) property(name string) int {
	text := strings.Trim(string(n.Properties[name]), `" `)
	number, err := strconv.ParseFloat(text, 64)
	if err != nil || number < 0 || number > 1<<30 {
		return 0
	}
	return int(number)
}

// defaultCores and defaultMemory (MiB) are those of a server whose properties don't say them.
const defaultCores, defaultMemory = 1024, 16 << 20

// size is how many cores and how much memory (MiB) the server has.
func (n *node) size() (cores, memory int) {
	return cmp.Or(n.property("cpus"), defaultCores), cmp.Or(n.property("memory_mb"), defaultMemory)
}

const (
	// classLabel is the label that is a server's class; its others are its traits.
	classLabel = "resource_class"
	// mostTraits is how many Ironic lets a server have.
	mostTraits = 50
)

// labels are those by which templates choose the server.
func (n *node) labels() map[string]string {
	all := map[string]string{}
	if classNames.MatchString(n.ResourceClass) {
		all[classLabel] = n.ResourceClass
	}
	for _, trait := range n.Traits[:min(len(n.Traits), mostTraits)] {
		if traitNames.MatchString(trait) {
			all[trait] = "true"
		}
	}
	return all
}

// does reports whether the server has what a machine asks for, as the database compares it.
func (n *node) does(spec pool.Spec) bool {
	labels := n.labels()
	for name, value := range spec.Labels {
		if labels[name] != value {
			return false
		}
	}
	cores, memory := n.size()
	return spec.Cores <= cores && spec.Memory <= memory
}

// free says why an allocation can't give the server away; "": it can.
func (n *node) free() string {
	s := stageOf(n.ProvisionState)
	switch {
	case n.InstanceUUID != "":
		return "it is in use: " + n.user()
	case n.Maintenance:
		return "it is in maintenance" + because(n.MaintenanceReason) + ". Unset that: `baremetal node maintenance unset " + n.String() + "`"
	case n.ProvisionState != "available" && s.Do != "":
		return fmt.Sprintf("it is in the state %s (%s)%s. %s", n.ProvisionState, s.Label, because(n.LastError), strings.ReplaceAll(s.Do, "SERVER", n.String()))
	case n.ProvisionState != "available":
		return fmt.Sprintf("it is in the state %s (%s)", n.ProvisionState, s.Label)
	case n.Retired:
		return "it is retired"
	case n.PowerState == "":
		return "Ironic does not know its power state, so its BMC does not answer" + because(n.LastError)
	case n.ResourceClass == "":
		return "it has no resource class, by which servers are chosen. Set one: `baremetal node set " + n.String() + " --resource-class CLASS`"
	}
	return ""
}

// user says who has a server that is in use, as far as that is known.
func (n *node) user() string {
	text := "its instance is " + clean(n.InstanceUUID)
	if n.extra(extraMachine) == n.InstanceUUID {
		text = fmt.Sprintf("Tendril's machine %s of workspace %s has it", clean(n.extra(extraName)), clean(n.extra(extraWorkspace)))
	}
	if n.Lessee != "" {
		text += ", leased to project " + clean(n.Lessee)
	}
	return text
}

func because(text string) string {
	if text == "" {
		return ""
	}
	return ": " + strings.TrimSuffix(clean(text), ".")
}

// ours reports whether the server is the machine's: by its mark alone.
func (n *node) ours(id string) bool { return n.InstanceUUID == id && id != "" }

// left reports whether the machine was on the server, which has nobody yet since: it is being
// cleaned, or what Tendril has written to it is still there, the reason of a maintenance at last.
func (n *node) left(id string) bool {
	return n.InstanceUUID == "" && id != "" && (n.extra(extraMachine) == id || n.Maintenance && n.MaintenanceReason == held(id))
}

// same reports whether a server that is read now may still be changed as what it was read as: it has
// the same instance, or the machine was on it and nobody has it since.
func (n *node) same(now *node) bool {
	if mark := n.extra(extraServer); mark != "" && now.extra(extraServer) != mark {
		return false // Ironic has forgotten it meanwhile, and knows it anew
	}
	switch was := now.extra(extraMachine); {
	case now.InstanceUUID != "":
		return now.InstanceUUID == n.InstanceUUID
	case n.InstanceUUID != "":
		return now.left(n.InstanceUUID)
	default: // what Tendril has written may have been taken off
		return was == "" || was == n.extra(extraMachine)
	}
}

// server is what the pool's pages show of it.
func (n *node) server() *pool.Server {
	s := &pool.Server{
		ID: n.UUID, Name: clean(n.Name), ProvisionState: clean(n.ProvisionState), PowerState: clean(n.PowerState), Maintenance: n.Maintenance,
		InstanceUUID: clean(n.InstanceUUID), LastError: clean(n.LastError), Available: n.free() == "", Reason: stageOf(n.ProvisionState).Label,
	}
	if !s.Available {
		switch {
		case n.InstanceUUID == "":
			s.Reason = capital(n.free())
		case n.Maintenance:
			s.Reason += ". It is in maintenance" + because(n.MaintenanceReason)
		}
		if n.Fault != "" {
			s.Reason += ". Ironic reports the fault " + clean(n.Fault)
		}
		if n.InstanceUUID != "" && stageOf(n.ProvisionState).failed {
			s.Reason += because(n.LastError)
		}
	}
	s.Reason = clean(s.Reason)
	s.Health, s.HealthWhy = n.health()
	s.HealthWhy = clean(s.HealthWhy)
	return s
}

func capital(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// fine reports whether a server is deployed and nothing is wrong with it.
func (n *node) fine() bool {
	return slices.Contains(deployed, n.ProvisionState) && !n.Maintenance && n.Fault == "" && !stageOf(n.ProvisionState).failed
}

// found is what is known of a machine.
func (n *node) found() pool.Found {
	f := pool.Found{
		Mark: n.InstanceUUID, ExternalID: n.UUID, Node: n.String(), Name: n.extra(extraName), Status: provisioner.StatusUnknown,
		Ready: slices.Contains(deployed, n.ProvisionState),
	}
	switch {
	case stageOf(n.ProvisionState).failed && !f.Ready:
		f.Status = provisioner.StatusFailed
	case !f.Ready:
		f.Status = provisioner.StatusCreating
	case n.PowerState == "power on":
		f.Status = provisioner.StatusRunning
	case n.PowerState == "power off":
		f.Status = provisioner.StatusStopped
	}
	if address, err := netip.ParseAddr(n.extra(extraAddress)); err == nil {
		f.Addresses = []netip.Addr{address}
	}
	return f
}

// fields are those of a node that are asked for.
func (c *client) fields() string {
	all := "uuid,name,instance_uuid,provision_state,target_provision_state,provision_updated_at,power_state,target_power_state,maintenance,maintenance_reason,fault,last_error,reservation," +
		"resource_class,traits,properties,extra,driver,owner,protected,automated_clean,deploy_step,driver_internal_info"
	if c.agreed() >= withRetired {
		all += ",retired"
	}
	if c.agreed() >= withLessee {
		all += ",lessee"
	}
	return all
}

// A list of nodes is asked for in pages of pageOf nodes, which Ironic may cut otherwise. It has at most
// mostPages pages, mostNodes nodes and mostListed bytes.
const (
	pageOf, mostPages = 200, 50
	mostNodes         = 10_000
	mostListed        = 64 << 20
)

// nodes lists the servers that a query is about.
func (c *client) nodes(ctx context.Context, api *gophercloud.ServiceClient, query url.Values) (all []node, err error) {
	query.Set("fields", c.fields()) // without allocation_uuid: asked for in lists, Ironic 21.4 answers 500
	query.Set("limit", strconv.Itoa(pageOf))
	seen, listed := map[string]bool{}, 0
	for range mostPages {
		// Not by the answer's link to the next page: it has the address that Ironic believes it has, and
		// credentials go to no other than the configured one.
		var body struct {
			Nodes json.RawMessage `json:"nodes"`
			Next  string          `json:"next"`
		}
		if err := get(ctx, api, api.ServiceURL("nodes")+"?"+query.Encode(), &body); err != nil {
			return nil, err
		}
		var page *[]node
		if len(body.Nodes) > 0 {
			if err := json.Unmarshal(body.Nodes, &page); err != nil {
				return nil, err
			}
		}
		if page == nil { // not a list of servers: it does not prove that a server is gone
			return nil, &problem{class: classPage, text: "the answer has no list of nodes"}
		}
		if listed += len(body.Nodes); listed > mostListed {
			return nil, &problem{class: classLarge, text: fmt.Sprintf("Ironic's list of nodes has more than %d MiB", mostListed>>20)}
		}
		if len(all)+len(*page) > mostNodes {
			return nil, &problem{class: classLarge, text: fmt.Sprintf("Ironic's list of nodes has more than %d nodes", mostNodes)}
		}
		for _, n := range *page {
			if !uuids.MatchString(n.UUID) || seen[n.UUID] {
				return nil, &problem{class: classLarge, text: "Ironic's list of nodes repeats itself"}
			}
			seen[n.UUID] = true
			all = append(all, n)
		}
		if body.Next == "" || len(*page) == 0 {
			return all, nil
		}
		query.Set("marker", (*page)[len(*page)-1].UUID)
	}
	return nil, &problem{class: classLarge, text: fmt.Sprintf("Ironic's list of nodes has more than %d pages", mostPages)}
}

var uuids = lazyregexp.New(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// node reads a server by its id or name.
func (c *client) node(ctx context.Context, api *gophercloud.ServiceClient, id string) (*node, error) {
	var n node
	err := get(ctx, api, api.ServiceURL("nodes", url.PathEscape(id))+"?"+url.Values{"fields": {c.fields() + ",allocation_uuid,instance_info,driver_info"}}.Encode(), &n)
	if err == nil && !uuids.MatchString(n.UUID) {
		err = &problem{class: classPage, text: "the answer is about no server"}
	}
	return &n, err
}

// read reads a server by its id or name; nil: there is none.
func (d *Driver) read(ctx context.Context, id string) (n *node, err error) {
	err = d.client.call(ctx, "read the server "+clean(id), func(ctx context.Context, api *gophercloud.ServiceClient) error {
		n, err = d.client.node(ctx, api, id)
		return err
	})
	if is(err, classMissing) {
		return nil, nil
	}
	return n, err
}

// marked finds the server that bears a mark; nil: none does, says Ironic.
func (d *Driver) marked(ctx context.Context, id string) (*node, error) {
	if !uuids.MatchString(id) {
		return nil, fmt.Errorf("%q is no machine's id", clean(id))
	}
	var all []node
	err := d.client.call(ctx, "look for the server whose instance is "+id, func(ctx context.Context, api *gophercloud.ServiceClient) (err error) {
		all, err = d.client.nodes(ctx, api, url.Values{"instance_uuid": {id}})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, n := range all { // one at most: Ironic keeps it unique
		if n.ours(id) {
			return &n, nil
		}
	}
	return nil, nil
}

// Look implements pool.Driver.
func (d *Driver) Look(ctx context.Context, ref pool.Ref) (pool.Found, error) {
	if ref.Server {
		return d.lookServer(ctx, ref)
	}
	n, err := d.marked(ctx, ref.ID)
	switch {
	case err != nil:
		return pool.Found{}, fmt.Errorf("looking for machine %s: %w", ref.Name, err)
	case n != nil:
		return n.found(), nil
	case ref.ExternalID == "":
		return pool.Found{}, fmt.Errorf("no server of the pool %s bears the mark of machine %s: %w", d.config.Name, ref.Name, pool.ErrGone)
	}
	was, err := d.read(ctx, ref.ExternalID)
	switch {
	case err != nil:
		return pool.Found{}, fmt.Errorf("looking for machine %s: %w", ref.Name, err)
	case was != nil && was.InstanceUUID != "":
		return pool.Found{}, fmt.Errorf("the server %s, where machine %s was, is in use by another: %s: %w", was, ref.Name, was.user(), pool.ErrForeign)
	}
	return pool.Found{}, fmt.Errorf("no server of the pool %s bears the mark of machine %s: %w", d.config.Name, ref.Name, pool.ErrGone)
}
