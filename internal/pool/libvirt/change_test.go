package libvirt

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/provisioner"
)

// domain is what a daemon has: one machine, whose sizes apply when it is started.
type domain struct {
	mu                          sync.Mutex
	stage                       string
	cores, memory               uint32 // as it is defined, the memory in KiB
	runningCores, runningMemory uint32 // 0: it is stopped
	calls, cutAt                int    // of those that change something; 0 cuts none
	done                        bool   // whether the call that is cut is carried out
	cut                         func()
}

func (d *domain) on() bool { return d.runningCores > 0 }

// text is a text as libvirt's protocol has it.
func text(s string) []byte {
	b := append(words(uint32(len(s))), s...)
	return append(b, make([]byte, (4-len(s)%4)%4)...)
}

func (d *domain) answer(serial, number uint32, arguments []byte) [][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := []byte("\x5b\x1f\xf0\xa7\x3c\x6e\x4f\x1b\x9d\x2e\x8a\x5f\x0c\x7d\x4e\x21") // anID
	self := append(append(text("web-1"), id...), words(1)...)
	switch number {
	case 24: // DomainLookupByUUID
		return [][]byte{reply(number, serial, self...)}
	case 14: // DomainGetXMLDesc
		return [][]byte{reply(number, serial, text(fmt.Sprintf(`<domain><name>web-1</name><uuid>%s</uuid><metadata><machine xmlns=%q id=%q stage=%q storage="default" disk=%q/></metadata><memory unit="KiB">%d</memory><vcpu>%d</vcpu></domain>`,
			anID, namespace, anID, d.stage, diskName(anID, "qcow2"), d.memory, d.cores))...)}
	case 212: // DomainGetState
		state := libvirt.DomainShutoff
		if d.on() {
			state = libvirt.DomainRunning
		}
		return [][]byte{reply(number, serial, words(uint32(state), 0)...)}
	}
	arguments = arguments[min(len(self), len(arguments)):]
	changes := map[uint32]func(){
		199: func() { d.cores = binary.BigEndian.Uint32(arguments) },        // DomainSetVcpusFlags
		204: func() { d.memory = binary.BigEndian.Uint32(arguments[4:]) },   // DomainSetMemoryFlags
		258: func() { d.runningCores, d.runningMemory = 0, 0 },              // DomainShutdownFlags
		196: func() { d.runningCores, d.runningMemory = d.cores, d.memory }, // DomainCreateWithFlags
		264: func() { // DomainSetMetadata
			_, stage, _ := strings.Cut(string(arguments), `stage="`)
			d.stage, _, _ = strings.Cut(stage, `"`)
		},
	}
	change := changes[number]
	if change == nil { // storage pools and addresses: it has none
		return [][]byte{message(programRemote, number, typeReply, serial, statusErr, words(38, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)...)}
	}
	d.calls++
	if d.calls == d.cutAt {
		if d.done {
			change()
		}
		d.cut()
		return [][]byte{words(3, 0, 0, 0, 0, 0, 0)} // which ends the connection
	}
	change()
	if number == 196 {
		return [][]byte{reply(number, serial, self...)}
	}
	return [][]byte{reply(number, serial)}
}

// A change of a machine that runs is cut off at each of its calls, before it or after it. The
// next one ends it: the machine runs, with the new sizes.
func TestChangeIsTakenUpAfterEachStep(t *testing.T) {
	t.Parallel()
	spec := aSpec()
	spec.Cores, spec.Memory = 4, 2048
	ref := pool.Ref{ID: anID, Name: spec.Name}
	calls := 0
	for cutAt := 0; cutAt <= calls; cutAt++ {
		for _, done := range []bool{false, true} {
			have := &domain{stage: "ready", cores: 2, memory: 1 << 20, runningCores: 2, runningMemory: 1 << 20, cutAt: cutAt, done: done}
			ctx, cancel := context.WithCancel(t.Context())
			have.cut = cancel
			url := serving(t, have.answer)
			first := openURL(t, url, patience.For(20*time.Second))
			found, err := first.Change(ctx, ref, spec, &recorder{t: t})
			_ = first.Close() // the daemon serves one at a time
			if cutAt > 0 {
				if err == nil {
					t.Errorf("Change cut off at call %d = %+v", cutAt, found)
				}
				found, err = openURL(t, url, patience.For(20*time.Second)).Change(t.Context(), ref, spec, &recorder{t: t})
			}
			cancel()
			have.mu.Lock()
			if err != nil || found.Status != provisioner.StatusRunning || !found.Ready || have.runningCores != 4 || have.runningMemory != 2<<20 || have.stage != "ready" {
				t.Errorf("after call %d (carried out: %v) it is %+v, %v; it runs with %d cores and %d KiB, marked %s", cutAt, done, found, err, have.runningCores, have.runningMemory, have.stage)
			}
			if cutAt == 0 {
				calls = have.calls
			}
			have.mu.Unlock()
		}
	}
	if calls < 7 {
		t.Errorf("a change has %d calls, want those of mark, sizes, stop, start and mark", calls)
	}
}

// What is stopped stays stopped, and is not marked.
func TestChangeOfWhatIsStopped(t *testing.T) {
	t.Parallel()
	spec := aSpec()
	spec.Cores, spec.Memory = 4, 2048
	have := &domain{stage: "ready", cores: 2, memory: 1 << 20}
	found, err := openURL(t, serving(t, have.answer), patience.For(20*time.Second)).Change(t.Context(), pool.Ref{ID: anID, Name: spec.Name}, spec, &recorder{t: t})
	have.mu.Lock()
	defer have.mu.Unlock()
	if err != nil || found.Status != provisioner.StatusStopped || have.on() || have.cores != 4 || have.stage != "ready" || have.calls != 4 {
		t.Errorf("Change = %+v, %v; the daemon has %d cores, marked %s, after %d calls", found, err, have.cores, have.stage, have.calls)
	}
}
