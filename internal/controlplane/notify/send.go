package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"
)

const (
	// sendLimit bounds one attempt, dialLimit its beginning.
	sendLimit = 15 * time.Second
	dialLimit = 5 * time.Second
	// answerBytes is how much of an answer is read, and thrown away: it may be a
	// stranger's, and has nothing to say but its status.
	answerBytes = 64 << 10
)

// delivery is a message that was taken to be sent.
type delivery struct {
	ID         uuid.UUID
	WebhookID  uuid.UUID
	OrgID      uuid.UUID
	Kind       string
	Generation int
	Sealed     []byte
	Event      string
	Payload    json.RawMessage
	Tried      int // before
}

// attempt is what came of sending.
type attempt struct {
	Code     int    `json:"code,omitempty"`
	Duration int64  `json:"duration_ms"`
	Error    string `json:"error,omitempty"`

	arrived bool
	gone    bool          // the receiver says that it wants no more
	after   time.Duration // the receiver says that it wants none before
}

// sender sends messages. Redirects are not followed: they would lead past what
// is allowed, with the signature.
type sender struct {
	key     *Key
	allowed Allowed
	base    string // URL of the console; "" where nobody said
	agent   string
}

func (s *sender) send(ctx context.Context, d delivery) (a attempt) {
	began := time.Now()
	defer func() { a.Duration = time.Since(began).Milliseconds() }()
	text, err := s.key.open(d.WebhookID, d.Sealed)
	if err != nil {
		return attempt{Error: err.Error()}
	}
	to, err := s.allowed.parse(text)
	if err != nil {
		return attempt{Error: err.Error()}
	}
	body, err := s.message(d)
	if err != nil {
		return attempt{Error: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(body))
	if err != nil {
		return attempt{Error: "the webhook's URL cannot be used"} // the error shows it
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", s.agent)
	sign(request.Header, "msg_"+d.ID.String(), time.Now(), body, s.key.signing(d.WebhookID, d.Generation))
	transport := s.transport(to)
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return attempt{Error: plainly(ctx, err)}
	}
	defer response.Body.Close() //nolint:errcheck // only read
	_, _ = io.CopyN(io.Discard, response.Body, answerBytes)
	a = attempt{Code: response.StatusCode, arrived: response.StatusCode/100 == 2, gone: response.StatusCode == http.StatusGone}
	switch {
	case a.arrived:
	case response.StatusCode/100 == 3:
		a.Error = "the receiver answered with a redirect, which is not followed: give the URL that it leads to"
	default:
		a.Error = "the receiver answered " + response.Status
	}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		a.after = time.Duration(min(max(seconds, 0), 3600)) * time.Second
	}
	return a
}

// transport is for one attempt: what is kept open to a receiver would have to be
// bounded, and messages are few.
func (s *sender) transport(to *url.URL) *http.Transport {
	dialer := &net.Dialer{Timeout: dialLimit, Control: s.allowed.control(s.allowed.host(to.Hostname()))}
	return &http.Transport{
		Proxy:       nil, // it would be the proxy's address that is looked at
		DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: dialLimit,
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
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.", id, stamp) // never fails
	_, _ = mac.Write(body)
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", stamp)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}
