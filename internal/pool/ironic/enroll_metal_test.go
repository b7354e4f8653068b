//go:build metal

package ironic

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pool/serverlist"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/provisioner"
)

// ReadServers reads a list as the command line does.
var ReadServers = serverlist.Read

// Enroll enrolls a server of a list, as the machine that its name stands for.
func (d *Driver) Enroll(ctx context.Context, s serverlist.Server, progress pool.Progress) (pool.Server, error) {
	found, err := d.Create(ctx, enrolled(s, uuid.NewSHA1(uuid.Nil, []byte(s.Name)).String()), progress)
	if found.ExternalID == "" {
		return pool.Server{}, err
	}
	n, look := d.read(ctx, found.ExternalID)
	if look != nil || n == nil {
		return pool.Server{}, errors.Join(err, look)
	}
	return *n.server(), err
}

// enrolled is a machine that is a server.
func enrolled(s serverlist.Server, id string) pool.Spec {
	block, err := json.Marshal(s)
	if err == nil && s.Password != "" {
		block, err = json.Marshal(struct {
			serverlist.Server
			Password string `json:"password"`
		}{s, s.Password})
	}
	if err != nil {
		panic(err) // of what is a text
	}
	return pool.Spec{ID: id, Name: s.Name, Workspace: "pools/metal", Settings: json.RawMessage(`{"enroll": ` + string(block) + `}`)}
}

// adopting is spec with adopt = true.
func adopting(spec pool.Spec) pool.Spec {
	spec.Settings = json.RawMessage(strings.Replace(string(spec.Settings), `{"enroll": {`, `{"enroll": {"adopt": true, `, 1))
	return spec
}

// known is what Ironic knows of a server.
type known struct {
	Traits     []string       `json:"traits"`
	Class      string         `json:"resource_class"`
	Properties map[string]any `json:"properties"`
	Info       map[string]any `json:"driver_info"`
	Extra      map[string]any `json:"extra"`
}

func (l *lab) known(name string) (n known, macs []string) {
	l.t.Helper()
	if err := l.Call(l.ctx, http.MethodGet, "/v1/nodes/"+name, nil, &n); err != nil {
		l.t.Fatal(err)
	}
	var ports struct {
		Ports []struct {
			Address string `json:"address"`
		} `json:"ports"`
	}
	if err := l.Call(l.ctx, http.MethodGet, "/v1/ports?node="+name, nil, &ports); err != nil {
		l.t.Fatal(err)
	}
	for _, p := range ports.Ports {
		macs = append(macs, p.Address)
	}
	slices.Sort(macs)
	return n, macs
}

func (l *lab) macs() (string, string) {
	id := uuid.NewString()
	return "52:54:00:" + id[0:2] + ":" + id[2:4] + ":" + id[4:6], "52:54:01:" + id[0:2] + ":" + id[2:4] + ":" + id[4:6]
}

// A server's whole life: enrolled once however often that is asked, found by its mark under any
// name, changed, switched, kept while it is in use, and removed.
func TestEnroll(t *testing.T) {
	t.Parallel()
	l := newLab(t, 0)
	first, second := l.macs()
	s := serverlist.Server{
		Name: l.class + "-e1", Driver: "fake-hardware", ResourceClass: l.class, Traits: []string{"CUSTOM_NVME"}, MACs: []string{strings.ToUpper(first)},
		Cores: 16, Memory: 65536, Disk: 960, Kernel: "http://127.0.0.1/k", Ramdisk: "http://127.0.0.1/r",
	}
	spec := enrolled(s, uuid.NewString())
	ref := pool.Ref{ID: spec.ID, Name: spec.Name, Server: true}
	if _, err := l.driver.Look(l.ctx, ref); !errors.Is(err, pool.ErrGone) {
		t.Fatalf("Look before = %v, want that it is gone", err)
	}
	var id string
	for range 2 { // the second one finds all done
		p := &heard{t: t}
		got, err := l.driver.Create(l.ctx, spec, p)
		if err != nil || !got.Ready || got.Mark != spec.ID || got.Node != "" || got.Status != provisioner.StatusStopped || id != "" && got.ExternalID != id {
			t.Fatalf("Create = %+v, %v", got, err)
		}
		id = got.ExternalID
		if p.percent[len(p.percent)-1] != 100 || len(p.begun) != 1 {
			t.Errorf("the steps are %v with %v percent, begun %v", p.ids, p.percent, p.begun)
		}
		n, macs := l.known(s.Name)
		if n.Class != l.class || !slices.Equal(n.Traits, s.Traits) || n.Properties["cpus"] != 16.0 || n.Info["deploy_kernel"] != s.Kernel || !slices.Equal(macs, []string{first}) {
			t.Errorf("the server is %+v with the ports %v", n, macs)
		}
		if n := l.node(s.Name); n.ProvisionState != "available" {
			t.Errorf("the server is %s", n.ProvisionState)
		}
	}
	// Another machine of that name or port is refused, and so is a server that is somebody's.
	if _, err := l.driver.Create(l.ctx, adopting(enrolled(s, uuid.NewString())), &heard{t: t}); !errors.Is(err, pool.ErrForeign) || !strings.Contains(err.Error(), "enrolled by workspace pools/metal") {
		t.Errorf("Create of another machine's = %v", err)
	}
	other := s
	other.Name = l.class + "-e2"
	if _, err := l.driver.Create(l.ctx, enrolled(other, uuid.NewString()), &heard{t: t}); err == nil || !strings.Contains(err.Error(), "another server has a port") {
		t.Errorf("Create with a port of another = %v", err)
	}

	// What is taken out of its description is removed, and what others have set stays.
	if err := l.Call(l.ctx, http.MethodPut, "/v1/nodes/"+id+"/traits/CUSTOM_OTHERS", map[string]any{}, nil); err != nil {
		t.Fatal(err)
	}
	s.Cores, s.Traits, s.MACs, s.Kernel, s.Ramdisk = 32, []string{"CUSTOM_GPU"}, []string{second}, "", ""
	changed := enrolled(s, spec.ID)
	if err := l.Patch(l.ctx, id, add("/name", s.Name+"-renamed")); err != nil {
		t.Fatal(err)
	}
	if got, err := l.driver.Look(l.ctx, ref); err != nil || got.ExternalID != id {
		t.Fatalf("Look of one that was renamed = %+v, %v", got, err)
	}
	if _, err := l.driver.Change(l.ctx, ref, changed, &heard{t: t}); err != nil {
		t.Fatal(err)
	}
	n, macs := l.known(id)
	if slices.Sort(n.Traits); !slices.Equal(n.Traits, []string{"CUSTOM_GPU", "CUSTOM_OTHERS"}) || !slices.Equal(macs, []string{second}) || n.Properties["cpus"] != 32.0 || n.Info["deploy_kernel"] != nil {
		t.Errorf("after the change it is %+v with the ports %v", n, macs)
	}
	for action, status := range map[provisioner.PowerAction]provisioner.MachineStatus{provisioner.PowerStart: provisioner.StatusRunning} {
		if got, err := l.driver.Power(l.ctx, ref, action, &heard{t: t}); err != nil || got.Status != status {
			t.Errorf("Power(%s) = %+v, %v", action, got, err)
		}
	}

	// Somebody's machine is on it: its BMC can be corrected, and nothing else is done to it. After that
	// machine is gone the server is known still.
	machine := l.spec("web", id)
	if _, err := l.driver.Create(l.ctx, machine, &heard{t: t}); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"destroy": func() error { return l.driver.Destroy(l.ctx, ref, &heard{t: t}) },
		"stop": func() error {
			_, err := l.driver.Power(l.ctx, ref, provisioner.PowerStop, &heard{t: t})
			return err
		},
		"change": func() error { _, err := l.driver.Change(l.ctx, ref, spec, &heard{t: t}); return err },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "is in use") || !strings.Contains(err.Error(), "machine web of workspace acme/prod") {
			t.Errorf("%s of one in use = %v", what, err)
		}
	}
	s.Kernel, s.Ramdisk = "http://127.0.0.1/k2", "http://127.0.0.1/r2"
	if _, err := l.driver.Change(l.ctx, ref, enrolled(s, spec.ID), &heard{t: t}); err != nil {
		t.Errorf("Change of what touches nobody = %v", err)
	}
	if got, err := l.driver.Create(l.ctx, enrolled(s, spec.ID), &heard{t: t}); err != nil || got.ExternalID != id {
		t.Errorf("Create of one in use = %+v, %v", got, err)
	}
	if n := l.node(id); n.ProvisionState != "active" || n.InstanceUUID != machine.ID {
		t.Errorf("the server is %+v, want it active for the machine", n)
	}
	if err := l.driver.Destroy(l.ctx, pool.Ref{ID: machine.ID, Name: "web", ExternalID: id}, &heard{t: t}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second one finds nothing
		if err := l.driver.Destroy(l.ctx, ref, &heard{t: t}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Node(l.ctx, id); err == nil {
		t.Error("Ironic knows the server still")
	}
	if _, err := l.driver.Look(l.ctx, ref); !errors.Is(err, pool.ErrGone) {
		t.Errorf("Look after = %v, want that it is gone", err)
	}
}

// A server that Ironic knows is taken over only where the template says so.
func TestAdopt(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	spec := enrolled(serverlist.Server{Name: l.names[0], Driver: "fake-hardware", ResourceClass: l.class}, uuid.NewString())
	before := l.node(l.names[0])
	if _, err := l.driver.Admit(l.ctx, spec); !errors.Is(err, pool.ErrForeign) || !strings.Contains(err.Error(), "adopt = true") {
		t.Errorf("Admit = %v", err)
	}
	if got, err := l.driver.Create(l.ctx, spec, &heard{t: t}); !errors.Is(err, pool.ErrForeign) || got.ExternalID != "" || l.node(l.names[0]).UpdatedAt != before.UpdatedAt {
		t.Fatalf("Create = %+v, %v", got, err)
	}
	spec = adopting(spec)
	if _, err := l.driver.Admit(l.ctx, spec); err != nil {
		t.Errorf("Admit with adopt = %v", err)
	}
	if got, err := l.driver.Create(l.ctx, spec, &heard{t: t}); err != nil || got.ExternalID != before.UUID || got.Mark != spec.ID {
		t.Errorf("Create with adopt = %+v, %v", got, err)
	}
}

// A BMC that can't be reached is told as that, and the server stays where it can be tried again. Its
// password is in no error, log or step.
func TestEnrollWithoutABMC(t *testing.T) {
	t.Parallel()
	l := newLab(t, 0)
	s := serverlist.Server{Name: l.class + "-b", Driver: "redfish", Address: "http://127.0.0.1:1", User: "root", Password: "hunter2", VerifyCA: "false", System: "/redfish/v1/Systems/1"}
	spec, p := enrolled(s, uuid.NewString()), &heard{t: t}
	got, err := l.driver.Create(l.ctx, spec, p)
	wantCode(t, err, provision.CodeServerNotAvailable, "BMC")
	if got.ExternalID == "" || got.Ready {
		t.Errorf("Create = %+v, want what is there of it", got)
	}
	if strings.Contains(strings.Join(append(p.logs, err.Error()), "\n"), "hunter2") {
		t.Errorf("the password is told: %v, %v", err, p.logs)
	}
	if n := l.node(s.Name); n.ProvisionState != "enroll" {
		t.Errorf("the server is %+v", n)
	}
	if err := l.driver.Destroy(l.ctx, pool.Ref{ID: spec.ID, Name: spec.Name, ExternalID: got.ExternalID, Server: true}, &heard{t: t}); err != nil {
		t.Errorf("Destroy of one that was never verified = %v", err)
	}
}

// Whatever moment an agent is killed at, the next one enrolls the same server on, also as another list
// has it by then, and nothing of the first list is left over.
func TestEnrolledOnAfterACrash(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"enroll", "bmc", "ports", "manageable", "available"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, 0)
			first, second := l.macs()
			s := serverlist.Server{Name: l.class + "-c", Driver: "fake-hardware", ResourceClass: l.class, Traits: []string{"CUSTOM_OLD"}, MACs: []string{first}}
			id := uuid.NewString()
			ctx, kill := context.WithCancelCause(l.ctx)
			_, err := l.driver.Create(ctx, enrolled(s, id), &until{&heard{t: t}, step, kill})
			kill(nil)
			if err != nil && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			s.Traits, s.MACs = []string{"CUSTOM_NEW"}, []string{second}
			found, err := l.open(l.URL).Create(l.ctx, enrolled(s, id), &heard{t: t})
			if err != nil || !found.Ready || l.node(s.Name).ProvisionState != "available" {
				t.Fatalf("the next agent's Create = %+v, %v", found, err)
			}
			if n, macs := l.known(s.Name); !slices.Equal(n.Traits, s.Traits) || !slices.Equal(macs, s.MACs) || n.Extra[extraServer] != id {
				t.Errorf("the server is %+v with the ports %v", n, macs)
			}
			ctx, kill = context.WithCancelCause(l.ctx)
			ref := pool.Ref{ID: id, Name: s.Name, ExternalID: found.ExternalID, Server: true}
			err = l.driver.Destroy(ctx, ref, &until{&heard{t: t}, "available", kill})
			kill(nil)
			if err != nil && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			if err := l.open(l.URL).Destroy(l.ctx, ref, &heard{t: t}); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Node(l.ctx, s.Name); err == nil {
				t.Error("Ironic knows the server still")
			}
		})
	}
}
