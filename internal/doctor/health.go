package doctor

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
)

// health says whether the agent can open its port, and who reaches it then.
func (d *doctor) health(ctx context.Context) verdict {
	address := d.Config.Health.Listen
	if address == "" {
		return ok("health.listen is not set: the agent opens no port")
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && d.agentRuns:
		// By the agent, as a rule; it could not have started without it.
	case errors.Is(err, syscall.EADDRINUSE):
		return fail("name a free port in health.listen, or end what has this one", "health.listen: another program has %s; the agent would not start", address)
	case err != nil:
		return fail("correct health.listen", "health.listen: %s cannot be opened: %v", address, lastError(err))
	default:
		_ = listener.Close() // nobody has called
	}
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return d.open(address)
	}
	return ok("health and metrics are served at %s", address)
}

// open is about a port on all addresses. A pod has no other way to be asked.
func (d *doctor) open(address string) verdict {
	if slices.ContainsFunc(d.Environ, func(entry string) bool { return strings.HasPrefix(entry, "KUBERNETES_SERVICE_HOST=") }) {
		return ok("health and metrics are served at %s, to all who reach the pod; a NetworkPolicy says who does", address)
	}
	return warn("write 127.0.0.1 before the port in health.listen where who asks is on this machine, or let a firewall say who may",
		"health and metrics are served at %s, in the clear, to all who reach this machine; there is no secret in them", address)
}
