package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// sendLimit bounds one attempt, dialLimit its beginning.
	sendLimit = 15 * time.Second
	dialLimit = 5 * time.Second
	// answerBytes is how much of an answer is read, and thrown away: it may be a
	// stranger's, and has nothing to say but its status.
	answerBytes = 64 << 10
)

// Attempt is what came of sending.
type Attempt struct {
	Code     int    `json:"code,omitempty"`
	Duration int64  `json:"duration_ms"`
	Error    string `json:"error,omitempty"`

	Arrived bool          `json:"-"`
	Gone    bool          `json:"-"` // the receiver says that it wants no more
	After   time.Duration `json:"-"` // the receiver says that it wants none before
}

// Receiver is where messages go.
type Receiver struct {
	URL string
	// Secret signs messages; nil: they are not signed.
	Secret []byte
	// Agent names the sender's program.
	Agent string
	// Control judges each address that is dialled, and Proxy says by which proxy the receiver
	// is reached; nil: any, and none.
	Control func(network, address string, c syscall.RawConn) error
	Proxy   func(*http.Request) (*url.URL, error)
}

// Send posts a message. The receiver recognises by its id one that it gets twice.
func (r Receiver) Send(ctx context.Context, id string, body []byte) (a Attempt) {
	began := time.Now()
	defer func() { a.Duration = time.Since(began).Milliseconds() }()
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL, bytes.NewReader(body))
	if err != nil {
		return Attempt{Error: "the webhook's URL cannot be used"} // the error shows it
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", r.Agent)
	sign(request.Header, id, time.Now(), body, r.Secret)
	transport := r.transport()
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return Attempt{Error: plainly(ctx, err)}
	}
	defer response.Body.Close() //nolint:errcheck // only read
	_, _ = io.CopyN(io.Discard, response.Body, answerBytes)
	a = Attempt{Code: response.StatusCode, Arrived: response.StatusCode/100 == 2, Gone: response.StatusCode == http.StatusGone}
	switch {
	case a.Arrived:
	case response.StatusCode/100 == 3:
		a.Error = "the receiver answered with a redirect, which is not followed: give the URL that it leads to"
	default:
		a.Error = "the receiver answered " + response.Status
	}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		a.After = time.Duration(min(max(seconds, 0), 3600)) * time.Second
	}
	return a
}

// transport is for one attempt: what is kept open to a receiver would have to be
// bounded, and messages are few.
func (r Receiver) transport() *http.Transport {
	dialer := &net.Dialer{Timeout: dialLimit, Control: r.Control}
	return &http.Transport{
		Proxy: r.Proxy, DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: dialLimit,
		MaxResponseHeaderBytes: answerBytes, DisableKeepAlives: true, ForceAttemptHTTP2: true,
	}
}

// plainly is an error without the URL in it.
func plainly(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return fmt.Sprintf("the receiver did not answer within %s", sendLimit)
	}
	if refused, ok := errors.AsType[*net.AddrError](err); ok {
		return refused.Err
	}
	// Their own words have addresses of this network in them.
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		if name.IsNotFound {
			return "there is no host " + name.Name
		}
		return "the address of " + name.Name + " cannot be found out now"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		err = fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	text := err.Error()
	return text[:min(len(text), 500)]
}

// sign adds the headers of the Standard Webhooks specification.
func sign(h http.Header, id string, at time.Time, body, secret []byte) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", stamp)
	if secret == nil {
		return
	}
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.", id, stamp) // never fails
	_, _ = mac.Write(body)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}

const secretMark = "whsec_"

// WriteSecret is a signing secret as it is shown to people.
func WriteSecret(secret []byte) string {
	return secretMark + base64.StdEncoding.EncodeToString(secret)
}

// ReadSecret reads what WriteSecret has written.
func ReadSecret(text string) ([]byte, error) {
	encoded, is := strings.CutPrefix(strings.TrimSpace(text), secretMark)
	secret, err := base64.StdEncoding.DecodeString(encoded)
	if !is || err != nil || len(secret) < 24 || len(secret) > 64 {
		return nil, errors.New("has no signing secret: it must be whsec_ and 24 to 64 random bytes in base64")
	}
	return secret, nil
}
