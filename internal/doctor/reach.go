package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
)

// queueReachable says how far the way to the queue is open: name, port, TLS, and
// whoever answers there.
func (d *doctor) queueReachable(ctx context.Context) verdict {
	if strings.HasPrefix(d.Config.Queue.URL, "http") {
		return d.reachHTTP(ctx)
	}
	return d.reachPostgres(ctx)
}

// unreached says of an error on the way to host at which step it came about;
// false where it is none of them.
func unreached(host string, err error) (verdict, bool) {
	if name, is := errors.AsType[*net.DNSError](err); is {
		return fail("check the name in queue.url and the machine's DNS", "DNS: the name %s cannot be resolved: %s", name.Name, name.Err), true
	}
	if v, is := untrusted(host, err); is {
		return v, true
	}
	if op, is := errors.AsType[*net.OpError](err); is && (op.Op == "dial" || op.Op == "connect") {
		return fail("check host and port in queue.url, and the firewalls between", "TCP: %s does not accept a connection: %v", host, lastError(op.Err)), true
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fail("check host and port in queue.url, and the firewalls between", "%s does not answer in time", host), true
	}
	return verdict{}, false
}

// untrusted is unreached for TLS.
func untrusted(host string, err error) (verdict, bool) {
	if _, is := errors.AsType[x509.UnknownAuthorityError](err); is {
		return fail("name its authority's certificate in queue.ca_file (https) or sslrootcert in queue.url (postgres)",
			"TLS: the certificate of %s is signed by an authority that is not trusted here", host), true
	}
	if wrong, is := errors.AsType[x509.HostnameError](err); is {
		return fail("use the name that the certificate is for", "TLS: %v", wrong), true
	}
	if expired, is := errors.AsType[x509.CertificateInvalidError](err); is {
		return fail("have the certificate renewed, or correct this machine's clock", "TLS: the certificate of %s is not valid: %v", host, expired), true
	}
	if odd, is := errors.AsType[tls.RecordHeaderError](err); is {
		return fail("check the port, and whether TLS is spoken there", "TLS: %s does not speak it: %s", host, odd.Msg), true
	}
	if strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") { // net/http has no type for it
		return fail("check the port, and whether TLS is spoken there", "TLS: %s does not speak it, but plain HTTP", host), true
	}
	if alert, is := errors.AsType[tls.AlertError](err); is {
		return fail("check what TLS versions and client certificates the server wants", "TLS: %s broke the handshake off: %v", host, alert), true
	}
	if _, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return fail("check the server's certificate", "TLS: the certificate of %s is not accepted: %v", host, err), true
	}
	return verdict{}, false
}

// hostPort is an address for people.
func hostPort(host string, port uint16) string {
	if strings.HasPrefix(host, "/") {
		return fmt.Sprintf("the socket in %s", host)
	}
	return net.JoinHostPort(host, fmt.Sprint(port))
}
