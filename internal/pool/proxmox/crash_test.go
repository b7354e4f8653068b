package proxmox

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pvesim"
)

// strangers puts 50 machines of others into the cluster, which look like Tendril's: its names,
// its tag, other machines' marks, its own mark in a sentence or twice, no mark at the VMIDs that
// states may name.
func (l *lab) strangers() {
	other := "0b7c1f0e-5a77-4d0e-9a1c-2f4f8f1f5a02"
	texts := []string{
		"", "golden", markLine + other, "about " + markLine + machineID, markLine + machineID + "0", markLine + machineID[:30], "tendril-machine:" + machineID,
		markLine + machineID + "\n" + markLine + other, markLine + "\n" + stateLine + creating, machineID,
	}
	for i := range 50 {
		config := map[string]string{"name": []string{"web-1", "web-1.example", "web-10", "debian-12"}[i%4], "memory": "128", "agent": "1", "boot": "order=scsi0", "scsi0": fmt.Sprintf("disks:%d/vm-%d-disk-0.qcow2,size=1G", 600+i, 600+i)}
		if text := texts[i%len(texts)]; text != "" {
			config["description"] = text
		}
		if i%3 == 0 {
			config["tags"] = "lab;tendril"
		}
		l.pve.Machine([]string{"pve1", "pve2", "pve3"}[i%3], 600+i, config)
		l.pve.Run(600+i, i%2 == 0)
	}
}

// foreign is a digest of all that is not the machine's.
func (l *lab) foreign() string {
	own := l.marked()
	own = slices.DeleteFunc(own, func(id int) bool { return id >= 600 && id < 650 })
	return l.pve.Digest(func(id int) bool { return !slices.Contains(own, id) })
}

func (l *lab) mine() []int {
	return slices.DeleteFunc(l.marked(), func(id int) bool { return id >= 600 && id < 650 })
}

// counted leaves out that strangers' machines are read, which is fifty times the same.
func counted(path string) bool { return !strings.Contains(path, "/qemu/6") }

// Each request in turn loses its connection, before or after it was carried out, and the agent
// with it. The next agent gets one machine, complete, and nobody else's was touched.
func TestCutAtEachRequest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		spec pool.Spec
	}{
		{"reserved VMID", spec(at("10.99.0.50/24"))},
		{"next free VMID", spec(at("10.99.0.50/24"), func(s *pool.Spec) { s.VMID = 0 })},
	} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, carried out: %v", c.name, after), func(t *testing.T) {
				t.Parallel()
				l := newLab(t, func(o *pvesim.Options) { o.Speed = 400 })
				l.strangers()
				before := l.foreign()
				for n := 1; ; n++ {
					if !drawn(n) {
						continue
					}
					if !l.cutAt(c.spec, n, after, before) {
						if n < 20 {
							t.Errorf("only %d requests were cut", n)
						}
						return
					}
				}
			})
		}
	}
}

// drawn reports whether the n-th request is cut in this run: each with TENDRIL_TEST_FAULTS=all,
// else one in three.
func drawn(n int) bool {
	return os.Getenv("TENDRIL_TEST_FAULTS") == "all" || rand.N(3) == 0
}

// cutAt has one agent die at its n-th request. It reports whether there was one.
func (l *lab) cutAt(s pool.Spec, n int, after bool, before string) bool {
	ctx := l.context()
	l.pve.CutRequest(n, after, counted)
	_, err := l.dying(n).Create(ctx, s, &heard{})
	reached := l.pve.Met()
	if err := l.pve.Faults(""); err != nil {
		l.Fatal(err)
	}
	if !reached && err != nil {
		l.Errorf("request %d: %v", n, err)
	}
	got, err := l.driver().Create(ctx, s, &heard{})
	mine := l.mine()
	switch {
	case err != nil:
		l.Errorf("request %d was cut (carried out: %v), and the next Create fails: %v", n, after, err)
	case len(mine) != 1 || !got.Ready || fmt.Sprint(mine[0]) != got.ExternalID || l.pve.Config(mine[0])["running"] != "true" || l.pve.Config(mine[0])["scsi0"] == "" || l.pve.Config(mine[0])["ciuser"] != "student":
		l.Errorf("request %d was cut (carried out: %v): machines %v, found %+v", n, after, mine, got)
	}
	if l.foreign() != before {
		l.Fatalf("request %d was cut (carried out: %v): somebody else's machine has changed", n, after)
	}
	if err := l.driver().Destroy(ctx, pool.Ref{ID: s.ID, Name: s.Name, ExternalID: got.ExternalID, Node: got.Node}, &heard{}); err != nil || len(l.mine()) != 0 {
		l.Fatalf("request %d: Destroy: %v, left %v", n, err, l.mine())
	}
	if l.foreign() != before {
		l.Fatalf("request %d: Destroy has changed somebody else's machine", n)
	}
	return reached
}

// The same for the removal of a machine that runs.
func TestCutAtEachRequestOfDestroy(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("carried out: %v", after), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, func(o *pvesim.Options) { o.Speed = 400 })
			l.strangers()
			before := l.foreign()
			for n := 1; ; n++ {
				if !drawn(n) {
					continue
				}
				ctx := l.context()
				if _, err := l.driver().Create(ctx, spec(at("10.99.0.50/24")), &heard{}); err != nil {
					t.Fatal(err)
				}
				l.pve.CutRequest(n, after, counted)
				_ = l.dying(n).Destroy(ctx, l.ref(), &heard{})
				reached := l.pve.Met()
				if err := l.pve.Faults(""); err != nil {
					t.Fatal(err)
				}
				if err := l.driver().Destroy(ctx, l.ref(), &heard{}); err != nil || len(l.mine()) != 0 {
					t.Errorf("request %d: %v, left %v", n, err, l.mine())
				}
				if l.foreign() != before {
					t.Fatalf("request %d: somebody else's machine has changed", n)
				}
				if !reached {
					if n < 6 {
						t.Errorf("only %d requests were cut", n)
					}
					return
				}
			}
		})
	}
}

// The same for a change that a running machine is restarted for, with a snapshot made before: it
// runs afterwards.
func TestCutAtEachRequestOfChange(t *testing.T) {
	t.Parallel()
	larger := spec(at("10.99.0.50/24"), with(`{"snapshot":true}`), func(s *pool.Spec) { s.Memory, s.Disk = 4096, 16 })
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("carried out: %v", after), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, func(o *pvesim.Options) { o.Speed = 400 })
			l.strangers()
			before := l.foreign()
			for n, reached := 1, true; reached; n++ {
				if !drawn(n) {
					continue
				}
				ctx := l.context()
				if _, err := l.driver().Create(ctx, spec(at("10.99.0.50/24")), &heard{}); err != nil {
					t.Fatal(err)
				}
				l.pve.CutRequest(n, after, counted)
				_, _ = l.dying(n).Change(ctx, l.ref(), larger, &heard{})
				reached = l.pve.Met()
				if err := l.pve.Faults(""); err != nil {
					t.Fatal(err)
				}
				got, err := l.driver().Change(ctx, l.ref(), larger, &heard{})
				config := l.pve.Config(500)
				if err != nil || !got.Ready || got.Memory != 4096 || config["running"] != "true" || !strings.Contains(config["description"], stateLine+ready) {
					t.Errorf("request %d: Change = %+v, %v, and the machine is %v; want it running", n, got, err, config)
				}
				if l.foreign() != before {
					t.Fatalf("request %d: somebody else's machine has changed", n)
				}
				if !reached && n < 12 {
					t.Errorf("only %d requests were cut", n)
				}
				if err := l.driver().Destroy(ctx, l.ref(), &heard{}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A VMID in a state may be another's by now, and one that is reserved may have been taken.
func TestVMIDOfAnother(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.strangers()
	before := l.foreign()
	d, ctx := l.driver(), l.context()
	for i := range 50 {
		ref := pool.Ref{ID: machineID, Name: "web-1", ExternalID: fmt.Sprint(600 + i), Node: []string{"pve1", "pve2", "pve3"}[i%3]}
		if _, err := d.Look(ctx, ref); !errors.Is(err, pool.ErrGone) {
			t.Errorf("Look at VM %d = %v, want ErrGone", 600+i, err)
		}
		if err := d.Destroy(ctx, ref, &heard{}); err != nil {
			t.Errorf("Destroy of VM %d: %v", 600+i, err)
		}
		if _, err := d.Power(ctx, ref, "stop", &heard{}); !errors.Is(err, pool.ErrGone) {
			t.Errorf("Power of VM %d = %v", 600+i, err)
		}
	}
	for _, id := range []int{600, 601, 602} {
		_, err := d.Create(ctx, spec(at("10.99.0.50/24"), func(s *pool.Spec) { s.VMID = id }), &heard{})
		if !errors.Is(err, pool.ErrForeign) {
			t.Errorf("Create at VM %d = %v, want ErrForeign", id, err)
		}
	}
	if l.foreign() != before || len(l.mine()) != 0 {
		t.Error("somebody else's machine has changed")
	}
}
