//go:build metal

package ironic

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// A server is enrolled by its name once, brought to available, and brought on from wherever an
// earlier try has left it.
func TestEnroll(t *testing.T) {
	t.Parallel()
	l := newLab(t, 0)
	id := uuid.NewString()
	mac := "52:54:00:" + id[0:2] + ":" + id[2:4] + ":" + id[4:6]
	s := Server{
		Name: l.class + "-e1", Driver: "fake-hardware", ResourceClass: l.class, Traits: []string{"CUSTOM_NVME"}, MACs: []string{strings.ToUpper(mac)},
		Cores: 16, Memory: 65536, Disk: 960, Kernel: "http://127.0.0.1/k", Ramdisk: "http://127.0.0.1/r",
	}
	for _, cores := range []int{16, 32} { // the second one changes what is there
		s.Cores = cores
		p := &heard{t: t}
		got, err := l.driver.Enroll(l.ctx, s, p)
		if err != nil || got.ProvisionState != "available" || got.Name != s.Name {
			t.Fatalf("Enroll = %+v, %v", got, err)
		}
		if p.percent[len(p.percent)-1] != 100 {
			t.Errorf("the steps are %v with %v percent", p.ids, p.percent)
		}
		var n struct {
			Traits     []string       `json:"traits"`
			Class      string         `json:"resource_class"`
			Properties map[string]any `json:"properties"`
			Info       map[string]any `json:"driver_info"`
		}
		if err := l.Call(l.ctx, http.MethodGet, "/v1/nodes/"+s.Name, nil, &n); err != nil {
			t.Fatal(err)
		}
		if n.Class != l.class || !slices.Equal(n.Traits, s.Traits) || n.Properties["cpus"] != float64(cores) || n.Info["deploy_kernel"] != s.Kernel {
			t.Errorf("the server is %+v", n)
		}
		var ports struct {
			Ports []struct {
				Address string `json:"address"`
			} `json:"ports"`
		}
		if err := l.Call(l.ctx, http.MethodGet, "/v1/ports?node="+got.ID, nil, &ports); err != nil || len(ports.Ports) != 1 || ports.Ports[0].Address != mac {
			t.Errorf("the ports are %+v, %v", ports, err)
		}
	}
	other := s
	other.Name = l.class + "-e2"
	if _, err := l.driver.Enroll(l.ctx, other, &heard{t: t}); err == nil || !strings.Contains(err.Error(), "another server has a port") {
		t.Errorf("Enroll with a port of another = %v", err)
	}
	// One that is in use is left as it is.
	if err := l.Patch(l.ctx, s.Name, add("/instance_uuid", uuid.NewString())); err != nil {
		t.Fatal(err)
	}
	before := l.node(s.Name)
	s.Cores = 64
	if _, err := l.driver.Enroll(l.ctx, s, &heard{t: t}); err != nil || l.node(s.Name).UpdatedAt != before.UpdatedAt {
		t.Errorf("Enroll of one in use = %v, and it was changed", err)
	}
}

// A BMC that can't be reached is told as that, and the server stays where it can be tried again.
func TestEnrollWithoutABMC(t *testing.T) {
	t.Parallel()
	l := newLab(t, 0)
	s := Server{Name: l.class + "-b", Driver: "redfish", Address: "http://127.0.0.1:1", User: "root", Password: "hunter2", VerifyCA: "false", System: "/redfish/v1/Systems/1"}
	_, err := l.driver.Enroll(l.ctx, s, &heard{t: t})
	wantCode(t, err, provision.CodeServerNotAvailable, "BMC")
	if err != nil && strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error has the password: %v", err)
	}
	if n := l.node(s.Name); n.ProvisionState != "enroll" {
		t.Errorf("the server is %+v", n)
	}
}
