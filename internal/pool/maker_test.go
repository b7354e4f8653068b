package pool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/protocol"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/sshd"
	"github.com/tendril-run/tendril/provisioner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a hypervisor in memory, by the machines' marks.
type fake struct {
	pool.Driver
	mu       sync.Mutex
	machines map[string]pool.Found
	fails    map[string]error // by what is done
	server   *sshd.Server     // in each of its machines
	did      []string
}

func (f *fake) do(what, id string) error {
	f.did = append(f.did, what+" "+id)
	return f.fails[what]
}

func (f *fake) Look(_ context.Context, ref pool.Ref) (pool.Found, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails["look"]; err != nil {
		return pool.Found{}, err
	}
	found, there := f.machines[ref.ID]
	if !there {
		return found, pool.ErrGone
	}
	return found, nil
}

func (f *fake) Create(_ context.Context, spec pool.Spec, progress pool.Progress) (pool.Found, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	progress.Step("make", "Making it", 50)
	progress.Step("make", "Making it", 40) // which never goes back
	found := pool.Found{Mark: spec.ID, ExternalID: fmt.Sprint("vm-", spec.ID), Node: spec.Node, Status: provisioner.StatusRunning, Cores: spec.Cores, Memory: spec.Memory, Ready: f.fails["create"] == nil}
	f.machines[spec.ID] = found
	return found, f.do("create", spec.ID)
}

func (f *fake) Change(_ context.Context, ref pool.Ref, spec pool.Spec, _ pool.Progress) (pool.Found, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.machines[ref.ID], f.do("change on "+spec.Node, ref.ID)
}

func (f *fake) Destroy(_ context.Context, ref pool.Ref, _ pool.Progress) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.do("destroy", ref.ID)
	if err == nil {
		delete(f.machines, ref.ID)
	}
	return err
}

func (f *fake) Exec(_ context.Context, ref pool.Ref, command string, _ pool.Progress) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.do(command, ref.ID)
}

func (f *fake) Login(_ context.Context, ref pool.Ref, init pool.Init) (pool.Login, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if init.Keys == nil {
		return pool.Login{}, pool.ErrNoSSH
	}
	f.server.Authorize(init.Keys.Public(init.Keys.Login))
	return pool.Login{User: init.User, Key: init.Keys.Login, Port: int(f.server.Addr.Port()), HostKeys: []string{f.server.HostKey}}, f.do("login", ref.ID)
}

func (f *fake) Close() error { return nil }

// lab is a pool with a running machine "a".
func lab() (*fake, *pool.Maker) {
	f := &fake{fails: map[string]error{}, machines: map[string]pool.Found{
		"a": {Mark: "a", ExternalID: "vm-a", Node: "n1", Status: provisioner.StatusRunning, Cores: 1, Memory: 512, Ready: true},
	}}
	return f, &pool.Maker{
		Pools: map[string]pool.Opened{"lab": {Driver: f, Config: pool.Config{
			Name: "lab", Kind: "proxmox", Timeout: 1 << 30, Ranges: []pool.Range{{From: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddr("10.0.0.9"), Bits: 24}},
		}}},
		Places: map[string]provision.Place{"a": {Node: "n2", Address: "10.0.0.1"}, "b": {Node: "n2", VMID: 7, Address: "10.0.0.2"}, "c": {Node: "n2", Address: "10.0.1.1"}},
		Mask:   func(string) {},
	}
}

func wanted(id string) provisioner.Wanted {
	return provisioner.Wanted{ID: id, Name: id, Pool: "lab", Image: "debian", Cores: 2, Memory: 1024}
}

// carryOut has a maker do something, and returns what it told of machines, in order, and its result.
func carryOut(t *testing.T, m *pool.Maker, request provisioner.Request) (told []string, result provisioner.Result) {
	t.Helper()
	return carryOutUntil(t, m, request, nil)
}

// carryOutUntil is carryOut of a request that meanwhile may ask to be detached.
func carryOutUntil(t *testing.T, m *pool.Maker, request provisioner.Request, meanwhile func(detach func())) (told []string, result provisioner.Result) {
	t.Helper()
	var detach chan struct{}
	if meanwhile != nil {
		detach = make(chan struct{})
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			meanwhile(func() { close(detach) })
		}()
		defer func() { <-asked }()
	}
	in, toIn := io.Pipe()
	out, toOut := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := provisioner.ServeOn(t.Context(), in, toOut, m.Handler())
		_ = errors.Join(toOut.Close(), in.Close()) // never fails
		served <- err
	}()
	outcome, err := protocol.Talk(t.Context(), protocol.Program{In: toIn, Out: out}, request, protocol.Handlers{
		Detach: detach,
		Intent: func(_ context.Context, i provisioner.Intent) error {
			told = append(told, fmt.Sprint("intent ", i.Action, " ", i.Machine, " ", i.ExternalID))
			if i.Machine == "refused" {
				return errors.New("it can't be recorded")
			}
			return nil
		},
		Machine: func(now provisioner.Machine) error {
			told = append(told, strings.TrimSpace(fmt.Sprint(now.ID, " ", now.Status, " ", now.Node, " ", now.Address)))
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	return told, outcome.Result
}

func apply(action provisioner.Action, machines ...provisioner.Wanted) *provisioner.Apply {
	r := &provisioner.Apply{Work: provisioner.Work{Protocol: provisioner.Protocol, Run: "r", Mode: provisioner.ModeApply, Machines: machines, Variables: map[string]json.RawMessage{}}}
	for _, w := range machines {
		r.Changes = append(r.Changes, provisioner.Change{Machine: w.ID, Action: action})
	}
	return r
}

// Each row is what is done to one machine, with what must be told of it whatever goes wrong: a
// machine that may exist is never forgotten, and one that works is never called failed.
func TestMakerTellsOfEachMachine(t *testing.T) {
	t.Parallel()
	away := fmt.Errorf("no route: %w", pool.ErrUnreachable)
	placed := wanted("a")
	placed.Node = "n1"
	for name, c := range map[string]struct {
		action provisioner.Action
		w      provisioner.Wanted
		fails  map[string]error
		after  []string
		told   []string
		did    []string
		says   string // "": it succeeds
	}{
		"makes one":                         {action: provisioner.ActionCreate, w: wanted("b"), told: []string{"intent create b 7", "b running n2 10.0.0.2"}, did: []string{"create b"}},
		"fails to make one":                 {action: provisioner.ActionCreate, w: wanted("b"), fails: map[string]error{"create": errors.New("no image")}, told: []string{"intent create b 7", "b failed n2 10.0.0.2"}, did: []string{"create b"}, says: "no image"},
		"an address that is no longer ours": {action: provisioner.ActionCreate, w: wanted("c"), says: "in no range of the pool lab"},
		"runs commands in it":               {action: provisioner.ActionCreate, w: wanted("b"), after: []string{"one", "two"}, told: []string{"intent create b 7", "b running n2 10.0.0.2"}, did: []string{"create b", "one b", "two b"}},
		"a command fails":                   {action: provisioner.ActionCreate, w: wanted("b"), after: []string{"one", "two"}, fails: map[string]error{"one": &pool.ExitError{Status: 3}}, told: []string{"intent create b 7", "b failed n2 10.0.0.2"}, did: []string{"create b", "one b"}, says: "ended with status 3"},
		"changes one where it is":           {action: provisioner.ActionChange, w: placed, told: []string{"a running n1 10.0.0.1"}, did: []string{"change on n1 a"}},
		"fails to change one":               {action: provisioner.ActionChange, w: placed, fails: map[string]error{"change on n1": errors.New("no memory")}, told: []string{"a running n1 10.0.0.1"}, did: []string{"change on n1 a"}, says: "no memory"},
		"replaces one":                      {action: provisioner.ActionReplace, w: placed, told: []string{"intent replace a", "a running n2 10.0.0.1"}, did: []string{"destroy a", "create a"}},
		"can't destroy what it replaces":    {action: provisioner.ActionReplace, w: placed, fails: map[string]error{"destroy": errors.New("it is locked")}, told: []string{"intent replace a", "a running n1 10.0.0.1"}, did: []string{"destroy a"}, says: "it is locked"},
		"destroys one":                      {action: provisioner.ActionDestroy, w: placed, told: []string{"intent destroy a", "a gone"}, did: []string{"destroy a"}},
		"nobody can be asked":               {action: provisioner.ActionDestroy, w: placed, fails: map[string]error{"destroy": away, "look": away}, told: []string{"intent destroy a", "a unknown"}, did: []string{"destroy a"}, says: "can't be reached"},
		"is refused":                        {action: provisioner.ActionCreate, w: provisioner.Wanted{ID: "refused", Name: "b", Pool: "lab", Cores: 1, Memory: 1}, told: []string{"intent create refused 7"}, says: "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, m := lab()
			if c.fails != nil {
				f.fails = c.fails
			}
			m.After = c.after
			told, result := carryOut(t, m, apply(c.action, c.w))
			for i := range told {
				told[i] = strings.TrimSpace(told[i])
			}
			if !slices.Equal(told, c.told) || !slices.Equal(f.did, c.did) {
				t.Errorf("told %q and did %q, want %q and %q", told, f.did, c.told, c.did)
			}
			if result.OK != (c.says == "") || !strings.Contains(result.Message, c.says) {
				t.Errorf("result = %+v, want %q", result, c.says)
			}
		})
	}
}

// Over SSH commands run one after another as the machine's user, at the address that was reserved
// for it, and our key is taken out of it; what it prints is bounded as by a guest agent.
func TestMakerRunsCommandsOverSSH(t *testing.T) {
	t.Parallel()
	keys, err := pool.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	const ann = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f ann@example.org"
	for name, c := range map[string]struct {
		after  []string
		places string
		refuse error
		says   string   // "": it succeeds
		did    []string // in the machine
		told   string
	}{
		"well":            {after: []string{"echo one", "echo two"}, places: "127.0.0.1", did: []string{"echo one", "echo two"}, told: "b running n2 127.0.0.1"},
		"a command fails": {after: []string{"exit 3", "echo two"}, places: "127.0.0.1", did: []string{"exit 3"}, says: `b: it is made, but the command "exit 3" in it failed: it ended with status 3. The next deploy replaces it`, told: "b failed n2 127.0.0.1"},
		"no host key":     {after: []string{"echo one"}, places: "127.0.0.1", refuse: pool.ErrNoSSH, says: "it is made, but it can't be reached over SSH for the commands in it: no host key of the machine can be known", told: "b failed n2 127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, m := lab()
			f.server = sshd.New(t, sshd.Options{Authorized: []string{ann}})
			m.After, m.By, m.Keys = c.after, "ssh", map[string]pool.Keys{"b": keys}
			p := m.Pools["lab"]
			p.Config.Ranges = append(p.Config.Ranges, pool.Range{From: netip.MustParseAddr("127.0.0.1"), To: netip.MustParseAddr("127.0.0.1"), Bits: 8})
			m.Pools["lab"], m.Places["b"] = p, provision.Place{Node: "n2", Address: c.places}
			w := wanted("b")
			w.Settings = map[string]json.RawMessage{pool.InitBlock: json.RawMessage(`{"user": "ops"}`)}
			f.fails["login"] = c.refuse
			told, result := carryOut(t, m, apply(provisioner.ActionCreate, w))
			if !slices.Equal(told, []string{"intent create b ", c.told}) || result.OK != (c.says == "") || !strings.Contains(result.Message, c.says) {
				t.Errorf("told %q, %+v, want %q and %q", told, result, c.told, c.says)
			}
			ran := f.server.Commands()
			for i, command := range c.did {
				if i >= len(ran) || ran[i] != "exec /bin/sh -c '"+command+"'" {
					t.Errorf("it ran %q, want %q", ran, c.did)
				}
			}
			if len(c.did) == 0 {
				return
			}
			if left, err := os.ReadDir(filepath.Join(f.server.Home, ".ssh")); err != nil || len(left) != 1 {
				t.Errorf("left in its .ssh: %v, %v, want authorized_keys alone", left, err)
			}
			if len(ran) != len(c.did)+1 || !slices.Equal(f.server.Authorized(), []string{ann}) || f.server.Users()[0] != "ops" {
				t.Errorf("it ran %q and lets in %q, want our key taken out", ran, f.server.Authorized())
			}
		})
	}
}

// A machine whose making was not completed is not called good because it runs, and what is gone is
// said only by a hypervisor that answers. What goes away is gone before anything is made.
func TestMakerRefreshes(t *testing.T) {
	t.Parallel()
	f, m := lab()
	refresh := func() []string {
		t.Helper()
		told, _ := carryOut(t, m, &provisioner.Refresh{Work: provisioner.Work{Protocol: provisioner.Protocol, Run: "r", Mode: provisioner.ModeApply, Machines: []provisioner.Wanted{wanted("a")}, Variables: map[string]json.RawMessage{}}})
		return told
	}
	if told := refresh(); !slices.Equal(told, []string{"a running n1 10.0.0.1"}) {
		t.Errorf("refresh told %q", told)
	}
	half := f.machines["a"]
	half.Ready = false
	f.machines["a"] = half
	if told := refresh(); !slices.Equal(told, []string{"a failed n1 10.0.0.1"}) {
		t.Errorf("of one that is half made it told %q", told)
	}
	f.fails["look"] = pool.ErrUnreachable
	if told := refresh(); !slices.Equal(told, []string{"a unknown"}) {
		t.Errorf("without an answer it told %q", told)
	}
	delete(f.fails, "look")
	delete(f.machines, "a")
	if told := refresh(); !slices.Equal(told, []string{"a gone"}) {
		t.Errorf("of one that is gone it told %q", told)
	}

	f, m = lab()
	both := apply(provisioner.ActionCreate, wanted("b"))
	both.Obsolete = []provisioner.Wanted{wanted("a")}
	both.Changes = append(both.Changes, provisioner.Change{Machine: "a", Action: provisioner.ActionDestroy})
	if _, result := carryOut(t, m, both); !result.OK || !slices.Equal(f.did, []string{"destroy a", "create b"}) {
		t.Errorf("result %+v, did %q, want the destroy first", result, f.did)
	}
}

// What a template wants and no pool can give is said before anything is done.
func TestMakerChecks(t *testing.T) {
	t.Parallel()
	_, m := lab()
	m.Pools["desks"] = pool.Opened{Config: pool.Config{Name: "desks", Kind: "static"}}
	m.After = []string{"true"}
	desk := provisioner.Wanted{Name: "a", Pool: "desks", Cores: 1, Memory: 1}
	for by, want := range map[string]string{"agent": "have no guest agent", "ssh": "has no ssh_key_file", "": "has no ssh_key_file"} {
		m.By = by
		if err := m.Check(desk); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check() with by = %q = %v, want %q", by, err, want)
		}
	}
	m.By = "ssh"
	if err := m.Check(wanted("a")); err == nil || !strings.Contains(err.Error(), "cloud_init { user = … }, which is missing") {
		t.Errorf("Check() without a user = %v", err)
	}
	m.By = ""
	for want, w := range map[string]provisioner.Wanted{
		`the pool "lob" is not in this agent's configuration, or not for this workspace; did you mean "lab"?`: {Name: "a", Pool: "lob"},
		"needs cores and memory":                    {Name: "a", Pool: "lab", Image: "debian"},
		"needs an image":                            {Name: "a", Pool: "lab", Cores: 1, Memory: 1},
		"the static pool desks has no ssh_key_file": {Name: "a", Pool: "desks", Cores: 1, Memory: 1},
		`cloud_init: unknown field "pasword"`:       {Name: "a", Pool: "lab", Image: "debian", Cores: 1, Memory: 1, Settings: map[string]json.RawMessage{pool.InitBlock: json.RawMessage(`{"pasword": "x"}`)}},
		`wait is "address", "agent" or "none"`:      {Name: "a", Pool: "lab", Image: "debian", Cores: 1, Memory: 1, Settings: map[string]json.RawMessage{pool.InitBlock: json.RawMessage(`{"wait": "long"}`)}},
	} {
		if err := m.Check(w); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check(%+v) = %v, want %q", w, err, want)
		}
	}
}

// slow is a fake whose machines are made by themselves: Create and Destroy wait until they are told
// to end.
type slow struct {
	*fake
	begun chan string
}

func (s *slow) Detaches() bool { return true }

func (s *slow) Create(ctx context.Context, spec pool.Spec, progress pool.Progress) (pool.Found, error) {
	s.mu.Lock()
	found := pool.Found{Mark: spec.ID, ExternalID: "s-" + spec.ID, Node: "n9", Status: provisioner.StatusCreating}
	ready, was := s.machines[spec.ID]
	s.machines[spec.ID] = found
	_ = s.do("create", spec.ID)
	s.mu.Unlock()
	if was && ready.Ready {
		return ready, nil
	}
	progress.(pool.Beginner).Begun(found)
	s.begun <- spec.ID
	<-ctx.Done()
	return found, context.Cause(ctx)
}

// What is made by itself is left going on when the agent asks for that: its machine is told as one
// that is being made, and the next agent goes on without another intent.
func TestMakerDetaches(t *testing.T) {
	t.Parallel()
	setUp := func() (*slow, *pool.Maker) {
		f, m := lab()
		s := &slow{fake: f, begun: make(chan string, 2)}
		m.Pools["lab"] = pool.Opened{Config: m.Pools["lab"].Config, Driver: s}
		return s, m
	}
	placed := wanted("a")
	placed.Node = "n1"
	for name, c := range map[string]struct {
		action provisioner.Action
		w      provisioner.Wanted
		told   []string
	}{
		"makes one":    {provisioner.ActionCreate, wanted("b"), []string{"intent create b 7", "b creating n9 10.0.0.2", "b creating n9 10.0.0.2"}},
		"replaces one": {provisioner.ActionReplace, placed, []string{"intent replace a ", "intent create a ", "a creating n9 10.0.0.1", "a creating n9 10.0.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := setUp()
			request := apply(c.action, c.w)
			told, result := carryOutUntil(t, m, request, func(detach func()) { <-s.begun; detach() })
			if !slices.Equal(told, c.told) || result.Code != provisioner.CodeDetached {
				t.Errorf("told %q and answered %+v, want %q and detached", told, result, c.told)
			}
			// The next agent, whose machine is done by now.
			s.machines[c.w.ID] = pool.Found{Mark: c.w.ID, ExternalID: "s-" + c.w.ID, Node: "n9", Status: provisioner.StatusRunning, Ready: true}
			s.did = nil
			request.Resume, request.Intents = true, []provisioner.Intent{{ID: "1", Machine: c.w.ID, Action: provisioner.ActionCreate}}
			told, result = carryOut(t, m, request)
			if len(told) != 1 || !strings.Contains(told[0], "running n9") || !result.OK || !slices.Equal(s.did, []string{"create " + c.w.ID}) {
				t.Errorf("the next agent told %q, did %q and answered %+v", told, s.did, result)
			}
		})
	}
	s, m := setUp()
	if !m.Handler().Detachable {
		t.Error("it is not detachable")
	}
	m.After = []string{"true"}
	if m.Handler().Detachable {
		t.Error("with commands in machines it is detachable")
	}
	m.After = nil
	m.Pools["other"] = pool.Opened{Config: pool.Config{Kind: "proxmox"}, Driver: s.fake}
	if m.Handler().Detachable {
		t.Error("with another kind of pool it is detachable")
	}
}

// Codes of errors are the result's, where all machines failed with that one.
func TestCodesOfMakers(t *testing.T) {
	t.Parallel()
	f, m := lab()
	f.fails["create"] = fmt.Errorf("make it: %w", &pool.CodeError{Code: provision.CodeNoServer, Err: errors.New("none is free")})
	if _, result := carryOut(t, m, apply(provisioner.ActionCreate, wanted("a"), wanted("b"))); result.Code != string(provision.CodeNoServer) || !strings.Contains(result.Message, "2 of 2 machines failed; the first is a: make it: none is free") {
		t.Errorf("result = %+v, want no_server", result)
	}
	// c has an address of no range, which has no code.
	if _, result := carryOut(t, m, apply(provisioner.ActionCreate, wanted("a"), wanted("c"))); result.Code != provisioner.CodeFailed {
		t.Errorf("result = %+v, want failed", result)
	}
}

// enroller is a hypervisor with servers that can be enrolled.
type enroller struct{ *fake }

func (e enroller) Enrolls(settings json.RawMessage) bool { return len(settings) > 0 }

func (e enroller) Remembered(settings, recorded json.RawMessage) (json.RawMessage, error) {
	if string(recorded) == `"lost"` {
		return nil, errors.New("give it again")
	}
	return append(settings[:len(settings)-1:len(settings)-1], `, hunter2"`...), nil
}

func (e enroller) Secrets(settings json.RawMessage) []string { return []string{string(settings)} }

func (e enroller) Settings(settings json.RawMessage) error {
	if strings.Contains(string(settings), "wrong") {
		return errors.New("no such setting")
	}
	return nil
}

func (e enroller) Look(ctx context.Context, ref pool.Ref) (pool.Found, error) {
	if !ref.Server {
		return pool.Found{}, errors.New("it is not asked for as a server")
	}
	return e.fake.Look(ctx, ref)
}

func (e enroller) Destroy(ctx context.Context, ref pool.Ref, progress pool.Progress) error {
	if !ref.Server {
		return errors.New("it is not removed as a server")
	}
	return e.fake.Destroy(ctx, ref, progress)
}

// A server that is enrolled has no place, image or sizes, and is enrolled only where the pool's operator
// lets the workspace do so.
func TestServersAreEnrolled(t *testing.T) {
	t.Parallel()
	f, m := lab()
	p := m.Pools["lab"]
	p.Driver = enroller{f}
	m.Pools["lab"] = p
	var masked []string
	m.Mask = func(secret string) { masked = append(masked, secret) }
	server := func(settings string) provisioner.Wanted {
		return provisioner.Wanted{ID: "s", Name: "s", Pool: "lab", Settings: map[string]json.RawMessage{"proxmox": json.RawMessage(settings)}}
	}
	refused := func(w provisioner.Wanted, says string) {
		t.Helper()
		if err := m.Check(w); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("Check(%+v) = %v, want %q", w, err, says)
		}
	}
	refused(server(`"bmc"`), "lets this workspace enroll no servers")
	p.Config.Enroll = true
	m.Pools["lab"] = p
	refused(server(`"bmc"`), "")
	refused(server(`"wrong"`), "no such setting")
	sized := server(`"bmc"`)
	sized.Cores = 2
	refused(sized, "is a server to be enrolled: image, cores")
	refused(provisioner.Wanted{Name: "a", Pool: "lab"}, "needs cores and memory")

	w := server(`"bmc"`)
	if err := m.Remember(&w, nil); err != nil || string(w.Settings["proxmox"]) != `"bmc, hunter2"` || !slices.Equal(masked, []string{`"bmc, hunter2"`}) {
		t.Errorf("Remember = %v, %s, masked %q", err, w.Settings["proxmox"], masked)
	}
	if err := m.Remember(&w, map[string]json.RawMessage{"proxmox": json.RawMessage(`"lost"`)}); err == nil || !strings.Contains(err.Error(), "the machine s: give it again") {
		t.Errorf("Remember of what is lost = %v", err)
	}

	work := func(action provisioner.Action) *provisioner.Apply {
		return &provisioner.Apply{Work: provisioner.Work{Protocol: provisioner.Protocol, Mode: provisioner.ModeApply, Machines: []provisioner.Wanted{w}}, Changes: []provisioner.Change{{Machine: "s", Action: action}}}
	}
	if told, result := carryOut(t, m, work(provisioner.ActionCreate)); !result.OK || !slices.Equal(told, []string{"intent create s ", "s running"}) {
		t.Errorf("it told %q, %+v", told, result)
	}
	if seen, err := m.See(t.Context(), []provisioner.Wanted{w}); err != nil || seen["s"].Found == nil {
		t.Errorf("See = %+v, %v", seen, err)
	}
	if _, result := carryOut(t, m, work(provisioner.ActionReplace)); !result.OK || !slices.Equal(f.did, []string{"create s", "destroy s", "create s"}) {
		t.Errorf("result %+v, did %q", result, f.did)
	}
}
