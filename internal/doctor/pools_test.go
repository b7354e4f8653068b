package doctor

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/config"
)

// What to do about a pool is advice, never what would have been found.
func TestPoolThatCannotBeReached(t *testing.T) {
	t.Parallel()
	v := (&doctor{uid: 1000}).pool(t.Context(), config.Pool{
		Name: "lab", Kind: "libvirt", Hosts: map[string]string{"hv1": "unix://" + t.TempDir() + "/no-socket"},
	})
	if v.status != Fail || !strings.HasPrefix(v.message, "hv1: reach: ") || v.action != "correct what is named, then run this again" {
		t.Errorf("a host that can't be reached: %+v", v)
	}
	v = (&doctor{}).pool(t.Context(), config.Pool{Name: "lab", Kind: "proxmox", URL: "https://192.0.2.1", TokenFile: t.TempDir() + "/none"})
	if v.status != Fail || strings.HasPrefix(v.message, "pool lab:") || v.action != "correct [[pools]] in the agent's configuration" {
		t.Errorf("a token that is missing: %+v", v)
	}
}

// What the agent reaches at a socket, its runs do not where they have uids of their own.
func TestPoolThatRunsCannotUse(t *testing.T) {
	t.Parallel()
	socket := "unix://" + t.TempDir() + "/no-socket"
	for name, c := range map[string]struct {
		uid  int
		uids string
		kind string
		says bool
	}{
		"root":             {0, "auto", "libvirt", true},
		"root, from a uid": {0, "70000", "libvirt", true},
		"off":              {0, "off", "libvirt", false},
		"not root":         {1000, "auto", "libvirt", false},
		"another kind":     {0, "auto", "proxmox", false},
	} {
		d := &doctor{uid: c.uid}
		d.Config.Run.UIDs = c.uids
		v := d.pool(t.Context(), config.Pool{Name: "lab", Kind: c.kind, URL: "https://192.0.2.1", Hosts: map[string]string{"hv2": socket, "hv1": socket, "hv3": "tls://127.0.0.1:1"}})
		says := strings.Contains(v.message, "runs can't use hv1, hv2 at unix://") && strings.Contains(v.action, "give tls:// URLs in hosts, or set run.uids to off")
		if says != c.says || v.status != Fail {
			t.Errorf("%s: %+v, want that runs can't use it: %v", name, v, c.says)
		}
	}
}
