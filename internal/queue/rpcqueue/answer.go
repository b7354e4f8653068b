package rpcqueue

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcwire"
)

// answer is what came back over HTTP, from whomever.
type answer struct {
	status int
	header http.Header
	body   []byte
	// endless: there was more than is read, so nothing of it is there.
	endless bool
}

// result reads the result of a function into reply, nil where it has none. False
// when this is not one: what stands between (a login page of a network, a
// maintenance page) says 200 as well, and must not be taken for the database's
// word that lines are stored.
func (a answer) result(reply reply) bool {
	switch {
	case a.endless:
		return false
	case reply == nil: // a void function; PostgREST before 11 said 200 and null
		return a.status == http.StatusNoContent || a.status == http.StatusOK && string(bytes.TrimSpace(a.body)) == "null"
	case a.status != http.StatusOK:
		return false
	}
	return json.Unmarshal(a.body, reply) == nil && reply.valid()
}

// registration is what register_agent answers.
type registration rpcwire.Registered

func (r *registration) valid() bool { return r.ClusterID != uuid.Nil && r.Contract > 0 }

// standing is what check_agent answers.
type standing queue.Standing

func (s *standing) valid() bool { return s.ClusterID != uuid.Nil && s.Contract > 0 && !s.Now.IsZero() }

// pulse is what agent_heartbeat answers.
type pulse rpcwire.Pulse

func (p *pulse) valid() bool { return p.Cancel != nil && p.Lost != nil }

// checks are what lease_checks answers.
type checks struct{ rpcwire.Checks }

func (c *checks) valid() bool { return c.Checks != nil }

// places are what reserve_machines answers.
type places struct{ rpcwire.Places }

func (p *places) valid() bool { return p.Places != nil }

// expiry is what rotate_agent_key answers: when the old key expires, null for a token.
type expiry struct{ time.Time }

func (e *expiry) valid() bool { return true }

// optionalText is what agent_key, shared_identity and claim_trace answer; null: "".
type optionalText string

func (o *optionalText) valid() bool { return true }

// joining is what request_join and join_status answer.
type joining struct{ rpcwire.JoinStanding }

func (j *joining) valid() bool { return j.Status != "" }

// assignments are the rows that fetch_next_provision answers, one at most. There
// is room for no more: a slice of what "{}" becomes a hundred thousand times is
// more memory than an agent has.
type assignments struct {
	row  [1]provision.Assignment
	none bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *assignments) UnmarshalJSON(text []byte) error {
	a.none = string(text) == "[]"
	return json.Unmarshal(text, &a.row)
}

func (a *assignments) valid() bool {
	return a.none || a.row[0].ClaimID != uuid.Nil && a.row[0].ProvisionID != uuid.Nil
}

// ids are what fail_orphaned_provisions answers.
type ids []uuid.UUID

func (i *ids) valid() bool { return *i != nil }

// chunkNumber is what insert_provision_log answers.
type chunkNumber int64

func (n *chunkNumber) valid() bool { return *n > 0 }

// reasonAPIKey is the reason of an error that is not the database's.
const reasonAPIKey = "api_key_refused"

// unanswered is a try without a whole answer.
func (q *Queue) unanswered(ctx context.Context, doing string, err error) *trouble {
	// What has become of this connection may have become of all: the next call
	// is not to find out one by one.
	q.transport.CloseIdleConnections()
	e := &queue.Error{Kind: queue.Unavailable, Err: err}
	_, distrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.Message = fmt.Sprintf("could not %s: %s did not answer in time", doing, q.host)
	case distrusted:
		e.Message = fmt.Sprintf("could not %s: %s: %s", doing, q.host, q.legible(err.Error(), mostMessage))
		e.Hint = "if an authority of your own has signed its certificate, name that one's by queue.ca_file or SSL_CERT_FILE"
	default:
		e.Message = fmt.Sprintf("could not %s: %s: %s", doing, q.host, q.legible(err.Error(), mostMessage))
	}
	return &trouble{e, ctx.Err() == nil && !distrusted}
}

// explain says what an answer means that is no result.
func (q *Queue) explain(doing string, a answer) *trouble {
	said := a.said()
	said.Message = q.legible(said.Message, mostMessage)
	hint := q.legible(text(said.Hint), mostMessage)
	var e *queue.Error
	switch {
	case a.status < 300:
		e = q.stranger(doing, a)
	case strings.HasPrefix(said.Code, "PGRST3"):
		e = q.badAPIKey(said.Message)
	case strings.HasPrefix(said.Code, "PGRST"), len(said.Code) == 5:
		e = queue.Answer(doing, said.Code, said.Message, text(said.Details), hint)
		if e.Kind == queue.ContentRefused && a.status == postgrest.StatusOf(said.Code) {
			return &trouble{e, false} // PostgREST says 500 for some of what the content is to blame for
		}
	case a.status == http.StatusUnauthorized && said.Message != "":
		e = q.badAPIKey(said.Message)
	default:
		e = q.stranger(doing, a)
	}
	if a.mayPass() {
		// By its status it is not the last word, whatever the code looks like.
		e.Kind, e.RetryAfter = queue.Unavailable, retryAfter(a.header)
	}
	return &trouble{e, a.mayPass()}
}

// said is the body of an error: PostgREST's own has a code, that of something
// before it has none.
func (a answer) said() postgrest.Error {
	var said postgrest.Error
	if json.Unmarshal(a.body, &said) != nil {
		return postgrest.Error{}
	}
	return said
}

func text(nullable *string) string {
	if nullable == nil {
		return ""
	}
	return *nullable
}

// mayPass reports whether the same request may be answered otherwise in a
// moment.
func (a answer) mayPass() bool {
	return a.status == http.StatusRequestTimeout || a.status == http.StatusTooManyRequests || a.status >= 500
}

// badAPIKey is what has nothing to do with the cluster's token.
func (q *Queue) badAPIKey(said string) *queue.Error {
	return &queue.Error{
		Kind: queue.Unauthorized, Reason: reasonAPIKey,
		Message: fmt.Sprintf("%s does not accept the API key: %s", q.host, said),
		Hint:    "set queue.api_key, or SUPABASE_ANON_KEY, to the project's publishable (anon) key; the cluster's token was not checked",
	}
}

// stranger is an answer that PostgREST does not give. Nothing is known of what
// the database would say, so lines must not be given up for it; but what is too
// large stays too large.
func (q *Queue) stranger(doing string, a answer) *queue.Error {
	meaning := queue.MeaningOfStatus(a.status)
	e := &queue.Error{Kind: meaning.Kind, Hint: meaning.Hint, Message: fmt.Sprintf("could not %s: %s answered %s%s", doing, q.host, a.title(), q.gist(a))}
	switch location := a.header.Get("Location"); {
	case a.endless:
		e.Message = fmt.Sprintf("could not %s: the answer of %s is larger than %d bytes", doing, q.host, mostAnswer)
	case meaning.Kind == queue.ContentRefused:
		e.Reason = postgrest.BodyTooLarge
	case a.status == 540:
		e.Hint = "the Supabase project is paused: restore it in its dashboard"
	case a.status/100 == 3 && location != "":
		e.Message = fmt.Sprintf("could not %s: %s sends to another address, which is not followed with the cluster's credential", doing, q.host)
		e.Hint = "set queue.url to the address that it ends at"
	case !a.mayPass():
		e.Hint = "this is not how PostgREST answers: check queue.url, and what stands between"
	}
	return e
}

// title is the status for people.
func (a answer) title() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", a.status, http.StatusText(a.status)))
}

// gist is what an answer that nobody expected says: its message, the title of a
// page, else the beginning of the text.
func (q *Queue) gist(a answer) string {
	text := a.body[:min(len(a.body), 64<<10)]
	if said := a.said().Message; said != "" {
		text = []byte(said)
	} else if title := regexp.MustCompile(`(?is)<title[^>]*>([^<]+)`).FindSubmatch(text); title != nil {
		text = title[1]
	} else if bytes.HasPrefix(text, []byte("<")) {
		text = regexp.MustCompile(`(?s)<[^>]*>`).ReplaceAll(text, []byte(" "))
	}
	if line := q.legible(html.UnescapeString(string(text)), mostGist); line != "" {
		return ": " + line
	}
	return ""
}

// How many characters of what others say are shown: of an error's message or
// hint, and of what is none.
const mostMessage, mostGist = 2000, 200

// withoutSecrets takes out of a text what others must not read.
func (q *Queue) withoutSecrets(text string) string {
	var pairs []string
	for _, secret := range q.credential.Shown() {
		if secret != "" {
			pairs = append(pairs, secret, "[token]")
		}
	}
	if q.apiKey != "" {
		pairs = append(pairs, q.apiKey, "[API key]")
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// legible is one line of a text that anybody may have written. Secrets are taken
// out first: a part of one that was cut short would be left.
func (q *Queue) legible(text string, longest int) string {
	line := strings.Join(strings.FieldsFunc(strings.ToValidUTF8(q.withoutSecrets(text), ""), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if runes := []rune(line); len(runes) > longest {
		line = string(runes[:longest]) + "…"
	}
	return line
}
