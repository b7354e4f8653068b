//go:build metal

package ironic

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	testironic "github.com/tendril-run/tendril/internal/testkit/ironic"
	"github.com/tendril-run/tendril/provisioner"
)

// rebuild begins to make a machine again where it is, and fails unless that is so.
func (l *lab) rebuild(spec pool.Spec, want bool) *heard {
	l.t.Helper()
	p := &heard{t: l.t}
	begun, err := l.driver.Rebuild(l.ctx, refTo(spec), spec, p)
	if err != nil || begun != want {
		l.t.Errorf("Rebuild = %v, %v after %q, want %v", begun, err, p.logs, want)
	}
	return p
}

// A machine with another image is made again on its server, which stays allocated to it.
func TestRebuild(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	spec := l.spec("web", l.names[0])
	l.create(spec)
	defer l.destroy(spec)
	before := l.node(l.names[0])
	spec.Image = "other"
	spec.Init.UserData = "#cloud-config\nhostname: again\n"
	l.driver.config.Images = append(l.driver.config.Images, pool.ImageSource{Name: "other", Source: "http://127.0.0.1/other.raw", Checksum: "d41d8cd98f00b204e9800998ecf8427e"})
	l.rebuild(spec, true)
	if n := l.node(l.names[0]); n.InstanceUUID != spec.ID || n.AllocationUUID != spec.ID {
		t.Errorf("while it is rebuilt the server is %+v", n)
	}
	l.rebuild(spec, true) // an agent that takes the run up asks again, and it has begun already
	p := &heard{t: t}
	found, err := l.driver.Create(l.ctx, spec, p)
	n := l.node(l.names[0])
	if err != nil || !found.Ready || found.ExternalID != before.UUID {
		t.Errorf("Create = %+v, %v", found, err)
	}
	if n.ProvisionState != "active" || n.AllocationUUID != spec.ID || n.InstanceInfo["image_source"] != "http://127.0.0.1/other.raw" || n.Extra[extraRebuild] != nil || n.Extra[extraMachine] != spec.ID {
		t.Errorf("the server is %+v", n)
	}
	l.rebuild(spec, true) // asked for once more, it is done once more
	if _, err := l.driver.Create(l.ctx, spec, &heard{t: t}); err != nil {
		t.Error(err)
	}
}

// Where its server would not do, or its disks are to be erased, a machine is not made again there.
func TestNoRebuild(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2)
	spec := l.spec("web", l.names[0])
	l.create(spec)
	defer l.destroy(spec)
	for why, change := range map[string]func(*pool.Spec){
		"clean":                    func(s *pool.Spec) { s.Settings = json.RawMessage(`{"clean":"full"}`) },
		"lacks the class":          func(s *pool.Spec) { s.Settings = json.RawMessage(`{"resource_class":"another"}`) },
		"traits":                   func(s *pool.Spec) { s.Settings = json.RawMessage(`{"traits":["CUSTOM_GPU"]}`) },
		"memory":                   func(s *pool.Spec) { s.Memory = 1 << 20 },
		"the template names other": func(s *pool.Spec) { s.Named, s.Node = true, l.names[1] },
	} {
		other := spec
		change(&other)
		p := l.rebuild(other, false)
		if said := strings.Join(p.logs, "\n"); !strings.Contains(said, strings.TrimSuffix(why, " other")) {
			t.Errorf("%s: the log says %q", why, said)
		}
	}
	gone := l.spec("gone", l.names[1])
	l.rebuild(gone, false)
	if err := l.Call(l.ctx, http.MethodPut, "/v1/nodes/"+l.names[0]+"/maintenance", map[string]any{"reason": "a fan is broken"}, nil); err != nil {
		t.Fatal(err)
	}
	l.rebuild(spec, false)
	if err := l.Call(l.ctx, http.MethodDelete, "/v1/nodes/"+l.names[0]+"/maintenance", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := l.To(l.ctx, l.names[0], "rescue", "rescue"); err == nil {
		t.Error("Ironic rescues without a password")
	}
	if _, err := l.driver.Rescue(l.ctx, refTo(spec), "PASSWORD", &heard{t: t}); err != nil {
		t.Fatal(err)
	}
	l.rebuild(spec, false)
	if n := l.node(l.names[0]); n.ProvisionState != "rescue" || n.Extra[extraRebuild] != nil {
		t.Errorf("the server was touched: %+v", n)
	}
}

// The conductor ends during a rebuild: it is begun again, and nobody else gets the server meanwhile.
func TestRebuildAfterACrash(t *testing.T) {
	t.Parallel()
	i := testironic.Start(t, testironic.Options{Fake: "deploy_delay = 3"})
	l := labOn(t, i, 1, i.URL)
	spec := l.spec("web", l.names[0])
	l.create(spec)
	l.rebuild(spec, true)
	if err := l.Await(l.ctx, l.names[0], "deploying"); err != nil {
		t.Fatal(err)
	}
	i.Kill()
	if err := i.Restart(l.ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.Await(l.ctx, l.names[0], "deploy failed"); err != nil {
		t.Fatal(err)
	}
	other := l.spec("other", l.names[0])
	if _, err := l.driver.Create(l.ctx, other, &heard{t: t}); err == nil {
		t.Error("another machine gets the server")
	}
	p := &heard{t: t}
	found, err := l.driver.Create(l.ctx, spec, p)
	if err != nil || !found.Ready || !slices.ContainsFunc(p.logs, func(line string) bool { return strings.Contains(line, "begun again") }) {
		t.Errorf("Create = %+v, %v after %q", found, err, p.logs)
	}
}

// A rebuild that fails says so, and the next one starts over.
func TestRebuildFails(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	spec := l.spec("web", l.names[0])
	l.create(spec)
	defer l.destroy(spec)
	refused := spec
	refused.Settings = json.RawMessage(`{"deploy_steps": [{"interface": "deploy", "step": "deploy", "priority": 100, "args": {"nonsense": true}}]}`)
	if begun, err := l.driver.Rebuild(l.ctx, refTo(spec), refused, &heard{t: t}); begun || err == nil || !strings.Contains(err.Error(), "unexpected arguments: nonsense") {
		t.Errorf("Rebuild with a step that Ironic refuses = %v, %v", begun, err)
	}
	// This interface has the image read, which nobody serves.
	deploysBy := func(way string) {
		t.Helper()
		for _, call := range []struct {
			method, path string
			body         any
		}{
			{http.MethodPut, "/maintenance", map[string]any{"reason": "it gets another interface"}},
			{http.MethodPatch, "", []map[string]any{add("/deploy_interface", way)}},
			{http.MethodDelete, "/maintenance", nil},
		} {
			if err := l.Again(l.ctx, func() error { return l.Call(l.ctx, call.method, "/v1/nodes/"+l.names[0]+call.path, call.body, nil) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	deploysBy("direct")
	l.rebuild(spec, true)
	found, err := l.driver.Create(l.ctx, spec, &heard{t: t})
	wantCode(t, err, provision.CodeImageNotFound, "deploy failed", "http://127.0.0.1/debian.raw")
	if found.ExternalID == "" || found.Ready || found.Status != provisioner.StatusFailed {
		t.Errorf("it is known as %+v", found)
	}
	deploysBy("fake")
	l.rebuild(spec, true)
	if found, err := l.driver.Create(l.ctx, spec, &heard{t: t}); err != nil || !found.Ready {
		t.Errorf("Create = %+v, %v", found, err)
	}
}
