// Package drivers opens the driver of a pool by its kind. It is the only place that knows all
// kinds: another kind is one more case here, one more name in the agent's configuration and in
// the database, and a package of its own that implements pool.Driver.
//
// The agent opens drivers to list pools, a run to make machines, and tendril doctor to check
// them. Opening connects to nothing, so a hypervisor that is away keeps none of them from
// starting.
//
// It must not know what runs do with a pool.
package drivers

import (
	"fmt"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pool/ironic"
	"github.com/tendril-run/tendril/internal/pool/libvirt"
	"github.com/tendril-run/tendril/internal/pool/proxmox"
	"github.com/tendril-run/tendril/internal/pool/static"
)

// Open returns the driver of a pool. It connects to nothing; the error says what is wrong with
// the configuration.
func Open(c pool.Config) (pool.Driver, error) {
	switch c.Kind {
	case "proxmox":
		return proxmox.Open(c)
	case "libvirt":
		return libvirt.Open(c)
	case "ironic":
		return ironic.Open(c)
	case "static":
		return static.Open(c)
	default:
		return nil, fmt.Errorf("there is no kind of pool %q: it is proxmox, libvirt, ironic or static", c.Kind)
	}
}
