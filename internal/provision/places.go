package provision

// PlaceRequest asks for the places of machines in pools, or gives them back. It goes from a
// run to its agent alone, which asks the database.
type PlaceRequest struct {
	// Wants are at most MaxPlaces machines, each of which gets a place, or none does.
	Wants []PlaceWanted `json:"wants,omitempty"`
	// Release are the names of machines that are gone, whose places others may have.
	Release []string `json:"release,omitempty"`
}

// MaxPlaces is how many machines one request places.
const MaxPlaces = 1000

// PlaceWanted is one machine that needs a place: the p_wants of reserve_machines.
type PlaceWanted struct {
	Name  string `json:"name"` // within the workspace
	Pool  string `json:"pool"`
	Cores int    `json:"cores"`
	// Memory is in MiB.
	Memory int    `json:"memory_mib"`
	Image  string `json:"image,omitempty"`
	// Node is the only one that will do, and Avoid are those that won't.
	Node  string   `json:"node,omitempty"`
	Avoid []string `json:"avoid,omitempty"`
	// Labels are those that a node must have.
	Labels map[string]string `json:"labels,omitempty"`
	// Spread and Together name groups: on as many nodes as there are, and on one.
	Spread   string `json:"spread,omitempty"`
	Together string `json:"together,omitempty"`
	Address  string `json:"address,omitempty"`
	// Keep says that somebody else makes the machine, so that its place stays its own while a
	// run wants it, whatever machines the workspace reports.
	Keep bool `json:"keep,omitempty"`
	// VMID is the id of a machine that exists on Node already, which nobody needs to find room for.
	VMID int `json:"vm_id,omitempty"`
}

// Place is where the database has placed a machine.
type Place struct {
	Name string `json:"name"`
	Pool string `json:"pool"`
	Node string `json:"node"`
	// VMID is 0 and Address "" where the pool has no range of them.
	VMID    int    `json:"vm_id,omitempty"`
	Address string `json:"address,omitempty"`
	// Image is the pool's own name of the image; "" for the one that was asked for.
	Image string `json:"image,omitempty"`
	// Why says to people why this node was chosen.
	Why string `json:"why,omitempty"`
}

// HasServers reports whether a pool of the kind hands out machines that exist, each a node of its
// own, in place of making some on its nodes: labels choose among them.
func HasServers(kind string) bool { return kind == "static" || kind == "ironic" }
