package wire

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Pool is where machines are made, as agents last reported it.
type Pool struct {
	ID         uuid.UUID `json:"id" doc:"Its id."`
	Name       string    `json:"name" doc:"Its name in the agents' configuration, unique in its cluster."`
	Cluster    string    `json:"cluster" doc:"The name of the cluster whose agents reach it."`
	ClusterID  uuid.UUID `json:"cluster_id" doc:"The id of that cluster."`
	Kind       string    `json:"kind" enum:"proxmox,libvirt,static,ironic" doc:"What makes machines there."`
	State      string    `json:"state" enum:"reachable,unreachable,stale" doc:"unreachable: an agent tried, and could not list it. stale: no agent has reported it for five minutes."`
	Problem    *string   `json:"problem,omitempty" doc:"Why it could not be listed."`
	ReportedAt time.Time `json:"reported_at" doc:"When it was reported last."`
	Agent      string    `json:"agent,omitempty" doc:"The name of the agent that did."`
	Nodes      int       `json:"nodes" doc:"How many nodes it has."`
	Online     int       `json:"online" doc:"How many of them could be used. Its figures are sums over these."`
	Machines   int       `json:"machines" doc:"How many machines have a place there."`
	Load
	Images []string `json:"images" doc:"The images that any node has, by name, at most 500."`
}

// Load is how much of a node, or of a pool's nodes, is in use.
type Load struct {
	Cores          int     `json:"cores" doc:"Processor cores."`
	MemoryMiB      int     `json:"memory_mib" doc:"Memory in MiB."`
	CoresUsed      float64 `json:"cores_used" doc:"Cores that were in use when it was measured."`
	MemoryUsed     float64 `json:"memory_used" doc:"Memory that was, in MiB."`
	CoresNew       float64 `json:"cores_new" doc:"Cores that were reserved since, and so are not yet in what is used."`
	MemoryNew      float64 `json:"memory_new" doc:"Memory that was, in MiB."`
	CoresReserved  int     `json:"cores_reserved" doc:"Cores of all machines that have a place there."`
	MemoryReserved int     `json:"memory_reserved" doc:"Their memory in MiB."`
}

// PoolDetail is a pool with its nodes and what is reserved there.
type PoolDetail struct {
	Pool
	NodeList     []PoolNode    `json:"node_list" doc:"Its nodes by name, at most 500."`
	Reservations []Reservation `json:"reservations" doc:"The machines that have a place there, by node and name, at most 500."`
	ImageNames   []PoolImage   `json:"image_names" doc:"What images that templates name are called in this pool, where that differs."`
}

// PoolNode is one host of a pool.
type PoolNode struct {
	Name   string `json:"name" doc:"Its name in the pool."`
	Online bool   `json:"online" doc:"Whether it could be used."`
	Load
	MostCores  *float64          `json:"most_cores,omitempty" doc:"How many cores may be reserved there. Absent: any number."`
	MostMemory *float64          `json:"most_memory,omitempty" doc:"How much memory may be, in MiB."`
	Machines   int               `json:"machines" doc:"How many machines have a place there."`
	Images     []string          `json:"images" doc:"The images that machines can be made from there."`
	Labels     map[string]string `json:"labels" doc:"Its labels."`
	Storages   []Storage         `json:"storages" doc:"Its storages by name."`
	Server     *Server           `json:"server,omitempty" doc:"The bare-metal server that it is. Absent: it is none."`
	MeasuredAt time.Time         `json:"measured_at" doc:"When it was measured."`
}

// Server is a bare-metal server of a pool of kind ironic.
type Server struct {
	ID             string `json:"id" doc:"Its UUID in Ironic."`
	Name           string `json:"name,omitempty" doc:"Its name in Ironic. Absent: it has none."`
	ProvisionState string `json:"provision_state" doc:"Ironic's provision_state, such as available or active."`
	PowerState     string `json:"power_state,omitempty" doc:"Ironic's power_state. Absent: Ironic does not know it."`
	Maintenance    bool   `json:"maintenance" doc:"Whether it is in maintenance."`
	Reason         string `json:"reason" doc:"What its state means, and what is wrong with it, in a sentence."`
	Available      bool   `json:"available" doc:"Whether a machine can be made of it now."`
	InstanceUUID   string `json:"instance_uuid,omitempty" doc:"The id of the machine, or of others' instance, that has it. Absent: nobody has."`
	LastError      string `json:"last_error,omitempty" doc:"Ironic's last error about it."`

	Health    provision.ServerHealth `json:"health" enum:"ok,warning,critical,unknown" doc:"How it is, by its fault, maintenance, state, power and last error. A machine on it has the same health where its template has no check: healthy for ok and warning, unhealthy for critical."`
	HealthWhy string                 `json:"health_why" doc:"Why its health is that, in a sentence."`
}

// Storage is one of a node's.
type Storage struct {
	Name    string  `json:"name" doc:"Its name."`
	FreeGiB float64 `json:"free_gib" doc:"What is free there, in GiB."`
	SizeGiB float64 `json:"size_gib" doc:"How large it is, in GiB."`
}

// Reservation is the place of a machine in a pool.
type Reservation struct {
	Name        string     `json:"name" doc:"The machine's name within its workspace."`
	Workspace   string     `json:"workspace" doc:"The name of the workspace."`
	WorkspaceID uuid.UUID  `json:"workspace_id" doc:"The id of the workspace."`
	Pool        string     `json:"pool" doc:"The pool's name."`
	PoolID      uuid.UUID  `json:"pool_id" doc:"The pool's id."`
	Node        string     `json:"node" doc:"The node that was chosen."`
	Cores       int        `json:"cores" doc:"Its processor cores."`
	MemoryMiB   int        `json:"memory_mib" doc:"Its memory in MiB."`
	VMID        *int       `json:"vm_id,omitempty" doc:"Its id in the pool. Absent: the pool has no range of ids."`
	Address     *string    `json:"address,omitempty" doc:"Its IP address. Absent: it gets one automatically."`
	Why         string     `json:"why" doc:"Why this node was chosen, with the points of others."`
	Machine     *uuid.UUID `json:"machine_id,omitempty" doc:"The id of the machine. Absent: nothing was reported of it yet."`
	Status      *string    `json:"status,omitempty" doc:"The machine's status."`
	Number      *int64     `json:"number,omitempty" doc:"The provision that it was reserved for. Absent: it is deleted."`
	CreatedAt   time.Time  `json:"created_at" doc:"When it was reserved."`
	Leftover    bool       `json:"leftover" doc:"Whether no machine is there and no run may still make one, so that an admin can free the place."`
}

// PlacementBody asks where the machines of a deploy would go.
type PlacementBody struct {
	Cluster  string          `json:"cluster" minLength:"1" maxLength:"200" doc:"The cluster, by its name or id." example:"prod"`
	Snapshot json.RawMessage `json:"config_snapshot" doc:"The deploy, as create-provision takes it."`
}

// Placement is where the machines of a deploy would go.
type Placement struct {
	Text     string          `json:"text" doc:"A summary for people."`
	Machines []PlacedMachine `json:"machines" doc:"The machines, in the template's order."`
}

// PlacedMachine is where a machine would go.
type PlacedMachine struct {
	Name   string `json:"name" doc:"The machine's name."`
	Pool   string `json:"pool" doc:"The pool's name."`
	Node   string `json:"node" doc:"The node that it would go to."`
	Why    string `json:"why" doc:"Why this node, with the points of others."`
	Exists bool   `json:"exists" doc:"Whether the machine is there and stays where it is."`
}

// PoolImage says what an image that templates name is called in a pool.
type PoolImage struct {
	Image string `json:"image" doc:"The name that templates use."`
	Name  string `json:"name" doc:"The name of that image in the pool."`
}

// PoolImageBody says what an image is called in a pool.
type PoolImageBody struct {
	Image string `json:"image" minLength:"1" maxLength:"200" doc:"The name that templates use." example:"debian-13"`
	Name  string `json:"name" minLength:"1" maxLength:"200" doc:"The name of that image in the pool." example:"local:vztmpl/debian-13"`
}

// PoolQuota is how much the workspaces that match a pattern may reserve in pools, with what they
// have.
type PoolQuota struct {
	ID           uuid.UUID  `json:"id" doc:"Its id."`
	Workspaces   string     `json:"workspaces" doc:"The workspaces that share it, by their names; * is any text."`
	Pool         *string    `json:"pool,omitempty" doc:"The pool. Absent: all pools together."`
	Cluster      *string    `json:"cluster,omitempty" doc:"The cluster of that pool."`
	Machines     *int       `json:"machines,omitempty" doc:"The most machines. Absent: any number."`
	Cores        *int       `json:"cores,omitempty" doc:"The most processor cores of all of them. Absent: any number."`
	MemoryMiB    *int       `json:"memory_mib,omitempty" doc:"The most memory of all of them, in MiB. Absent: any amount."`
	MachinesUsed int64      `json:"machines_used" doc:"How many machines they have."`
	CoresUsed    int64      `json:"cores_used" doc:"How many cores."`
	MemoryUsed   int64      `json:"memory_used" doc:"How much memory, in MiB."`
	Top          []QuotaUse `json:"top" doc:"The workspaces that use most, at most 3."`
}

// QuotaUse is what a workspace has of a quota.
type QuotaUse struct {
	Workspace string `json:"workspace" doc:"The workspace's name."`
	Machines  int64  `json:"machines" doc:"Its machines."`
	Cores     int64  `json:"cores" doc:"Their cores."`
	MemoryMiB int64  `json:"memory_mib" doc:"Their memory in MiB."`
}

// PoolQuotaBody sets a quota.
type PoolQuotaBody struct {
	Workspaces string `json:"workspaces,omitempty" maxLength:"200" doc:"The workspaces that share it, by their names; * is any text. None: all of the organisation." example:"prod-*"`
	Pool       string `json:"pool,omitempty" maxLength:"200" doc:"The pool, by its name or id. None: all pools together." example:"lab"`
	Cluster    string `json:"cluster,omitempty" maxLength:"200" doc:"The cluster of the pool, by its name or id. Only needed where several have a pool of that name." example:"prod"`
	Machines   *int   `json:"machines,omitempty" minimum:"0" maximum:"1000000000" doc:"The most machines." example:"10"`
	Cores      *int   `json:"cores,omitempty" minimum:"0" maximum:"1000000000" doc:"The most processor cores of all of them." example:"40"`
	MemoryMiB  *int   `json:"memory_mib,omitempty" minimum:"0" maximum:"1000000000" doc:"The most memory of all of them, in MiB." example:"65536"`
}

// PoolQuotaAnswer says which quota was set.
type PoolQuotaAnswer struct {
	ID uuid.UUID `json:"id" doc:"The quota's id."`
}
