package terraform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// applied makes a Runner with one resource in its state, and returns the state.
func applied(t *testing.T, kind string, opts Options) (*Runner, []byte) {
	t.Helper()
	r := newReal(t, kind, `resource "terraform_data" "a" {}`, opts)
	planned(t, r, PlanOptions{})
	if _, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"}); err != nil {
		t.Fatal(err)
	}
	state, err := os.ReadFile(filepath.Join(r.dir, "terraform.tfstate"))
	if err != nil {
		t.Fatal(err)
	}
	return r, state
}

// changed returns a state with some fields replaced.
func changed(t *testing.T, state []byte, with map[string]any) []byte {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal(state, &fields); err != nil {
		t.Fatal(err)
	}
	for key, value := range with {
		fields[key] = value
	}
	out, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func stateFile(t *testing.T, state []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "errored.tfstate")
	if err := os.WriteFile(path, state, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPushState(t *testing.T) { bothEngines(t, testPushState) }

func testPushState(t *testing.T, kind string) {
	t.Parallel()
	var log outputtest.Buffer
	r, state := applied(t, kind, Options{Stdout: &log, Stderr: &log})
	before := log.String()
	header, err := ReadStateHeader(state)
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]any{"outputs": map[string]any{"other": map[string]any{"value": "x", "type": "string"}}}
	with := func(serial uint64, lineage string) []byte {
		out := changed(t, changed(t, state, other), map[string]any{"serial": serial, "lineage": lineage})
		return out
	}
	for _, test := range []struct {
		name     string
		push     []byte
		conflict bool
	}{
		{"what is stored already", state, false},
		{"another state with the same serial", with(header.Serial, header.Lineage), true},
		{"an older state", with(header.Serial-1, header.Lineage), true},
		{"a state of another lineage", with(header.Serial+1, "another"), true},
		{"a newer state", with(header.Serial+1, header.Lineage), false},
		{"that again", with(header.Serial+1, header.Lineage), false},
		{"the same with the serial of what it replaced", with(header.Serial, header.Lineage), false},
		{"the same, as an empty backend would store it", with(1, "another"), false},
	} {
		err := r.PushState(t.Context(), stateFile(t, test.push), PushOptions{})
		if (err != nil) != test.conflict || errors.Is(err, ErrStateConflict) != test.conflict {
			t.Errorf("PushState(%s) error = %v, want a conflict: %t", test.name, err, test.conflict)
		}
		if test.conflict {
			wantContains(t, "message", wantCode(t, err, provision.CodeStateUnsaved).Message, kind+" state push failed", "state: cannot")
		}
	}
	stored, err := os.ReadFile(filepath.Join(r.dir, "terraform.tfstate"))
	if err != nil || !strings.Contains(string(stored), `"other"`) {
		t.Errorf("state = %s, %v, want the newer one", stored, err)
	}
	if after := log.String(); after != before {
		t.Errorf("the pushes printed %q, want nothing", strings.TrimPrefix(after, before))
	}
}

func TestSameState(t *testing.T) {
	t.Parallel()
	const state = `{"version":4,"serial":3,"lineage":"l","terraform_version":"1.11.4","outputs":{},"resources":[{"instances":[{"attributes":{"id":12345678901234567890}}]}],"check_results":null}`
	for other, want := range map[string]bool{
		state: true,
		`{"terraform_version":"1.9.0", "version":4,"serial":9,"lineage":"m","outputs":{},"resources":[{"instances":[{"attributes":{"id":12345678901234567890}}]}]}`: true,
		strings.Replace(state, "890}", "891}", 1):               false,
		strings.Replace(state, `"outputs":{},`, "", 1):          false,
		strings.Replace(state, `"version":4`, `"version":3`, 1): false,
		state[:len(state)-1]:                                    false,
		"":                                                      false,
	} {
		if got := sameState([]byte(state), []byte(other)); got != want {
			t.Errorf("sameState(%s, %s) = %t, want %t", state, other, got, want)
		}
	}
}

// More than is held in memory ends the pull: it is not taken for the same.
func TestHugePullIsRefused(t *testing.T) {
	t.Parallel()
	told := 0
	var held strings.Builder
	w := &limitWriter{to: &held, left: 3, exceeded: func() { told++ }}
	if _, err := w.Write([]byte("abc")); err != nil || told != 0 {
		t.Errorf("Write(3 of 3 bytes) = %v, told %d times, want neither", err, told)
	}
	if _, err := w.Write([]byte("d")); err != nil || told != 1 || held.String() != "abc" {
		t.Errorf("Write(the 4th byte) = %v, told %d times, holds %q, want it told once and dropped", err, told, held.String())
	}
}

// A push waits for the state's lock, as any other command that writes.
func TestPushObeysTheLock(t *testing.T) {
	t.Parallel()
	const holder = `{"ID":"4c8f-77","Operation":"OperationTypeApply","Who":"ann@laptop","Version":"1.11.4","Created":"2026-01-02T03:04:05Z","Path":"p","Info":""}`
	var posts atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.Method {
		case "LOCK":
			w.WriteHeader(http.StatusLocked)
			_, _ = w.Write([]byte(holder))
		case http.MethodPost:
			posts.Add(1)
		default:
			http.NotFound(w, req)
		}
	}))
	t.Cleanup(server.Close)
	r := newReal(t, Terraform, fmt.Sprintf("terraform {\n  backend \"http\" {\n    address = %q\n    lock_address = %q\n  }\n}\n", server.URL, server.URL), Options{})
	if err := r.Init(t.Context(), InitOptions{}); err != nil {
		t.Fatal(err)
	}
	err := r.PushState(t.Context(), stateFile(t, []byte(`{"version":4,"serial":1,"lineage":"l","outputs":{},"resources":[]}`)), PushOptions{})
	wantContains(t, "message", wantCode(t, err, provision.CodeStateLocked).Message, "lock id 4c8f-77", "force-unlock 4c8f-77")
	if posts.Load() != 0 {
		t.Errorf("%d states were written under another's lock, want none", posts.Load())
	}
}

// A push that hangs does not heed the interrupt: it ends by KillAfter.
func TestPushThatHangsIsKilled(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "stubborn", Options{Stragglers: func() {}})
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.PushState(ctx, "x", PushOptions{KillAfter: time.Millisecond}) }()
	engine, grandchild := f.awaitPID("pid"), f.awaitPID("grandchild")
	cancel(errStop)
	patience.Await(t, "the engine is killed", func() bool { return !alive(engine) })
	if err := syscall.Kill(grandchild, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, errStop) {
		t.Errorf("PushState() error = %v, want one that wraps %q", err, errStop)
	}
}

// What an apply leaves may have the serial of the state it began with; it is
// pushed all the same, unless somebody else has written meanwhile.
func TestFollow(t *testing.T) {
	t.Parallel()
	r, state := applied(t, Terraform, Options{})
	if _, err := r.Plan(t.Context(), PlanOptions{Out: "next"}); err != nil {
		t.Fatal(err)
	}
	base, err := ReadPlanBase(filepath.Join(r.dir, "next"))
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := ReadStateHeader(state); base.State != want || base.Room < 2*int64(len(state)) {
		t.Errorf("ReadPlanBase() = %+v, want the state %+v of %d bytes", base, want, len(state))
	}
	left := changed(t, state, map[string]any{"outputs": map[string]any{"made": map[string]any{"value": "x", "type": "string"}}})
	if err := r.PushState(t.Context(), stateFile(t, left), PushOptions{}); !errors.Is(err, ErrStateConflict) {
		t.Fatalf("PushState(same serial) error = %v, want a conflict: else Follow has no use", err)
	}
	next, err := Follow(left, base.State)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.PushState(t.Context(), stateFile(t, next), PushOptions{}); err != nil {
		t.Errorf("PushState(Follow(state)) error = %v, want nil", err)
	}
	others := changed(t, next, map[string]any{"outputs": map[string]any{}})
	if err := r.PushState(t.Context(), stateFile(t, others), PushOptions{}); !errors.Is(err, ErrStateConflict) {
		t.Errorf("PushState(Follow(state)) after another's write: error = %v, want a conflict", err)
	}
	for _, keep := range [][]byte{
		changed(t, left, map[string]any{"lineage": "another"}),
		changed(t, left, map[string]any{"serial": base.State.Serial + 7}),
	} {
		if got, err := Follow(keep, base.State); err != nil || string(got) != string(keep) {
			t.Errorf("Follow(%s) = %s, %v, want it unchanged", keep, got, err)
		}
	}
	if _, err := Follow(state[:len(state)/2], base.State); err == nil {
		t.Error("Follow(half a state) error = nil, want one")
	}
}
