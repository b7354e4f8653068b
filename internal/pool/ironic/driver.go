package ironic

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/provisioner"
)

// Driver is a pool of kind ironic.
type Driver struct {
	config pool.Config
	client *client

	listing  sync.Mutex // of Glance's images
	stored   []images.Image
	listedAt time.Time
}

var (
	_ pool.Driver    = (*Driver)(nil)
	_ pool.Detacher  = (*Driver)(nil)
	_ pool.Admitter  = (*Driver)(nil)
	_ pool.Enroller  = (*Driver)(nil)
	_ pool.Rescuer   = (*Driver)(nil)
	_ pool.Rebuilder = (*Driver)(nil)
)

// Open checks a pool's configuration and reads its credentials. It does not connect yet.
func Open(c pool.Config) (*Driver, error) { return open(c, 1) }

// open makes a driver whose waits are pace times as short.
func open(c pool.Config, pace float64) (*Driver, error) {
	cl, err := newClient(c, pace)
	if err != nil {
		return nil, fmt.Errorf("pool %s: %w", c.Name, err)
	}
	return &Driver{config: c, client: cl}, nil
}

// Close implements pool.Driver: it ends idle connections.
func (d *Driver) Close() error {
	d.client.http.CloseIdleConnections()
	return nil
}

// Detaches implements pool.Detacher: Ironic deploys a server by itself.
func (d *Driver) Detaches() bool { return true }

// Settings implements pool.Driver.
func (d *Driver) Settings(raw json.RawMessage) error {
	_, err := parse(raw)
	return err
}

// usable reports whether the pool's operator lets machines be on a server.
func (d *Driver) usable(n *node) bool {
	return len(d.config.Nodes) == 0 || slices.Contains(d.config.Nodes, n.Name) || slices.Contains(d.config.Nodes, n.UUID)
}

// all lists the pool's servers by name.
func (d *Driver) all(ctx context.Context) (all []node, err error) {
	err = d.client.once(ctx, "list the servers", func(ctx context.Context, api *gophercloud.ServiceClient) (err error) {
		all, err = d.client.nodes(ctx, api, url.Values{})
		return err
	})
	all = slices.DeleteFunc(all, func(n node) bool { return !d.usable(&n) })
	slices.SortFunc(all, func(a, b node) int { return cmp.Compare(a.String(), b.String()) })
	return all, err
}

// every lists all servers of Ironic's, those that the pool may not use as well. It is asked until it
// answers.
func (d *Driver) every(ctx context.Context, what string) (all []node, err error) {
	err = d.client.call(ctx, what, func(ctx context.Context, api *gophercloud.ServiceClient) (err error) {
		all, err = d.client.nodes(ctx, api, url.Values{})
		return err
	})
	return all, err
}

// List implements pool.Driver: each server is a node.
func (d *Driver) List(ctx context.Context) (found pool.Inventory, err error) {
	servers, err := d.all(ctx)
	if err != nil {
		return found, err
	}
	images, err := d.listed(ctx)
	if err != nil {
		return found, err
	}
	for _, n := range servers {
		one := pool.Node{
			Name: n.String(), Images: images, Server: n.server(), Labels: n.labels(), Online: n.free() == "" || n.extra(extraMachine) == n.InstanceUUID && n.InstanceUUID != "" && n.fine(),
		}
		one.Cores, one.Memory = n.size()
		if n.InstanceUUID != "" {
			one.CoresUsed, one.MemoryUsed = 1, 1
		}
		if disk := n.property("local_gb"); disk > 0 {
			one.Storages = []pool.Storage{{Name: "local", Size: disk, Free: disk}}
		}
		found.Nodes = append(found.Nodes, one)
		if address := n.found().Addresses; n.InstanceUUID != "" {
			found.Addresses = append(found.Addresses, address...)
		}
	}
	return found, nil
}

// Admit implements pool.Admitter.
func (d *Driver) Admit(ctx context.Context, spec pool.Spec) (string, error) {
	s, err := parse(spec.Settings)
	if err != nil {
		return "", err
	}
	if s.Enroll != nil {
		return "", d.admitServer(ctx, spec, s.Enroll)
	}
	if spec.Image == "" {
		return "", errors.New("it needs an image")
	}
	if _, err := d.image(ctx, spec.Image); err != nil {
		return "", coded(err)
	}
	if err := d.versionFor(&s); err != nil {
		return "", err
	}
	if spec.Node == "" {
		return "", nil
	}
	n, err := d.read(ctx, spec.Node)
	switch {
	case err != nil:
		return "", coded(err)
	case n == nil || !d.usable(n):
		return "", notFound(spec.Node, d.config.Name)
	case n.InstanceUUID == spec.ID && spec.ID != "":
		return n.String(), nil
	}
	if why := n.free(); why != "" {
		return "", notAvailable(n, why)
	}
	return n.String(), nil
}

// versionFor says what of the settings needs a newer Ironic.
func (d *Driver) versionFor(s *settings) error {
	if v := d.client.agreed(); len(s.steps()) > 0 && v != 0 && v < withDeploySteps {
		return fmt.Errorf("bios, raid and deploy_steps need Ironic's API 1.%d, and this one has 1.%d; leave them out, or upgrade Ironic", withDeploySteps, v)
	}
	return nil
}

func notFound(server, of string) error {
	return &pool.CodeError{Code: provision.CodeServerNotFound, Err: fmt.Errorf("Server %s not found in the pool %s; `baremetal node list` shows those that there are", clean(server), of)} //nolint:staticcheck // the words of the REST API, which hands them on
}

func notAvailable(n *node, why string) error {
	return &pool.CodeError{Code: provision.CodeServerNotAvailable, Err: fmt.Errorf("Server %s is not available for provisioning: %s", n, why)} //nolint:staticcheck // the words of the REST API, which hands them on
}

// coded gives an error the code of a pool that can't be reached, if it is that.
func coded(err error) error {
	if _, has := errors.AsType[*pool.CodeError](err); err == nil || has || !errors.Is(err, pool.ErrUnreachable) {
		return err
	}
	return &pool.CodeError{Code: provision.CodePoolUnreachable, Err: err}
}

// Change implements pool.Driver. A machine on a server is as large as that is; a machine that is a
// server gets another BMC, other ports and so on.
func (d *Driver) Change(ctx context.Context, ref pool.Ref, spec pool.Spec, progress pool.Progress) (pool.Found, error) {
	if !ref.Server {
		return d.Look(ctx, ref)
	}
	s, err := parse(spec.Settings)
	if err != nil {
		return pool.Found{}, err
	}
	return d.changeServer(ctx, ref, spec, s.Enroll, progress)
}

// Exec implements pool.Driver: servers have no guest agent.
func (d *Driver) Exec(context.Context, pool.Ref, string, pool.Progress) error { return pool.ErrNoExec }

// Login implements pool.Driver. The server's host key is the one that its config drive gives it.
func (d *Driver) Login(_ context.Context, ref pool.Ref, init pool.Init) (pool.Login, error) {
	if init.Keys == nil {
		return pool.Login{}, fmt.Errorf("machine %s was made without keys for this: %w", ref.Name, pool.ErrNoSSH)
	}
	return pool.Login{User: init.User, Key: init.Keys.Login, HostKeys: []string{init.Keys.Public(init.Keys.Host)}}, nil
}

// told tells how far something is. What it says never goes back.
type told struct {
	progress pool.Progress
	reached  int
	state    string
	step     string
	back     bool // the server has called back
}

// at tells of a stage.
func (t *told) at(id, label string, percent int) {
	t.reached = max(t.reached, percent)
	t.progress.Step(id, label, t.reached)
}

// of tells of a server's state, if it is another one than before. share is of all of it that a
// deployment is.
func (t *told) of(n *node) {
	if n.ProvisionState == "wait call-back" {
		t.state, t.back = n.ProvisionState, false
	} else if t.state == "wait call-back" {
		t.back = true
	}
	s := stageOf(n.ProvisionState)
	t.state = n.ProvisionState
	t.at(n.ProvisionState, s.Label, percent(n, t.back))
	if name, _ := n.DeployStep["step"].(string); name != "" && name != t.step {
		t.step = name
		of, _ := n.DeployStep["interface"].(string)
		t.progress.Log("step %s of %s", clean(name), clean(of))
	}
}

// follow reads a server until done says so. A server that stays in one state for longer than its
// limit is an error, and so is one that is given to somebody else.
func (d *Driver) follow(ctx context.Context, id string, s *settings, tell func(*node), progress pool.Progress, done func(*node) (bool, error)) (n *node, err error) {
	state, since := "", time.Now()
	for {
		err := d.client.patient(ctx, "ask how the server is", d.client.scaled(awayPatience), func(err error) {
			progress.Log("Ironic does not answer, and is asked again: %v", err)
		}, nil, func(ctx context.Context, api *gophercloud.ServiceClient) (err error) {
			n, err = d.client.node(ctx, api, id)
			return err
		})
		if err != nil {
			return n, err
		}
		if n.ProvisionState != state {
			state, since = n.ProvisionState, time.Now()
		}
		if over, err := done(n); over || err != nil {
			return n, err
		}
		tell(n)
		in := time.Since(since)
		if limit := s.limit(stageOf(state)); limit > 0 && in > d.client.scaled(limit) {
			return n, fmt.Errorf("the server %s has been in the state %s (%s) for %s, which is the limit%s. Ironic goes on with it: the server's console shows what it does", n, state, stageOf(state).Label, limit, because(n.LastError))
		}
		if err := d.pause(ctx, in); err != nil {
			return n, err
		}
	}
}

// The time between two looks at a server: an eighth of how long it has been as it is.
const soonest, latest = 50 * time.Millisecond, 5 * time.Second

func (d *Driver) pause(ctx context.Context, in time.Duration) error {
	wait := time.NewTimer(min(max(in/8, soonest), latest))
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-wait.C:
		return nil
	}
}

// patch changes what is written on a server, by what is to be changed of it as it is. Where something
// is gone by now that was to be removed, most often by the same request whose answer was lost, the
// server is read again. Ironic takes no "test" in a patch, by which it could look at the instance itself.
func (d *Driver) patch(ctx context.Context, n *node, what string, changesOf func(*node) []map[string]any) error {
	for tries := 0; ; tries++ {
		changes := changesOf(n)
		if len(changes) == 0 {
			return nil
		}
		err := d.client.change(ctx, what, n, n.same, func(ctx context.Context, api *gophercloud.ServiceClient) error {
			var now node                                                                                                            // a page with the status 200 is no answer
			_, err := api.Patch(ctx, api.ServiceURL("nodes", n.UUID), changes, &now, &gophercloud.RequestOpts{OkCodes: []int{200}}) //nolint:bodyclose // gophercloud closes it
			if err == nil && now.UUID != n.UUID {
				err = &problem{class: classPage, text: "the answer is about no server"}
			}
			return err
		})
		if p, has := errors.AsType[*problem](err); !has || p.class != classRefused || !strings.Contains(p.text, "non-existent object") || tries == mostPatches {
			return err
		}
		again, err := d.read(ctx, n.UUID)
		if err != nil || again == nil {
			return err
		}
		if !n.same(again) { // what is written on it is theirs
			return fmt.Errorf("%s: %w", what, foreign(again))
		}
		n = again
	}
}

// mostPatches bounds how often a change is worked out again.
const mostPatches = 5

func add(path string, value any) map[string]any {
	return map[string]any{"op": "add", "path": path, "value": value}
}

func remove(path string) map[string]any { return map[string]any{"op": "remove", "path": path} }

// provision asks for a change of a server's state. Where the server is in another state by now, or
// somebody else's, that is errMoved: the caller looks again.
func (d *Driver) provision(ctx context.Context, n *node, request map[string]any) error {
	target := request["target"]
	still := func(now *node) bool { return n.same(now) && now.InstanceUUID == n.InstanceUUID }
	err := d.client.change(ctx, fmt.Sprintf("ask for the server %s to become %s", n, target), n, still, func(ctx context.Context, api *gophercloud.ServiceClient) error {
		_, err := api.Put(ctx, api.ServiceURL("nodes", n.UUID, "states", "provision"), request, nil, &gophercloud.RequestOpts{OkCodes: []int{202}}) //nolint:bodyclose // gophercloud closes it
		return err
	})
	if p, has := errors.AsType[*problem](err); has && p.class == classRefused && wrongState(p.text) || errors.Is(err, pool.ErrForeign) {
		return errMoved
	}
	return err
}

// errMoved says that a server was in another state than it was seen in.
var errMoved = errors.New("the server's state has changed meanwhile")

func wrongState(text string) bool {
	return strings.Contains(text, "can not be performed on node") || strings.Contains(text, "while it is in state") || strings.Contains(text, "invalid state transition")
}

// Power implements pool.Driver. What is soft is given softTime, and is done hard then.
func (d *Driver) Power(ctx context.Context, ref pool.Ref, action provisioner.PowerAction, progress pool.Progress) (pool.Found, error) {
	n, mine, err := d.switched(ctx, ref)
	if err == nil && n == nil {
		err = pool.ErrGone
	}
	if err == nil && ref.Server && n.busy() {
		err = fmt.Errorf("the server %s is in use: %s. Switch that machine", n, n.user())
	}
	found := (*node).found
	if ref.Server {
		found = (*node).enrolled
	} else if err == nil && !slices.Contains(deployed, n.ProvisionState) {
		err = fmt.Errorf("the server %s is in the state %s (%s), so there is no machine to %s", n, n.ProvisionState, stageOf(n.ProvisionState).Label, action)
	}
	if err != nil {
		return pool.Found{}, fmt.Errorf("%s machine %s: %w", action, ref.Name, err)
	}
	progress.Step("power", "Switching the server's power", 0)
	var targets []string
	wanted := "power on"
	switch {
	case action == provisioner.PowerStop:
		targets, wanted = []string{"soft power off", "power off"}, "power off"
	case action == provisioner.PowerRestart && n.PowerState == "power on":
		targets = []string{"soft rebooting", "rebooting"}
	default:
		targets = []string{"power on"}
	}
	if n.PowerState == wanted && action != provisioner.PowerRestart {
		progress.Step("power", "Switching the server's power", 100)
		return found(n), nil
	}
	for i, target := range targets {
		n, err = d.power(ctx, n, target, wanted, i < len(targets)-1, mine)
		if err == nil {
			progress.Step("power", "Switching the server's power", 100)
			return found(n), nil
		}
		if i < len(targets)-1 && ctx.Err() == nil {
			progress.Log("the server did not do %q: %v; it is done without asking the operating system", target, err)
		}
	}
	return found(n), fmt.Errorf("%s machine %s: %w", action, ref.Name, err)
}

// switched is the server whose power is to be switched, nil if there is none, and by what it is
// known that it still is that one.
func (d *Driver) switched(ctx context.Context, ref pool.Ref) (n *node, mine func(*node) bool, err error) {
	if ref.Server {
		n, err = d.find(ctx, ref)
		return n, func(n *node) bool { return n.enrolledAs(ref.ID) && !n.busy() }, err
	}
	n, err = d.marked(ctx, ref.ID)
	return n, func(n *node) bool { return n.ours(ref.ID) }, err
}

// softTime is how long an operating system may take to shut down.
const softTime = 3 * time.Minute

// errEnded says that the conductor ended before it had switched the power.
var errEnded = errors.New("the conductor ended")

// mostSwitches is how often the power is asked for where that is why.
const mostSwitches = 3

// power has a server's power switched, and waits until it is as wanted.
func (d *Driver) power(ctx context.Context, n *node, target, wanted string, soft bool, mine func(*node) bool) (*node, error) {
	for try := 1; ; try++ {
		now, err := d.powerOnce(ctx, n, target, wanted, soft, mine)
		if try == mostSwitches || !errors.Is(err, errEnded) {
			return now, err
		}
		n = now
	}
}

func (d *Driver) powerOnce(ctx context.Context, n *node, target, wanted string, soft bool, mine func(*node) bool) (*node, error) {
	request := map[string]any{"target": target}
	own := settings{PowerTimeout: n.extra(extraPowerTime)}
	limit := d.client.scaled(own.limit(stage{limit: powerLimit}))
	if soft {
		limit = min(limit, d.client.scaled(softTime))
		request["timeout"] = max(int(limit/time.Second), 1)
	}
	before := n.LastError
	err := d.client.change(ctx, fmt.Sprintf("ask for %q of the server %s", target, n), n, mine, func(ctx context.Context, api *gophercloud.ServiceClient) error {
		_, err := api.Put(ctx, api.ServiceURL("nodes", n.UUID, "states", "power"), request, nil, &gophercloud.RequestOpts{OkCodes: []int{202}}) //nolint:bodyclose // gophercloud closes it
		return err
	})
	if err != nil {
		return n, err
	}
	began := time.Now()
	for {
		now, err := d.read(ctx, n.UUID)
		switch {
		case err != nil:
			return n, err
		case now == nil || !mine(now):
			return n, fmt.Errorf("the server %s is no longer this machine's: %w", n, pool.ErrForeign)
		case now.TargetPowerState == "" && now.PowerState == wanted:
			return now, nil
		case now.TargetPowerState == "" && now.LastError != "" && now.LastError != before:
			fault := faultIn(now.LastError)
			err := fmt.Errorf("Ironic could not do it: %s. %s", clean(now.LastError), capital(fault.does)) //nolint:staticcheck // Ironic is a name
			if fault.again {
				err = fmt.Errorf("%w (%w)", err, errEnded)
			}
			return now, err
		case time.Since(began) > limit+latest:
			return now, fmt.Errorf("the power of the server %s is %q after %s", n, now.PowerState, limit)
		}
		if err := d.pause(ctx, time.Since(began)); err != nil {
			return now, err
		}
	}
}

// maintenance sets a server's maintenance with a reason; "" ends it.
func (d *Driver) maintenance(ctx context.Context, n *node, reason string) error {
	return d.client.change(ctx, "set the maintenance of the server "+n.String(), n, n.same, func(ctx context.Context, api *gophercloud.ServiceClient) error {
		options := &gophercloud.RequestOpts{OkCodes: []int{202}}
		address := api.ServiceURL("nodes", n.UUID, "maintenance")
		if reason == "" {
			_, err := api.Delete(ctx, address, options) //nolint:bodyclose // gophercloud closes it
			return err
		}
		_, err := api.Put(ctx, address, map[string]string{"reason": reason}, nil, options) //nolint:bodyclose // gophercloud closes it
		return err
	})
}
