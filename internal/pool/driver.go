package pool

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/provisioner"
)

// Driver reaches one pool. Its methods may be called at the same time, and end soon after
// their context does. Errors that it has no name for below are about the request; their text
// is for people: what was tried, on which machine, what the hypervisor answered, what to do.
type Driver interface {
	// List says what the pool has. It changes nothing.
	List(ctx context.Context) (Inventory, error)
	// Look finds a machine by its mark. It is the one way to know that a machine is gone:
	// ErrGone is returned only by a driver that could ask for all machines of the pool.
	Look(ctx context.Context, ref Ref) (Found, error)
	// Create makes a machine, starts it and waits until it is Ready as its settings say. What
	// it creates first is marked, so that after a crash at any moment Look finds it. It
	// returns what it found last, also with an error: of what may exist, all that is known.
	Create(ctx context.Context, spec Spec, progress Progress) (Found, error)
	// Change gives a machine that exists other sizes or settings, without making it again.
	// Changes says which it can.
	Change(ctx context.Context, ref Ref, spec Spec, progress Progress) (Found, error)
	// Power starts, stops or restarts a machine, and waits until that is done.
	Power(ctx context.Context, ref Ref, action provisioner.PowerAction, progress Progress) (Found, error)
	// Destroy removes a machine with its disks. One that is gone already is no error.
	Destroy(ctx context.Context, ref Ref, progress Progress) error
	// Exec runs a shell command in a machine, by its guest agent, and has what it prints told.
	// The command's own failure is an *ExitError; ErrNoExec says that the driver has no way.
	Exec(ctx context.Context, ref Ref, command string, progress Progress) error
	// Login says how commands run in a machine over SSH: who signs in, and by which host key it
	// is known. ErrNoSSH says that the driver can't know that.
	Login(ctx context.Context, ref Ref, init Init) (Login, error)
	// Check says what an operator should know of the pool: whether it can be reached and by
	// what identity, which privileges are missing, what its storages and images can.
	Check(ctx context.Context) []Finding
	// Settings checks the template's block of the pool's kind, before anything is done; the
	// raw one is null where the template has none.
	Settings(raw json.RawMessage) error
	// Close ends connections.
	Close() error
}

// Importer is a Driver that can take over a machine which exists, by its id.
type Importer interface {
	// Import marks a machine, so that it is Tendril's from now on, and changes nothing else of it.
	// One that bears the mark already is no error, one with another mark is ErrForeign.
	Import(ctx context.Context, node string, id int, spec Spec) (Found, error)
}

// Rescuer is a Driver that can boot a machine from a rescue system, which leaves its disks as they are.
type Rescuer interface {
	// Rescue boots the rescue system, in which the user rescue signs in with the password. A machine
	// that is in rescue already gets the new password.
	Rescue(ctx context.Context, ref Ref, password string, progress Progress) (Found, error)
	// Unrescue boots the machine's own system again. One that is not in rescue is no error.
	Unrescue(ctx context.Context, ref Ref, progress Progress) (Found, error)
}

// Rebuilder is a Driver that can make a machine again on the node where it is, so that nobody else
// gets that node meanwhile.
type Rebuilder interface {
	// Rebuild begins that, as the spec wants the machine; a following Create goes on with it. begun
	// false without an error says that it can't be done so: Destroy and Create do it.
	Rebuild(ctx context.Context, ref Ref, spec Spec, progress Progress) (begun bool, err error)
}

// Errors of drivers. They are wrapped.
var (
	// ErrGone says that no machine of the pool bears the mark.
	ErrGone = errors.New("the machine does not exist")
	// ErrForeign says that what is at a machine's id or name bears another mark or none. It
	// is never touched.
	ErrForeign = errors.New("another machine is there, which Tendril did not make")
	// ErrUnreachable says that the pool could not be asked: nothing is known.
	ErrUnreachable = errors.New("the pool can't be reached")
	// ErrNoExec says that the driver runs no commands in machines.
	ErrNoExec = errors.New("this kind of pool runs no commands in machines")
	// ErrNoSSH says that nobody could be sure over SSH that it is the machine that answers.
	ErrNoSSH = errors.New("no host key of the machine can be known")
)

// CodeError is an error that a run ends with by a code of its own, for programs.
type CodeError struct {
	Code provision.Code
	Err  error
}

func (e *CodeError) Error() string { return e.Err.Error() }
func (e *CodeError) Unwrap() error { return e.Err }

// Detacher is a Driver whose machines are made by themselves once their making has begun: what
// waits for one may end, and another Create goes on with it.
type Detacher interface {
	// Detaches reports whether that is so.
	Detaches() bool
}

// Admitter is a Driver that knows before a machine is placed what would keep it from being made,
// such as an image that does not exist.
type Admitter interface {
	// Admit returns an error, a CodeError where there is a code. The spec has no place yet; its Node
	// is set where the template names the one that will do. What it returns is that node's name in
	// the pool; "": the template names none.
	Admit(ctx context.Context, spec Spec) (node string, err error)
}

// Enroller is a Driver for which a machine can be a server that is made known to the pool, and from
// then on others are made on. Such a machine needs no place, image, cores or memory: it is on no node,
// for it is one.
type Enroller interface {
	// Enrolls reports whether a machine's settings say that it is such a server.
	Enrolls(settings json.RawMessage) bool
	// Remembered is the settings with what they leave out and only the record has: a secret that was
	// given once. The error says what must be given again.
	Remembered(settings, recorded json.RawMessage) (json.RawMessage, error)
	// Secrets are the texts in the settings that nobody may read.
	Secrets(settings json.RawMessage) []string
}

// EnrollSetting is the setting of an Enroller's block that describes the server, and EnrollSecret the
// member of it that nobody may read.
const (
	EnrollSetting = "enroll"
	EnrollSecret  = "password"
)

// Beginner is a Progress that also hears of a machine as soon as it bears its mark, long before the
// machine is ready.
type Beginner interface {
	Begun(found Found)
}

// ExitError is how a command in a machine ended.
type ExitError struct{ Status int }

func (e *ExitError) Error() string { return "it ended with status " + strconv.Itoa(e.Status) }

// Ref says which machine is meant.
type Ref struct {
	// ID is its mark. Nothing with another one is touched.
	ID   string
	Name string
	// ExternalID and Node are where it was when it was seen last; "" where that is not known.
	ExternalID, Node string
	// Server says that the machine is a server, as Enroller has it.
	Server bool
}

// Spec is a machine as it should be.
type Spec struct {
	// ID marks the machine: a UUID, written on what is created.
	ID   string
	Name string // a DNS label
	// Workspace is for people who look at the hypervisor.
	Workspace string
	// Node was chosen by the database, as was VMID (0: the pool has no range of them) and
	// Address (invalid: the machine gets one itself).
	Node    string
	VMID    int
	Address netip.Prefix
	// Named says that Node is the one that the template names: no other one will do.
	Named bool
	// Gateway and Nameservers are the pool's; invalid and empty where it has none.
	Gateway     netip.Addr
	Nameservers []netip.Addr
	// Image is the pool's own name of it.
	Image  string
	Cores  int
	Memory int // MiB
	Disk   int // GiB; 0: as large as the image
	Labels map[string]string
	Init   Init
	// Settings are the template's block of the pool's kind; null where there is none.
	Settings json.RawMessage
}

// Init is what a machine is told at its first start (cloud-init).
type Init struct {
	User     string   `json:"user,omitempty"`
	Password string   `json:"password,omitempty"` // a secret
	SSHKeys  []string `json:"ssh_keys,omitempty"`
	// UserData is a cloud-config document, added to what the rest comes to; it may hold secrets.
	UserData string `json:"user_data,omitempty"`
	// Keys are made by Tendril for the time of the machine's making; nil: none. The driver adds
	// the login key to SSHKeys, and gives the machine the host key if it can.
	Keys *Keys `json:"-"`
	// Wait says until when a machine is not ready: "address" (the default where it gets one
	// itself), "agent" (its guest agent answers), "none" (it is started).
	Wait string `json:"wait,omitempty"`
}

// Authorized are the public keys by which people, and Tendril itself, sign in.
func (i Init) Authorized() []string {
	if i.Keys == nil {
		return i.SSHKeys
	}
	return append(slices.Clone(i.SSHKeys), i.Keys.Public(i.Keys.Login))
}

// Found is a machine as the hypervisor shows it.
type Found struct {
	// Mark is the machine's id as it stands there.
	Mark       string
	ExternalID string
	Name       string
	Node       string
	Status     provisioner.MachineStatus
	// Addresses are without those of its own loopback and link.
	Addresses     []netip.Addr
	Cores, Memory int // as it is set now, the memory in MiB
	Disk          int // GiB
	// Ready says that its making was completed, start included.
	Ready bool
}

// Inventory is what a pool has, as the hypervisors show it.
type Inventory struct {
	Nodes []Node
	// VMIDs and Addresses are those in use, by Tendril's machines or others'.
	VMIDs     []int
	Addresses []netip.Addr
}

// Node is one host of a pool.
type Node struct {
	Name   string
	Online bool
	Cores  int
	Memory int // MiB
	// CoresUsed and MemoryUsed are shares of all, 0 to 1.
	CoresUsed, MemoryUsed float64
	Images                []Image
	Storages              []Storage
	Labels                map[string]string
	// Server is what is known of a bare-metal server; nil for hypervisors.
	Server *Server
}

// Server is a bare-metal server, as a pool of kind ironic has it.
type Server struct {
	ID             string `json:"id"`
	Name           string `json:"name,omitempty"`
	ProvisionState string `json:"provision_state"`
	PowerState     string `json:"power_state,omitempty"`
	Maintenance    bool   `json:"maintenance"`
	// Reason says in a sentence what its state means, and what is wrong with it.
	Reason string `json:"reason"`
	// Available says that a machine can be made of it now.
	Available bool `json:"available"`
	// InstanceUUID is the mark of who has it; "": nobody.
	InstanceUUID string `json:"instance_uuid,omitempty"`
	// LastError is Ironic's own, as it says it.
	LastError string `json:"last_error,omitempty"`
	// Health is how the server is, and HealthWhy says that in a sentence.
	Health    provision.ServerHealth `json:"health"`
	HealthWhy string                 `json:"health_why"`
}

// Image is what machines are made from.
type Image struct {
	// Name is what templates say. ID is the hypervisor's own.
	Name string
	ID   string
	// CloudInit and Agent say what is known of its contents.
	CloudInit, Agent bool
}

// Storage is where disks are.
type Storage struct {
	Name string
	// Free and Size are in GiB.
	Free, Size int
	// Linked says that it can make a linked clone, Shared that all nodes see it.
	Linked, Shared bool
}

// Finding is one line of what Check has to say.
type Finding struct {
	// What was checked, such as "token".
	What string
	// Problem is "" where it is as it should be; Warning says that machines can be made all
	// the same.
	Problem string
	Warning bool
	// Detail says what was found, or what to do.
	Detail string
}

// Progress is told how a machine's making goes. Its methods may be called at any time.
type Progress interface {
	// Step says which stage has begun, with what of it is done, in percent: a short id and
	// what people read, such as "clone", "Cloning the image".
	Step(id, label string, percent int)
	// Log adds a line to the run's log.
	Log(format string, args ...any)
	// Secret masks a text in the log. Call it before anything can print the text.
	Secret(text string)
}

// Config is one [[pools]] of an agent's configuration, as a driver gets it.
type Config struct {
	Name string
	Kind string // proxmox, libvirt, ironic or static
	URL  string
	// Token, CA, Cert and Key are what TokenFile, CAFile, CertFile and KeyFile hold, as it was
	// read when the run began: a run's process can't read the files. What is "" is read from the
	// file, an absolute path, if there is one.
	Token, CA, Cert, Key string

	TokenFile string
	CAFile    string
	// Fingerprint is the SHA-256 of the server's certificate, in hexadecimal digits.
	Fingerprint string
	// Insecure says that the server's certificate is not checked.
	Insecure bool
	// Storages, Networks (bridges) and Nodes are those that may be used, the first one where a
	// template says nothing; none: all, and the hypervisor's default.
	Storages, Networks, Nodes []string
	// ResourcePool is where Proxmox puts machines.
	ResourcePool string
	// ImportIDs are the first and the last id of machines that may be imported; nil: none.
	ImportIDs []int
	// Snippets are the files on Proxmox's nodes that a template may have cloud-init read. They
	// can have others' secrets, so without any a template may name none.
	Snippets []string
	// Images are those of a pool of kind ironic.
	Images []ImageSource
	// Enroll says that the run's workspace may enroll servers.
	Enroll bool
	// Timeout bounds one request.
	Timeout time.Duration
	// Ranges are the addresses that machines may get. Gateway and Nameservers are told to
	// machines with an address of a range.
	Ranges      []Range
	Gateway     netip.Addr
	Nameservers []netip.Addr
	// Machines are those of a static pool. Commands run in them as SSHUser, who signs in with the
	// private key SSHKey, of SSHKeyFile; "": they can't.
	Machines                    []StaticMachine
	SSHUser, SSHKeyFile, SSHKey string
	// Clean is the command that makes a static machine as new, of the pool's operator.
	Clean []string

	// Hosts are the hypervisors of a libvirt pool, each a node. With none there is one, at
	// URL, whose node has the pool's name.
	Hosts []Host
	// ImageStorage is the libvirt storage pool whose volumes are images; "": "images" where a
	// host has it, else the first of Storages.
	ImageStorage string
	// CertFile and KeyFile are what libvirt's client shows to a daemon at tls://.
	CertFile, KeyFile string
	// VirtType is kvm or qemu (processors are emulated); "": kvm where a host can.
	VirtType string
}

// Host is a hypervisor that is reached by itself.
type Host struct {
	Name string
	// URL is unix:///path, tcp://host[:port] or tls://host[:port].
	URL string
}

// Range is a range of addresses, both ends included, in a network of so many bits.
type Range struct {
	From, To netip.Addr
	Bits     int
}

// Contains reports whether the range has an address.
func (r Range) Contains(address netip.Addr) bool {
	return address.BitLen() == r.From.BitLen() && !address.Less(r.From) && !r.To.Less(address)
}

// ImageSource is an image and where Ironic gets it. Fields that are "" are not told to Ironic.
type ImageSource struct {
	Name string
	// Source is an address (https, http or file) that Ironic's conductor reads, or Glance's id.
	Source string
	// Checksum is MD5's, or an address that has it; HashAlgo and HashValue are those of a better one.
	Checksum, HashAlgo, HashValue string
	// Kernel and Ramdisk are those of an image of a partition. Type is whole-disk or partition.
	Kernel, Ramdisk, Type string
	// Format is raw or qcow2.
	Format string
}

// StaticMachine is one that exists already.
type StaticMachine struct {
	Name    string
	Address netip.Addr
	SSHPort int
	// HostKey is by what the machine is known over SSH, such as "ssh-ed25519 AAAA…".
	HostKey string
	Cores   int
	Memory  int // MiB
	Labels  map[string]string
}
