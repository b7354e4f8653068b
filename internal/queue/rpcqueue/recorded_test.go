package rpcqueue_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
)

// The tokens whose hashes the recorded exchanges have: that of their world, and
// one that nobody knows.
var recordedTokens = []string{"tnd_recorded", "tnd_wrong"}

// arguments are all that a recorded request may hold.
type arguments struct {
	Hash     string               `json:"p_token_hash"`
	Agent    *queue.Agent         `json:"p_agent"`
	Instance uuid.UUID            `json:"p_instance"`
	Boot     uuid.UUID            `json:"p_boot"`
	Claim    uuid.UUID            `json:"p_claim_id"`
	Claims   []uuid.UUID          `json:"p_claims"`
	Except   []uuid.UUID          `json:"p_except"`
	First    int64                `json:"p_first_chunk"`
	Chunks   []provision.LogChunk `json:"p_chunks"`
	Status   provision.Status     `json:"p_status"`
	Detail   provision.Detail     `json:"p_detail"`
	Kind     string               `json:"p_kind"`
	Number   int64                `json:"p_number"`
	Digest   string               `json:"p_digest"`
	Meta     json.RawMessage      `json:"p_meta"`
	Data     []byte               `json:"p_data"`
}

// player is a server that plays one recorded exchange: it checks the request and
// gives the answer.
type player struct {
	t        *testing.T
	exchange recorded.Exchange
}

func (p player) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		p.t.Errorf("%s: reading the request: %v", p.exchange.Name, err)
	}
	want := p.exchange.Request
	if r.Method != http.MethodPost || r.URL.Path != want.Path || r.Header.Get("Content-Type") != postgrest.ContentType {
		p.t.Errorf("%s: request = %s %s (%s), want POST %s of JSON", p.exchange.Name, r.Method, r.URL.Path, r.Header.Get("Content-Type"), want.Path)
	}
	for name, value := range want.Header {
		if got := r.Header.Get(name); got != value {
			p.t.Errorf("%s: header %s = %q, want %q", p.exchange.Name, name, got, value)
		}
	}
	// Both ways: neither may have an argument that the other has not.
	for _, pair := range [][2][]byte{{body, want.Payload()}, {want.Payload(), body}} {
		if err := recorded.Same(pair[0], pair[1]); err != nil {
			p.t.Errorf("%s: request: %v", p.exchange.Name, err)
		}
	}
	give(w, p.exchange.Response)
}

// give sends a recorded answer.
func give(w http.ResponseWriter, answer recorded.Response) {
	for name, value := range answer.Header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(answer.Status)
	_, _ = w.Write(answer.Payload()) // a client that has gone complains itself
}

// tokenOf finds the token of a hash.
func tokenOf(t *testing.T, hash string) string {
	t.Helper()
	for _, token := range recordedTokens {
		if sum := sha256.Sum256([]byte(token)); hex.EncodeToString(sum[:]) == hash {
			return token
		}
	}
	t.Fatalf("no token is known for the hash %s", hash)
	return ""
}

// The client is held to what PostgREST is asked and answers.
func TestRecordedExchanges(t *testing.T) {
	t.Parallel()
	exchanges, _ := recorded.Agent(t)
	called := map[string]bool{}
	for _, exchange := range exchanges {
		if exchange.Call == "" {
			continue // nothing that this client says
		}
		called[exchange.Call] = true
		t.Run(strings.ReplaceAll(exchange.Name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(player{t, exchange})
			defer server.Close()
			var args arguments
			if err := json.Unmarshal(exchange.Request.Body, &args); err != nil {
				t.Fatal(err)
			}
			agent := queue.Agent{Instance: args.Instance, Boot: args.Boot}
			if args.Agent != nil {
				agent = *args.Agent
			}
			q, err := rpcqueue.New(rpcqueue.Options{URL: server.URL, Token: tokenOf(t, args.Hash), Agent: agent})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			got, err := perform(t, q, exchange.Call, args)
			if exchange.Response.Status >= 300 {
				wantRefusal(t, exchange, err)
				return
			}
			if err != nil {
				t.Fatalf("%s() = %v, want nil", exchange.Call, err)
			}
			if want := meant(t, exchange); !reflect.DeepEqual(got, want) {
				t.Errorf("%s() = %+v, want %+v", exchange.Call, got, want)
			}
		})
	}
	for _, method := range []string{"Standing", "Register", "Heartbeat", "Claim", "AppendLog", "Report", "FailOrphans", "PutBlob", "GetBlob"} {
		if !called[method] {
			t.Errorf("no exchange of %s is recorded", method)
		}
	}
}

// perform calls the method that an exchange is recorded of.
func perform(t *testing.T, q queue.Queue, method string, args arguments) (any, error) {
	t.Helper()
	switch ctx := t.Context(); method {
	case "Standing":
		return q.Standing(ctx)
	case "Register":
		return q.Register(ctx)
	case "Heartbeat":
		return q.Heartbeat(ctx, queue.Beat{Claims: args.Claims})
	case "Claim":
		return q.Claim(ctx, args.Claim)
	case "AppendLog":
		return q.AppendLog(ctx, args.Claim, args.First, args.Chunks)
	case "Report":
		return nil, q.Report(ctx, args.Claim, provision.Report{Status: args.Status, Detail: args.Detail})
	case "FailOrphans":
		return q.FailOrphans(ctx, args.Except)
	case "PutBlob":
		return nil, q.PutBlob(ctx, args.Claim, queue.Blob{Kind: args.Kind, Number: args.Number, Digest: args.Digest, Meta: args.Meta}, args.Data)
	case "GetBlob":
		blob, data, err := q.GetBlob(ctx, args.Claim, args.Kind, args.Number)
		if errors.Is(err, queue.ErrNoBlob) {
			return "none", nil
		}
		return fmt.Sprintf("%s %d %s %s %s", blob.Kind, blob.Number, blob.Digest, blob.Meta, data), err
	}
	t.Fatalf("a queue has no method %s", method)
	return nil, nil
}

// meant is what the recorded answer is to a caller.
func meant(t *testing.T, exchange recorded.Exchange) any {
	t.Helper()
	body := exchange.Response.Body
	switch exchange.Call {
	case "Standing":
		r := read[struct {
			Cluster  uuid.UUID `json:"cluster_id"`
			Name     string    `json:"cluster_name"`
			Contract int
			Now      time.Time
			Paused   bool
			TakenOn  string `json:"name_taken_on"`
		}](t, body)
		return queue.Standing{ClusterID: r.Cluster, ClusterName: r.Name, Contract: r.Contract, Now: r.Now, Paused: r.Paused, NameTakenOn: r.TakenOn}
	case "Register":
		r := read[struct {
			Cluster   uuid.UUID `json:"cluster_id"`
			Name      string    `json:"cluster_name"`
			Contract  int       `json:"contract"`
			Heartbeat seconds   `json:"heartbeat_seconds"`
			Lease     seconds   `json:"lease_seconds"`
		}](t, body)
		return queue.Registration{ClusterID: r.Cluster, ClusterName: r.Name, Contract: r.Contract, Heartbeat: r.Heartbeat.duration(), Lease: r.Lease.duration()}
	case "Heartbeat":
		r := read[struct {
			Cancel, Lost []uuid.UUID
			Poll         seconds `json:"poll_seconds"`
			Heartbeat    seconds `json:"heartbeat_seconds"`
		}](t, body)
		return queue.Pulse{Cancel: r.Cancel, Lost: r.Lost, Poll: r.Poll.duration(), Heartbeat: r.Heartbeat.duration()}
	case "Claim":
		if rows := read[[]provision.Assignment](t, body); len(rows) > 0 {
			return &rows[0]
		}
		return (*provision.Assignment)(nil)
	case "AppendLog":
		return read[int64](t, body)
	case "FailOrphans":
		return read[[]uuid.UUID](t, body)
	case "GetBlob":
		r := read[struct {
			Parts  int
			Number int64
			Digest string
			Meta   json.RawMessage
			Data   []byte
		}](t, body)
		if r.Parts == 0 {
			return "none"
		}
		return fmt.Sprintf("state %d %s %s %s", r.Number, r.Digest, r.Meta, r.Data)
	}
	return nil
}

type seconds int

func (s seconds) duration() time.Duration { return time.Duration(s) * time.Second }

func read[T any](t *testing.T, body []byte) T {
	t.Helper()
	var value T
	if err := json.Unmarshal(body, &value); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return value
}

func wantRefusal(t *testing.T, exchange recorded.Exchange, err error) {
	t.Helper()
	said := read[struct{ Code, Message, Details, Hint string }](t, exchange.Response.Body)
	e := asError(t, err)
	got := fmt.Sprintf("%s|%s|%s|%s", e.Code, e.Reason, e.Message, e.Hint)
	if want := fmt.Sprintf("%s|%s|%s|%s", said.Code, said.Details, said.Message, said.Hint); got != want {
		t.Errorf("%s() = %s, want %s", exchange.Call, got, want)
	}
	if want := queue.Answer("", said.Code, "", said.Details, "").Kind; e.Kind != want {
		t.Errorf("%s() = an error of kind %d, want %d", exchange.Call, e.Kind, want)
	}
}
