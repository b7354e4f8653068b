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
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/printable"
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
	if address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsMulticast() || address.IsUnspecified() {
		return address, fmt.Errorf("%s is the agent's own machine or link, which policy.check_ranges would have to name", address)
	}
	return address, nil
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
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", path, err)
	}
	request.Close = true
	transport := &http.Transport{MaxResponseHeaderBytes: most, DisableKeepAlives: true} // and no proxy
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request) // which follows nothing
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s answers %s", path, printable.Text(response.Status))
	}
	return nil
}
