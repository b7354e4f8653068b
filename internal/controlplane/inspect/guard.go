package inspect

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/publicaddr"
)

// dialPublic connects to public addresses only. It looks at the address that is
// connected to, after the name was resolved: no second look-up answers otherwise.
func dialPublic(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !publicaddr.Is(at.Addr()) {
			return fmt.Errorf("%s is no address of the Internet, and trellis connects to no other for a template's sake", address)
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}
