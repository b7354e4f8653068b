// Package localironic runs a real OpenStack Ironic on this machine, as Debian 12 packages it: API and
// conductor in one process, a SQLite database, no sign-in, and fake hardware that walks the real
// states of servers.
//
//	Run ──► Ironic: a directory, a port, a process that can be killed and started again
//	          └─ Enroll: servers that are available after it
//
// Tests use it, by package testkit/ironic, and so does `trellis up --with ironic`, for people who want
// to look. It must not know who uses it, nor any driver.
package localironic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Version is the one of the API that this package's own requests have.
const Version = "1.81"

// Options say how Ironic runs.
type Options struct {
	// Fake are lines of the section [fake], such as "deploy_delay = 2" (seconds).
	Fake string
	// Clean has servers cleaned after each undeployment.
	Clean bool
	// More are further lines of the configuration, sections included.
	More string
	// Users is a file of users and passwords, as htpasswd -B writes it: Ironic asks for them then. The
	// package's own requests are User's.
	Users, User, Password string
}

// Ironic is one that runs.
type Ironic struct {
	// URL is where its API is.
	URL string
	// Dir has all that it keeps.
	Dir string

	options Options
	client  *http.Client
	mu      sync.Mutex
	process *os.Process
	ended   chan struct{} // closed when the process has ended
	guard   io.Closer     // what tells guarded that this process is there
	guarded *exec.Cmd
}

// program is API and conductor in one process.
const program = "/usr/bin/ironic"

// Installed says what to do where there is no Ironic on this machine; nil: there is one.
func Installed() error {
	if _, err := os.Stat(program); err != nil {
		return errors.New("OpenStack Ironic is not installed here; on Debian 12 root installs it with: apt-get install --no-install-recommends ironic-conductor")
	}
	return nil
}

// Run starts an Ironic whose files are in dir. The caller ends it by Kill, also where there is an
// error.
func Run(ctx context.Context, dir string, options Options) (*Ironic, error) {
	if err := Installed(); err != nil {
		return nil, err
	}
	port, err := free()
	if err != nil {
		return nil, err
	}
	i := &Ironic{URL: fmt.Sprintf("http://127.0.0.1:%d", port), Dir: dir, options: options, client: &http.Client{Timeout: time.Minute}}
	for _, each := range []string{"log", "lib", "http", "tftp", "images"} {
		if err := os.MkdirAll(filepath.Join(dir, each), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(i.file("ironic.conf"), []byte(i.configuration(port)), 0o600); err != nil {
		return nil, err
	}
	if out, err := i.command(ctx, "/usr/bin/ironic-dbsync", "--config-file", i.file("ironic.conf"), "create_schema").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make Ironic's database: %w: %s", err, out)
	}
	return i, i.Restart(ctx)
}

// free is a port that nobody listens at. It is none of those from which the kernel takes one for a
// connection: while Ironic is away, a client's would keep it.
func free() (port int, err error) {
	const first, last, tries = 20000, 32000, 100
	for range tries {
		port = first + rand.IntN(last-first)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

func (i *Ironic) file(name string) string { return filepath.Join(i.Dir, name) }

func (i *Ironic) configuration(port int) string {
	strategy := "noauth"
	if i.options.Users != "" {
		strategy = "http_basic\nhttp_basic_auth_user_file = " + i.options.Users
	}
	return fmt.Sprintf(`[DEFAULT]
auth_strategy = %s
enabled_hardware_types = fake-hardware,redfish
enabled_bios_interfaces = no-bios,fake
enabled_boot_interfaces = fake,ipxe,redfish-virtual-media
enabled_console_interfaces = no-console,fake
enabled_deploy_interfaces = fake,direct,ramdisk
enabled_inspect_interfaces = no-inspect,fake,redfish
enabled_management_interfaces = fake,redfish,noop
enabled_network_interfaces = noop
enabled_power_interfaces = fake,redfish
enabled_raid_interfaces = no-raid,fake
enabled_rescue_interfaces = no-rescue,fake
enabled_storage_interfaces = noop,fake
enabled_vendor_interfaces = no-vendor,fake
default_network_interface = noop
rpc_transport = none
state_path = %[2]s/lib
host = localhost
my_ip = 127.0.0.1
use_stderr = true
[database]
connection = sqlite:///%[2]s/ironic.sqlite
[api]
host_ip = 127.0.0.1
port = %[3]d
api_workers = 1
[conductor]
automated_clean = %[4]t
api_url = http://127.0.0.1:%[3]d
heartbeat_interval = 2
sync_power_state_interval = 5
[deploy]
http_root = %[2]s/http
http_url = http://127.0.0.1:1
default_boot_option = local
fast_track = false
[pxe]
tftp_root = %[2]s/tftp
images_path = %[2]s/images
[redfish]
use_swift = false
[fake]
%[5]s
[oslo_messaging_notifications]
driver = noop
[dhcp]
dhcp_provider = none
[service_catalog]
auth_type = none
endpoint_override = http://127.0.0.1:%[3]d
[glance]
auth_type = none
[neutron]
auth_type = none
[swift]
auth_type = none
[inspector]
auth_type = none
%[6]s
`, strategy, i.Dir, port, i.options.Clean, i.options.Fake, i.options.More)
}

// command is a program of Ironic's, which Debian's own Python runs.
func (i *Ironic) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, program, args...)
	c.Dir = i.Dir
	c.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONWARNINGS=ignore", "HOME=" + i.Dir, "LANG=C.UTF-8"}
	return c
}

// Restart starts the process after Kill, and waits until its conductor is alive.
func (i *Ironic) Restart(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	log, err := os.OpenFile(i.file("log/ironic.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	c := i.command(context.WithoutCancel(ctx), program, "--config-file", i.file("ironic.conf"))
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return err
	}
	i.process, i.ended = c.Process, make(chan struct{})
	go func() { // it ends with the process, which Kill ends
		defer close(i.ended)
		_ = c.Wait()
	}()
	// However the tests end, this one's stdin ends then, and it ends Ironic.
	guard := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", "-c", "read -r _; kill -9 "+strconv.Itoa(c.Process.Pid))
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what ends the group of the tests does not end it
	if i.guard, err = guard.StdinPipe(); err != nil {
		return err
	}
	if err := guard.Start(); err != nil {
		return err
	}
	i.guarded = guard
	for {
		var body struct {
			Conductors []struct {
				Alive bool `json:"alive"`
			} `json:"conductors"`
		}
		if err = i.Call(ctx, http.MethodGet, "/v1/conductors", nil, &body); err == nil && len(body.Conductors) > 0 && body.Conductors[0].Alive {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("Ironic does not answer: %w\n%s", err, i.Log())
		case <-i.ended:
			return fmt.Errorf("Ironic has ended:\n%s", i.Log())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Kill ends the process at once, with all that it has started. Restart goes on with what it kept.
func (i *Ironic) Kill() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.process == nil {
		return
	}
	_ = i.process.Kill() // it may have ended
	<-i.ended
	if i.guarded != nil {
		_ = i.guarded.Process.Kill()
		_ = i.guarded.Wait()
		_ = i.guard.Close()
	}
	i.process, i.guarded = nil, nil
}

// Log is the end of what Ironic has logged.
func (i *Ironic) Log() string {
	text, _ := os.ReadFile(i.file("log/ironic.log"))
	return string(text[max(0, len(text)-8<<10):])
}

// Logged reports whether a line of Ironic's log has all of the texts.
func (i *Ironic) Logged(texts ...string) bool {
	log, _ := os.ReadFile(i.file("log/ironic.log"))
	for line := range strings.SplitSeq(string(log), "\n") {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			return true
		}
	}
	return false
}

// Call sends a request of a test's own, as an administrator would; into may be nil.
func (i *Ironic) Call(ctx context.Context, method, path string, body, into any) error {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, i.URL+path, sent)
	if err != nil {
		return err
	}
	r.Header.Set("X-OpenStack-Ironic-API-Version", Version)
	r.Header.Set("Content-Type", "application/json")
	if i.options.User != "" {
		r.SetBasicAuth(i.options.User, i.options.Password)
	}
	resp, err := i.client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= 300:
		return &StatusError{resp.StatusCode, fmt.Sprintf("%s %s: %s %s", method, path, resp.Status, text)}
	case into != nil:
		return json.Unmarshal(text, into)
	}
	return nil
}

// StatusError is an answer that is no success.
type StatusError struct {
	Status int
	text   string
}

func (e *StatusError) Error() string { return e.text }

// Node is what tests read of a server.
type Node struct {
	UUID           string         `json:"uuid"`
	Name           string         `json:"name"`
	InstanceUUID   string         `json:"instance_uuid"`
	AllocationUUID string         `json:"allocation_uuid"`
	ProvisionState string         `json:"provision_state"`
	PowerState     string         `json:"power_state"`
	Maintenance    bool           `json:"maintenance"`
	AutomatedClean *bool          `json:"automated_clean"`
	LastError      string         `json:"last_error"`
	Reservation    string         `json:"reservation"` // the conductor that is at work on it
	Extra          map[string]any `json:"extra"`
	InstanceInfo   map[string]any `json:"instance_info"`
	ResourceClass  string         `json:"resource_class"`
	UpdatedAt      string         `json:"updated_at"`
}

// Node reads a server by its id or name.
func (i *Ironic) Node(ctx context.Context, id string) (n Node, err error) {
	return n, i.Call(ctx, http.MethodGet, "/v1/nodes/"+id, nil, &n)
}

// Nodes reads all servers.
func (i *Ironic) Nodes(ctx context.Context) ([]Node, error) {
	var body struct {
		Nodes []Node `json:"nodes"`
	}
	return body.Nodes, i.Call(ctx, http.MethodGet, "/v1/nodes/detail", nil, &body)
}

// Enroll makes nodes of these names available, of the class "bm" with 8 cores and 16 GiB.
func (i *Ironic) Enroll(ctx context.Context, names ...string) error {
	errs := make([]error, len(names))
	var all sync.WaitGroup
	slots := make(chan struct{}, 4)
	for at, name := range names {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs[at] = i.enroll(ctx, name)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (i *Ironic) enroll(ctx context.Context, name string) error {
	node := map[string]any{
		"name": name, "driver": "fake-hardware", "resource_class": "bm", "rescue_interface": "fake",
		"properties": map[string]any{"cpus": 8, "memory_mb": 16384, "local_gb": 100, "cpu_arch": "x86_64"},
	}
	if err := i.Call(ctx, http.MethodPost, "/v1/nodes", node, nil); err != nil {
		return err
	}
	if err := i.To(ctx, name, "manage", "manageable"); err != nil {
		return err
	}
	// Fake power is as it was set last, and allocations pass over servers that have none.
	if err := i.Power(ctx, name, "power off"); err != nil {
		return err
	}
	return i.To(ctx, name, "provide", "available")
}

// Power switches a server's power, and waits until that is done.
func (i *Ironic) Power(ctx context.Context, id, target string) error {
	err := i.Again(ctx, func() error {
		return i.Call(ctx, http.MethodPut, "/v1/nodes/"+id+"/states/power", map[string]any{"target": target}, nil)
	})
	for err == nil {
		var n Node
		if n, err = i.Node(ctx, id); err == nil && n.PowerState == target {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s has the power %q: %w", id, n.PowerState, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return err
}

// To asks for a change of a server's state, and waits until it is there.
func (i *Ironic) To(ctx context.Context, id, target, state string) error {
	err := i.Again(ctx, func() error {
		return i.Call(ctx, http.MethodPut, "/v1/nodes/"+id+"/states/provision", map[string]any{"target": target}, nil)
	})
	if err != nil {
		return err
	}
	if err := i.Await(ctx, id, state); err != nil {
		return err
	}
	for { // what has brought it there writes a little longer
		n, err := i.Node(ctx, id)
		if err == nil && n.Reservation == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is still at work on %s: %w", n.Reservation, id, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Again does a request again while another one has the server.
func (i *Ironic) Again(ctx context.Context, do func() error) error {
	for {
		err := do()
		var refused *StatusError
		if !errors.As(err, &refused) || refused.Status != http.StatusConflict || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Await waits until a server is in a state.
func (i *Ironic) Await(ctx context.Context, id, state string) error {
	for {
		n, err := i.Node(ctx, id)
		if err == nil && n.ProvisionState == state {
			return nil
		}
		if err == nil && strings.HasSuffix(n.ProvisionState, " failed") {
			return fmt.Errorf("%s is in the state %s: %s", id, n.ProvisionState, n.LastError)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is in the state %q (%w), want %q", id, n.ProvisionState, err, state)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Patch changes what is written on a server, as an administrator would.
func (i *Ironic) Patch(ctx context.Context, id string, changes ...map[string]any) error {
	return i.Again(ctx, func() error { return i.Call(ctx, http.MethodPatch, "/v1/nodes/"+id, changes, nil) })
}
