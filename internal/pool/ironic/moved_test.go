package ironic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/pool"
)

// heard is a Progress that keeps what it is told.
type heard struct {
	t       testing.TB
	mu      sync.Mutex
	ids     []string
	percent []int
	logs    []string
	begun   []pool.Found
}

func (h *heard) Step(id, label string, percent int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ids) == 0 || h.ids[len(h.ids)-1] != id {
		h.ids = append(h.ids, id)
	}
	if label == "" {
		h.t.Errorf("the step %s has no label", id)
	}
	if n := len(h.percent); n > 0 && percent < h.percent[n-1] {
		h.t.Errorf("%s: %d %% after %d", id, percent, h.percent[n-1])
	}
	h.percent = append(h.percent, percent)
}

func (h *heard) Log(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.logs = append(h.logs, fmt.Sprintf(format, args...))
}

func (h *heard) Secret(string) {}

func (h *heard) Begun(f pool.Found) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun = append(h.begun, f)
}

// one is an Ironic of a single server, in the form of the wire.
type one struct {
	mu      sync.Mutex
	node    map[string]any
	changes []string // method and path of each request that changes something
	t       testing.TB
	// checked is called after each request; nil: nothing is.
	checked func()
	// refuse is asked of each of them, and says that it has answered it; nil: all are done.
	refuse func(w http.ResponseWriter, r *http.Request) bool
}

func newOne(instance string, extra map[string]any) *one {
	o := &one{node: map[string]any{
		"uuid": fakeID, "name": "n1", "provision_state": "active", "power_state": "power on", "resource_class": "bm", "extra": extra, "maintenance": false,
	}}
	if instance != "" {
		o.node["instance_uuid"] = instance
	}
	return o
}

func (o *one) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() {
		if o.checked != nil {
			o.checked()
		}
	}()
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	if r.Method != http.MethodGet {
		o.changes = append(o.changes, r.Method+" "+path)
		if o.refuse != nil && o.refuse(w, r) {
			return
		}
	}
	switch {
	case path == "/nodes" && r.URL.Query().Has("instance_uuid") && r.URL.Query().Get("instance_uuid") != o.node["instance_uuid"]:
		_, _ = w.Write([]byte(`{"nodes":[]}`))
	case path == "/nodes":
		_ = json.NewEncoder(w).Encode(map[string]any{"nodes": []any{o.node}})
	case strings.HasPrefix(path, "/allocations"):
		says(w, 404, "no such allocation")
	case strings.HasSuffix(path, "/states/provision"):
		var body struct {
			Target string `json:"target"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		if body.Target == "clean" && o.node["maintenance"] == true {
			o.t.Error("it is cleaned in maintenance, so that Ironic does not hear it")
		}
		if body.Target == "deleted" {
			delete(o.node, "instance_uuid")
		}
		o.node["provision_state"] = map[string]string{"deleted": "available", "provide": "available", "manage": "manageable", "clean": "manageable"}[body.Target]
		w.WriteHeader(http.StatusAccepted)
	case strings.HasSuffix(path, "/maintenance"):
		var body struct {
			Reason string `json:"reason"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		o.node["maintenance"], o.node["maintenance_reason"] = r.Method == http.MethodPut, body.Reason
		w.WriteHeader(http.StatusAccepted)
	case r.Method == http.MethodPatch:
		var body []struct {
			Op    string `json:"op"`
			Path  string `json:"path"`
			Value any    `json:"value"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		for _, c := range body {
			into, name := o.node, strings.TrimPrefix(c.Path, "/")
			if extra, is := strings.CutPrefix(name, "extra/"); is {
				into, name = o.node["extra"].(map[string]any), extra
			}
			if into[name] = c.Value; c.Op == "remove" {
				delete(into, name)
			}
		}
		_ = json.NewEncoder(w).Encode(o.node)
	case path == "/nodes/"+fakeID && r.Method != http.MethodDelete:
		_ = json.NewEncoder(w).Encode(o.node)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// A request that has to be repeated is not sent to a server that went to somebody else meanwhile.
func TestRepeatsLookWhoseTheServerIs(t *testing.T) {
	t.Parallel()
	mine, theirs := uuid.NewString(), uuid.NewString()
	for name, do := range map[string]func(context.Context, *Driver, *node) error{
		"provision": func(ctx context.Context, d *Driver, n *node) error {
			return d.provision(ctx, n, map[string]any{"target": "deleted"})
		},
		"patch": func(ctx context.Context, d *Driver, n *node) error {
			return d.patch(ctx, n, "write", func(*node) []map[string]any { return []map[string]any{add("/extra/a", "b")} })
		},
		"power": func(ctx context.Context, d *Driver, n *node) error {
			_, err := d.power(ctx, n, "power off", "power off", false, func(n *node) bool { return n.ours(mine) })
			return err
		},
		"maintenance": func(ctx context.Context, d *Driver, n *node) error { return d.maintenance(ctx, n, "reason") },
		"trait": func(ctx context.Context, d *Driver, n *node) error {
			return d.delete(ctx, n, "remove", "nodes", n.UUID, "traits", "A")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for how, answer := range map[string]func(http.ResponseWriter){
				"locked": func(w http.ResponseWriter) { says(w, 409, "Node n1 is locked by host c1, please retry") },
				"lost":   func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
			} {
				o := newOne(mine, nil)
				o.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
					if len(o.changes) > 1 {
						return false
					}
					o.node["instance_uuid"] = theirs
					answer(w)
					return true
				}
				d := served(t, 2000, o.ServeHTTP)
				n := &node{UUID: fakeID, Name: "n1", InstanceUUID: mine}
				if err := do(t.Context(), d, n); !errors.Is(err, pool.ErrForeign) && !errors.Is(err, errMoved) {
					t.Errorf("%s: %v, want that it is another's", how, err)
				}
				if len(o.changes) != 1 {
					t.Errorf("%s: somebody else's server got %q", how, o.changes[1:])
				}
			}
		})
	}
}

// The server of a machine that is undeployed by hand, while Tendril's own request finds it locked,
// goes to another owner: that one keeps it.
func TestDestroyLeavesTheNextOwnersServerAlone(t *testing.T) {
	t.Parallel()
	mine, theirs := uuid.NewString(), uuid.NewString()
	o := newOne(mine, map[string]any{extraMachine: mine})
	o.refuse = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/states/provision") && o.node["instance_uuid"] == mine {
			o.node["instance_uuid"], o.node["extra"] = theirs, nil
			says(w, 409, "Node n1 is locked by host c1, please retry")
			return true
		}
		return false
	}
	d := served(t, 2000, o.ServeHTTP)
	if err := d.Destroy(t.Context(), pool.Ref{ID: mine, Name: "web"}, &heard{t: t}); err != nil {
		t.Errorf("Destroy = %v", err)
	}
	if want := []string{"PUT /nodes/" + fakeID + "/states/provision"}; !slices.Equal(o.changes, want) {
		t.Errorf("it was asked for %q, want %q", o.changes, want)
	}
}

// From the moment that others may get a server, it is as it was before; and where the last request
// is lost with its agent, the next one ends what is left.
func TestOthersGetAServerAsItWas(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"none", "metadata", "full"} {
		for _, crash := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, %t", how, crash), func(t *testing.T) {
				t.Parallel()
				mine := uuid.NewString()
				ctx, kill := context.WithCancelCause(t.Context())
				defer kill(nil)
				o := newOne(mine, map[string]any{extraMachine: mine, extraClean: how})
				o.t, o.node["automated_clean"] = t, true
				o.checked = func() {
					if o.node["provision_state"] == "available" && o.node["maintenance"] == false && (o.node["automated_clean"] != true || len(o.node["extra"].(map[string]any)) > 0) {
						t.Errorf("others can get it as %v", o.node)
					}
				}
				kills := crash
				o.refuse = func(_ http.ResponseWriter, r *http.Request) bool {
					last := kills && r.Method == http.MethodDelete && o.node["provision_state"] == "available"
					if last {
						kills = false
						kill(errors.New("the agent was killed"))
					}
					return last
				}
				d := served(t, 2000, o.ServeHTTP)
				ref := pool.Ref{ID: mine, Name: "web", ExternalID: fakeID}
				if err := d.Destroy(ctx, ref, &heard{t: t}); (err == nil) == crash {
					t.Errorf("Destroy = %v", err)
				}
				if err := d.Destroy(t.Context(), ref, &heard{t: t}); err != nil {
					t.Errorf("Destroy by the next agent = %v", err)
				}
				if o.node["maintenance"] != false || o.node["provision_state"] != "available" {
					t.Errorf("the server is %v", o.node)
				}
				if cleaned := strings.Count(strings.Join(o.changes, " "), "/states/provision"); (cleaned > 1) != (how != "none") {
					t.Errorf("its state was changed %d times", cleaned)
				}
			})
		}
	}
}

// A server that the operator has taken out of the pool's nodes is set back all the same.
func TestDestroyEndsWhatIsLeftOutsideThePool(t *testing.T) {
	t.Parallel()
	mine := uuid.NewString()
	o := newOne("", map[string]any{extraMachine: mine})
	o.t, o.node["provision_state"] = t, "available"
	d := served(t, 2000, o.ServeHTTP)
	d.config.Nodes = []string{"n2"}
	if err := d.Destroy(t.Context(), pool.Ref{ID: mine, Name: "web"}, &heard{t: t}); err != nil || len(o.node["extra"].(map[string]any)) > 0 {
		t.Errorf("Destroy = %v, and the server is %v", err, o.node)
	}
}

// Which servers are still what they were read as.
func TestSame(t *testing.T) {
	t.Parallel()
	extra := func(name, value string) map[string]json.RawMessage {
		return map[string]json.RawMessage{name: json.RawMessage(`"` + value + `"`)}
	}
	for name, c := range map[string]struct {
		was, now node
		want     bool
	}{
		"ours":              {node{InstanceUUID: "a"}, node{InstanceUUID: "a"}, true},
		"another's":         {node{InstanceUUID: "a"}, node{InstanceUUID: "b", Extra: extra(extraMachine, "a")}, false},
		"left by us":        {node{InstanceUUID: "a"}, node{Extra: extra(extraMachine, "a")}, true},
		"left by another":   {node{InstanceUUID: "a"}, node{Extra: extra(extraMachine, "b")}, false},
		"free":              {node{InstanceUUID: "a"}, node{}, false},
		"free, as it was":   {node{}, node{}, true},
		"taken":             {node{Extra: extra(extraMachine, "a")}, node{InstanceUUID: "b"}, false},
		"with nothing left": {node{Extra: extra(extraMachine, "a")}, node{}, true},
		"enrolled":          {node{Extra: extra(extraServer, "s")}, node{Extra: extra(extraServer, "s")}, true},
		"enrolled anew":     {node{Extra: extra(extraServer, "s")}, node{Extra: extra(extraServer, "r")}, false},
	} {
		if got := c.was.same(&c.now); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
