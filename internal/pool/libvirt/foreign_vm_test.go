//go:build vm

package libvirt

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/provisioner"
)

func TestForeignDomainsAreNeverTouched(t *testing.T) {
	t.Parallel()
	h := hosts[1]
	other := uuid.NewString()
	marked := func(id string) string {
		return "<metadata><t:machine xmlns:t='" + namespace + "' id='" + id + "' stage='ready' storage='default' disk='tendril-" + id + ".qcow2'/></metadata>"
	}
	for name, foreign := range map[string]struct {
		// what the domain has; all is "" where it is something of its own
		sameName, sameID bool
		metadata         func(id string) string
		looked, created  error
	}{
		"the name, no mark":       {sameName: true, looked: pool.ErrForeign, created: pool.ErrForeign},
		"the name, another mark":  {sameName: true, metadata: func(string) string { return marked(other) }, looked: pool.ErrForeign, created: pool.ErrForeign},
		"the name, a copied mark": {sameName: true, metadata: marked, looked: pool.ErrForeign, created: pool.ErrForeign},
		"the id, no mark":         {sameID: true, looked: pool.ErrForeign, created: pool.ErrForeign},
		"the id, another mark":    {sameID: true, metadata: func(string) string { return marked(other) }, looked: pool.ErrForeign, created: pool.ErrForeign},
		"only a copied mark":      {metadata: marked, looked: pool.ErrGone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, d := limit(t), open(t, h)
			spec := unwaited(h)
			domain, id, metadata := "f-"+spec.Name, uuid.NewString(), ""
			if foreign.sameName {
				domain = spec.Name
			}
			if foreign.sameID {
				id = spec.ID
			}
			if foreign.metadata != nil {
				metadata = foreign.metadata(spec.ID)
			}
			// Its disk has the name that a machine without an id in it would have.
			disk := filepath.Join(h.Volumes, spec.Name+".qcow2")
			file := filepath.Join(t.TempDir(), "domain.xml")
			document := "<domain type='qemu'><name>" + domain + "</name><uuid>" + id + "</uuid>" + metadata +
				"<memory unit='MiB'>64</memory><os><type arch='x86_64'>hvm</type></os><devices><disk type='file'><source file='" + disk + "'/><target dev='vda' bus='virtio'/></disk></devices></domain>"
			for path, content := range map[string]string{file: document, disk: "somebody's"} {
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := h.Virsh(ctx, "define", file); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = h.Virsh(limit(t), "undefine", domain) })
			before, err := h.Virsh(ctx, "dumpxml", "--inactive", domain)
			if err != nil {
				t.Fatal(err)
			}

			if found, err := d.Look(ctx, refOf(spec)); !errors.Is(err, foreign.looked) {
				t.Errorf("Look = %+v, %v; want %v", found, err, foreign.looked)
			}
			if _, err := d.Power(ctx, refOf(spec), provisioner.PowerStart, &recorder{t: t}); !errors.Is(err, foreign.looked) {
				t.Errorf("Power: %v; want %v", err, foreign.looked)
			}
			if _, err := d.Change(ctx, refOf(spec), spec, &recorder{t: t}); !errors.Is(err, foreign.looked) {
				t.Errorf("Change: %v; want %v", err, foreign.looked)
			}
			if err := d.Exec(ctx, refOf(spec), "true", &recorder{t: t}); !errors.Is(err, foreign.looked) {
				t.Errorf("Exec: %v; want %v", err, foreign.looked)
			}
			if foreign.created != nil {
				if found, err := d.Create(ctx, spec, &recorder{t: t}); !errors.Is(err, foreign.created) {
					t.Errorf("Create = %+v, %v; want %v", found, err, foreign.created)
				}
			}
			// A machine whose name only is taken is gone, so there is nothing to destroy.
			if err := d.Destroy(ctx, refOf(spec), &recorder{t: t}); foreign.sameID != errors.Is(err, pool.ErrForeign) {
				t.Errorf("Destroy: %v; want ErrForeign: %t", err, foreign.sameID)
			}
			after, err := h.Virsh(ctx, "dumpxml", "--inactive", domain)
			if err != nil || after != before {
				t.Errorf("the domain was changed, %v:\n%s\nbefore:\n%s", err, after, before)
			}
			if content, err := os.ReadFile(disk); err != nil || string(content) != "somebody's" {
				t.Errorf("its disk was touched: %q, %v", content, err)
			}
		})
	}
}
