package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/hypervisors"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// many is a template of machines that are ready once they were started.
var many = map[string]string{
	"variables.tf": "variable \"names\" { type = set(string) }\n",
	"tendril.hcl": `provisioner "machine" {
  machine {
    for_each = var.names
    name     = each.key
    pool     = "lab"
    image    = "small.qcow2"
    cores    = 1
    memory   = 128
    cloud_init { wait = "none" }
  }
}
placement { spread = true }
`,
}

// machinePairs is how many pairs a round measures.
const machinePairs = 7

// BenchmarkMachines is the time from when a row is about to be inserted until twenty domains run
// on three real hypervisors. Bare is the same twenty by nothing but libvirt's calls, all at once:
// the domains, overlays and seeds that the agent has made just before, once those were removed.
func BenchmarkMachines(b *testing.B) {
	lab := newLab(b)
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("m%d", i+1))
	}
	repo := lab.Template("many", many)
	succeeded := func(id uuid.UUID) time.Time {
		b.Helper()
		if got := lab.AwaitEnd(id); got != "SUCCESS" {
			b.Fatalf("the run = %s: %s", got, lab.Message(id))
		}
		return time.Now()
	}
	run := func(names []string) (success time.Duration, id uuid.UUID) {
		b.Helper()
		began := time.Now()
		id = lab.DeployTemplate(repo, "lab", map[string]any{"names": names})
		return succeeded(id).Sub(began), id
	}
	var ours, done, bare, again, nothing, ratio series
	pair := func(count bool) {
		began := time.Now()
		id := lab.DeployTemplate(repo, "lab", map[string]any{"names": names})
		success := succeeded(id).Sub(began)
		running := lab.started(len(names)).Sub(began)

		unchanged, _ := run(names)
		lab.wantStarted(0)
		made := lab.remember()
		if len(made) != len(names) {
			b.Fatalf("%d machines were made, want %d", len(made), len(names))
		}
		for _, m := range made[:5] {
			lab.remove(m)
		}
		five, id := run(names)
		if lab.wantStarted(5); b.Failed() {
			b.Fatalf("%s", lab.Log(b, id))
		}
		made = lab.remember()
		run([]string{})
		if left := lab.remember(); len(left) > 0 {
			b.Fatalf("%d machines are left, want none", len(left))
		}

		limit := lab.bare(made)
		lab.started(len(made))
		for _, m := range made {
			lab.remove(m)
		}
		b.Logf("ours %s to running, %s to SUCCESS; bare %s; 5 again %s; nothing to do %s", running, success, limit, five, unchanged)
		if count {
			ours.add(running)
			done.add(success)
			bare.add(limit)
			again.add(five)
			nothing.add(unchanged)
			ratio.add(time.Duration(float64(running) / float64(limit) * float64(time.Millisecond)))
		}
	}
	pair(false)
	for b.Loop() {
		for range machinePairs {
			pair(true)
		}
	}
	ours.report(b, "", 10, 50, 90)
	bare.report(b, "bare-", 10, 50, 90)
	done.report(b, "success-", 50)
	again.report(b, "missing-", 50)
	nothing.report(b, "nothing-", 50)
	for _, p := range []int{10, 50, 90} {
		b.ReportMetric(100*milliseconds(ratio.percentile(p)), fmt.Sprintf("p%d-of-bare-%%", p))
	}
	only(b)
}

// lab is a site whose agent has a pool of three real hypervisors.
type lab struct {
	*site.Site
	b       *testing.B
	hosts   []*hypervisors.Host
	conns   []*libvirt.Libvirt
	starts  chan time.Time
	storage []libvirt.StoragePool
}

func newLab(b *testing.B) *lab {
	b.Helper()
	l := &lab{b: b, starts: make(chan time.Time, 1000), hosts: hypervisors.Three(b)}
	pool := "[state]\ndefault = \"managed\"\n[[pools]]\nname = \"lab\"\nkind = \"libvirt\"\n[pools.hosts]\n"
	for _, h := range l.hosts {
		pool += fmt.Sprintf("%s = %q\n", h.Name, h.URL())
		l.connect(h)
	}
	l.Site = site.New(b)
	agent := l.NewAgent("one", 2, pool)
	agent.Set("TENDRIL_RUN_UIDS", "off") // libvirt refuses users who have no record on its machine
	agent.Start()
	l.Await("the pool", "SELECT count(*) = 3 FROM public.pool_nodes WHERE online AND 'small.qcow2' = ANY (images)")
	return l
}

func dial(h *hypervisors.Host) *libvirt.Libvirt {
	return libvirt.NewWithDialer(dialers.NewLocal(dialers.WithSocket(strings.TrimPrefix(h.URL(), "unix://"))))
}

// connect connects to a host and notes when its domains start.
func (l *lab) connect(h *hypervisors.Host) {
	l.b.Helper()
	conn := dial(h)
	if err := conn.ConnectToURI(libvirt.QEMUSystem); err != nil {
		l.b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	events, err := conn.LifecycleEvents(ctx)
	if err != nil {
		l.b.Fatal(err)
	}
	var noting sync.WaitGroup
	noting.Go(func() {
		for event := range events {
			if event.Event == int32(libvirt.DomainEventStarted) {
				l.starts <- time.Now()
			}
		}
	})
	l.b.Cleanup(func() {
		cancel()
		_ = conn.Disconnect()
		noting.Wait()
	})
	storage, err := conn.StoragePoolLookupByName("default")
	if err != nil {
		l.b.Fatal(err)
	}
	l.conns, l.storage = append(l.conns, conn), append(l.storage, storage)
}

// started waits until so many domains have started and returns when the last one did.
func (l *lab) started(n int) (last time.Time) {
	l.b.Helper()
	limit := time.NewTimer(patience.For(3 * time.Minute))
	defer limit.Stop()
	for i := range n {
		select {
		case last = <-l.starts:
		case <-limit.C:
			l.b.Fatalf("%d domains have started, want %d", i, n)
		}
	}
	return last
}

// wantStarted fails unless exactly so many domains have started since.
func (l *lab) wantStarted(n int) {
	l.b.Helper()
	if l.started(n); len(l.starts) > 0 {
		l.b.Errorf("%d domains have started, want %d", n+len(l.starts), n)
	}
}

// built is a machine as the agent has made it.
type built struct {
	host           int
	id, document   string
	disk, seed     string // the volumes' names
	overlay, blank string // their descriptions
	content        []byte // of the seed
}

var (
	volumeNames = regexp.MustCompile(`volume='(tendril-[^']+)'`)
	capacity    = regexp.MustCompile(`<capacity unit='bytes'>(\d+)</capacity>`)
)

// remember answers all machines that there are.
func (l *lab) remember() (all []built) {
	l.b.Helper()
	for i, conn := range l.conns {
		domains, _, err := conn.ConnectListAllDomains(1, 0)
		if err != nil {
			l.b.Fatal(err)
		}
		for _, domain := range domains {
			document, err := conn.DomainGetXMLDesc(domain, libvirt.DomainXMLInactive|libvirt.DomainXMLSecure)
			if err != nil {
				l.b.Fatal(err)
			}
			names := volumeNames.FindAllStringSubmatch(document, -1)
			if len(names) != 2 {
				l.b.Fatalf("a domain has other volumes than a disk and a seed:\n%s", document)
			}
			m := built{host: i, id: uuid.UUID(domain.UUID).String(), document: document, disk: names[0][1], seed: names[1][1]}
			if m.content, err = os.ReadFile(filepath.Join(l.hosts[i].Volumes, m.seed)); err != nil {
				l.b.Fatal(err)
			}
			volume, err := conn.StorageVolLookupByName(l.storage[i], m.disk)
			if err != nil {
				l.b.Fatal(err)
			}
			text, err := conn.StorageVolGetXMLDesc(volume, 0)
			size := capacity.FindStringSubmatch(text)
			if err != nil || size == nil {
				l.b.Fatalf("volume %s: %v\n%s", m.disk, err, text)
			}
			m.overlay = fmt.Sprintf("<volume><name>%s</name><capacity>%s</capacity><target><format type='qcow2'/></target><backingStore><path>%s</path><format type='qcow2'/></backingStore></volume>",
				m.disk, size[1], filepath.Join(l.hosts[i].Images, "small.qcow2"))
			m.blank = fmt.Sprintf("<volume><name>%s</name><capacity>%d</capacity><target><format type='raw'/></target></volume>", m.seed, len(m.content))
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b built) int { return strings.Compare(a.id, b.id) })
	return all
}

// remove is what a person does who removes a machine by hand.
func (l *lab) remove(m built) {
	l.b.Helper()
	conn := l.conns[m.host]
	domain, err := conn.DomainLookupByUUID(libvirt.UUID(uuid.MustParse(m.id)))
	if err == nil {
		err = conn.DomainDestroy(domain)
	}
	if err == nil {
		err = conn.DomainUndefine(domain)
	}
	for _, name := range []string{m.disk, m.seed} {
		if err == nil {
			var volume libvirt.StorageVol
			if volume, err = conn.StorageVolLookupByName(l.storage[m.host], name); err == nil {
				err = conn.StorageVolDelete(volume, 0)
			}
		}
	}
	if err != nil {
		l.b.Fatalf("removing %s: %v", m.id, err)
	}
}

// bare makes these machines at once, by a connection of its own to each host, and answers how
// long that took until all were running.
func (l *lab) bare(machines []built) time.Duration {
	l.b.Helper()
	began := time.Now()
	conns := make([]*libvirt.Libvirt, len(l.hosts))
	for i, h := range l.hosts {
		conns[i] = dial(h)
		if err := conns[i].ConnectToURI(libvirt.QEMUSystem); err != nil {
			l.b.Fatal(err)
		}
		defer func() { _ = conns[i].Disconnect() }()
	}
	var all sync.WaitGroup
	for _, m := range machines {
		all.Go(func() {
			if err := create(conns[m.host], l.storage[m.host], m); err != nil {
				l.b.Errorf("making %s by libvirt's calls: %v", m.id, err)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	if l.b.Failed() {
		l.b.FailNow()
	}
	return took
}

func create(conn *libvirt.Libvirt, storage libvirt.StoragePool, m built) error {
	if _, err := conn.StorageVolCreateXML(storage, m.overlay, 0); err != nil {
		return err
	}
	seed, err := conn.StorageVolCreateXML(storage, m.blank, 0)
	if err != nil {
		return err
	}
	if err := conn.StorageVolUpload(seed, bytes.NewReader(m.content), 0, uint64(len(m.content)), 0); err != nil {
		return err
	}
	domain, err := conn.DomainDefineXML(m.document)
	if err != nil {
		return err
	}
	return conn.DomainCreate(domain)
}
