// Package machinehealth asks machines how they are: whether a TCP port takes connections,
// an HTTP path answers, or an SSH server greets.
//
// It goes to the address that it is given and nowhere else: no name is resolved and no
// redirect followed, and no answer is kept but its first bytes. Which addresses are allowed
// the agent's operator says; without a word, all but those of the agent's own machine and
// link. It must not know the queue, or why a machine is asked.
package machinehealth

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// Ranges are the addresses that may be asked; none are all but those of this machine and
// its link, which hold what is for this machine alone.
type Ranges []netip.Prefix

// allow returns the address, or why it may not be asked.
func (r Ranges) allow(target string) (netip.Addr, error) {
	address, err := netip.ParseAddr(target)
	if err != nil || address.Zone() != "" {
		return address, fmt.Errorf("%q is no IP address", target)
	}
	address = address.Unmap()
	if len(r) > 0 {
		if !slices.ContainsFunc(r, func(p netip.Prefix) bool { return p.Contains(address) }) {
			return address, fmt.Errorf("%s is in none of the agent's policy.check_ranges", address)
		}
		return address, nil
	}
	if address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsMulticast() || address.IsUnspecified() ||
		slices.ContainsFunc(clouds, func(p netip.Prefix) bool { return p.Contains(address) }) || own(address) {
		return address, fmt.Errorf("%s is the agent's own machine or link, or a cloud's service for it, which policy.check_ranges would have to name", address)
	}
	return address, nil
}

// clouds are addresses at which clouds answer their own machines, beside link-local ones,
// and those of NAT64, which stand for others.
var clouds = []netip.Prefix{
	netip.MustParsePrefix("100.100.100.200/32"), netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("192.0.0.192/32"),
	netip.MustParsePrefix("fd00:ec2::/32"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"),
}

// own reports whether an address is one of this machine's.
func own(address netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return true // nobody knows
	}
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Unmap() == address
	})
}

// most is how much of an answer is read, in bytes.
const most = 4 << 10

// Check asks once, and takes the check's time-out at most. why says what was wrong; of
// HealthUnknown it says why nobody could ask.
func Check(ctx context.Context, c provision.HealthCheck, ranges Ranges) (found provision.MachineHealth, why string) {
	address, err := ranges.allow(c.Target)
	if err != nil {
		return provision.HealthUnknown, err.Error()
	}
	limited, cancel := context.WithTimeout(ctx, c.Limit())
	defer cancel()
	to := net.JoinHostPort(address.String(), strconv.Itoa(c.Port))
	switch c.Kind {
	case "tcp":
		err = dial(limited, to, func(net.Conn) error { return nil })
	case "ssh":
		err = dial(limited, to, greets)
	case "http":
		err = answers(limited, to, c.Path)
	default:
		return provision.HealthUnknown, fmt.Sprintf("this agent does not know the check %q", c.Kind)
	}
	switch {
	case err == nil:
		return provision.Healthy, ""
	case ctx.Err() != nil: // the agent ends
		return provision.HealthUnknown, "the agent was shut down meanwhile"
	case limited.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded):
		return provision.Unhealthy, fmt.Sprintf("%s %s did not answer within %s", c.Kind, to, c.Limit())
	}
	return provision.Unhealthy, fmt.Sprintf("%s %s: %s", c.Kind, to, said(err))
}

// said is an error without what is said of it already.
func said(err error) string {
	if op, is := errors.AsType[*net.OpError](err); is && op.Err != nil {
		err = op.Err
	}
	return strings.TrimPrefix(err.Error(), "connect: ")
}

func dial(ctx context.Context, to string, ask func(net.Conn) error) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing was written
	if deadline, has := ctx.Deadline(); has {
		_ = conn.SetDeadline(deadline) // without one the context still ends the read
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	return ask(conn)
}

// greets reads an SSH server's first line (RFC 4253, section 4.2), which lines of another
// kind may precede.
func greets(conn net.Conn) error {
	lines := bufio.NewScanner(io.LimitReader(conn, most))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "SSH-") {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errors.New("no SSH server greets there")
}

// answers asks for a path by HTTP/1.1; a status below 400 is well.
func answers(ctx context.Context, to, path string) error {
	asked, err := url.ParseRequestURI(path)
	if err != nil || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || asked.Host != "" {
		return errors.New("the path that it asks for is none")
	}
	asked.Scheme, asked.Host = "http", to
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, asked.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", path, err)
	}
	request.Close = true
	transport := &http.Transport{ // without a proxy
		MaxResponseHeaderBytes: most, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, to)
		},
	}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request) // which follows nothing
	if _, network := errors.AsType[net.Error](err); err != nil && !network && ctx.Err() == nil {
		return errors.New("what answers there does not speak HTTP") // its words are not for everybody
	}
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("it answers with the status %d", response.StatusCode)
	}
	return nil
}
