//go:build vm

package vm

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/hypervisors"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestMain(m *testing.M) { site.Main(m) }

// lab is a site whose agent has a pool of three real hypervisors, and Terraform's provider for
// them in a mirror.
type lab struct {
	*site.Site
	t     *testing.T
	hosts []*hypervisors.Host
	repo  string
}

const provider = "terraform-provider-libvirt"

func newLab(t *testing.T) *lab {
	t.Helper()
	program, err := exec.LookPath(provider)
	if err != nil {
		t.Fatalf("%s is missing: run these tests by `make e2e-vm`", provider)
	}
	// HOST/NAMESPACE/TYPE/VERSION/PLATFORM is how Terraform looks for it.
	mirror := t.TempDir()
	dir := filepath.Join(mirror, "registry.terraform.io/dmacvicar/libvirt/0.8.3", runtime.GOOS+"_"+runtime.GOARCH)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, provider+"_v0.8.3"), content, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}

	l := &lab{t: t, hosts: hypervisors.Three(t)}
	config := fmt.Sprintf("[engine]\nprovider_mirror = %q\n[[pools]]\nname = \"lab\"\nkind = \"libvirt\"\nvirt_type = \"qemu\"\n[pools.hosts]\n", mirror)
	for _, h := range l.hosts {
		config += fmt.Sprintf("%s = %q\n", h.Name, h.URL())
	}
	l.Site = site.New(t)
	l.repo = l.Template("class", classLibvirt(t))
	agent := l.NewAgent("one", 2, config)
	agent.Set("TENDRIL_RUN_UIDS", "off") // libvirt refuses users who have no record on its machine
	agent.ManageState(l.IdentityFile())
	agent.Start()
	l.Await("the pool", "SELECT count(*) = 3 FROM public.pool_nodes WHERE online AND 'small.qcow2' = ANY (images)")
	return l
}

// classLibvirt is the template to copy, as it is.
func classLibvirt(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	root := os.DirFS("../../examples/templates/class-libvirt")
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(root, path)
		files[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func (l *lab) deploy(students ...string) uuid.UUID {
	l.t.Helper()
	hosts := []map[string]string{}
	for _, h := range l.hosts {
		hosts = append(hosts, map[string]string{"node": h.Name, "uri": "qemu+unix:///system?socket=" + strings.TrimPrefix(h.URL(), "unix://")})
	}
	return l.DeployTemplate(l.repo, "class/a", map[string]any{
		"class": "net", "pool": "lab", "image": "small.qcow2", "students": students, "memory": 128, "virt_type": "qemu",
		"hosts": hosts,
	})
}

// operate queues another operation with the snapshot of a run.
func (l *lab) operate(like uuid.UUID, operation string) (id uuid.UUID) {
	l.t.Helper()
	err := l.Conn.QueryRow(l.t.Context(), "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) SELECT cluster_id, $2, config_snapshot FROM public.provisions WHERE id = $1 RETURNING id", like, operation).Scan(&id)
	if err != nil {
		l.t.Fatal(err)
	}
	return id
}

func (l *lab) succeeds(id uuid.UUID) {
	l.t.Helper()
	if got := l.AwaitEnd(id); got != "SUCCESS" {
		l.t.Fatalf("the run = %s: %s\n%s", got, l.Message(id), l.Log(l.t, id))
	}
}

// domains are those that run, by the host, as libvirt says it.
func (l *lab) domains() string {
	l.t.Helper()
	var all []string
	for _, h := range l.hosts {
		ctx, cancel := patience.Context(context.Background(), time.Minute)
		out, err := h.Virsh(ctx, "list", "--name")
		cancel()
		if err != nil {
			l.t.Fatal(err)
		}
		for _, name := range strings.Fields(out) {
			all = append(all, name+" "+h.Name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// recorded are the machines that Tendril knows, in the same form.
func (l *lab) recorded() string {
	l.t.Helper()
	return l.Text(l.t, "SELECT coalesce(string_agg(name || ' ' || node, ', ' ORDER BY name), '') FROM public.machines WHERE status <> 'gone'")
}

// Terraform makes a class on three real hypervisors where the database says, by the provider's
// own resources. A student's machine is destroyed alone, and at the end nothing is left.
func TestClassByTerraform(t *testing.T) {
	l := newLab(t)
	id := l.deploy("ann", "bob", "cid", "dan", "eve")
	l.succeeds(id)
	made := l.domains()
	if got := l.recorded(); got != made || strings.Count(made, "net-") != 6 {
		t.Errorf("the machines are %q by Tendril, and %q by libvirt, want the same six; the run says\n%s", got, made, l.Log(t, id))
	}
	for _, h := range l.hosts {
		if n := strings.Count(made, h.Name); n != 2 {
			t.Errorf("%s has %d of %q, want two of six", h.Name, n, made)
		}
	}
	l.succeeds(l.deploy("ann", "bob", "dan", "eve"))
	var rest []string
	for _, machine := range strings.Split(made, ", ") {
		if !strings.HasPrefix(machine, "net-cid ") {
			rest = append(rest, machine)
		}
	}
	if got, want := l.domains(), strings.Join(rest, ", "); got != want || l.recorded() != want {
		t.Errorf("without cid there are %q by libvirt and %q by Tendril, want %q", got, l.recorded(), want)
	}
	// A drift check sees them where they are.
	l.succeeds(l.operate(id, "refresh"))
	if got := l.Text(t, "SELECT drift_count::text FROM public.workspaces WHERE name = 'class/a'"); got != "0" || l.recorded() != strings.Join(rest, ", ") {
		t.Errorf("a drift check finds %s changes, and the machines %q", got, l.recorded())
	}
	l.succeeds(l.operate(id, "destroy"))
	if got := l.domains() + l.recorded(); got != "" {
		t.Errorf("after the destroy there is %q, want nothing", got)
	}
}
