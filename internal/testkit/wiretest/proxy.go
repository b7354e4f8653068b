package wiretest

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// mode is what happens to all traffic.
type mode int

const (
	passing mode = iota
	refusing
	stalling
	swallowing
)

// Proxy passes connections on to a server, as long as it is let.
type Proxy struct {
	listener net.Listener
	dial     func() (net.Conn, error)
	speak    func() speech
	secure   *tls.Config // nil: its clients do not encrypt
	working  sync.WaitGroup

	mu      sync.Mutex
	mode    mode
	changed chan struct{} // closed at each change of mode
	closed  bool
	latency time.Duration
	rate    int          // bytes a second each way on each connection; 0: no limit
	line    int          // bytes a second each way on all together; 0: no limit
	free    [2]time.Time // when the line is, to the server and back
	judge   func(Call) Fate
	links   map[*link]struct{}
	delayed []func() // each delivers one request and waits until it is done
}

// New starts a proxy for the server of a URL whose host is the directory of the
// server's socket. It ends with the test.
func New(t testing.TB, serverURL string) *Proxy {
	t.Helper()
	config, err := pgx.ParseConfig(serverURL)
	if err != nil {
		t.Fatalf("wiretest.New: %v", err)
	}
	return start(t, &Proxy{
		dial: func() (net.Conn, error) {
			return net.Dial("unix", filepath.Join(config.Host, fmt.Sprint(".s.PGSQL.", config.Port)))
		},
		speak: func() speech { return postgres{newCalls()} },
	})
}

func start(t testing.TB, p *Proxy) *Proxy {
	t.Helper()
	var err error
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatalf("wiretest: %v", err)
	}
	p.changed, p.links = make(chan struct{}), map[*link]struct{}{}
	p.working.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// URL is a URL of the server by way of the proxy.
func (p *Proxy) URL(direct string) string {
	u, err := url.Parse(direct)
	if err != nil {
		panic(err) // a test's own URL, which it has connected with
	}
	u.Host = p.listener.Addr().String()
	if p.secure == nil {
		u.RawQuery = "sslmode=disable"
	}
	return u.String()
}

// Judge has every call's fate decided, from several goroutines; nil delivers all.
func (p *Proxy) Judge(judge func(Call) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = judge
}

// Pass lets new connections work, and goes on with those that were stalled.
// What is in a black hole stays there.
func (p *Proxy) Pass() {
	p.turn(passing)
	p.Slow(0, 0)
	p.Share(0)
}

// Slow puts off what is passed on, each way, and bounds it to bytes a second
// (0: unbounded) on each connection.
func (p *Proxy) Slow(latency time.Duration, rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency, p.rate = latency, rate
}

// Share bounds what is passed on each way to bytes a second of all connections
// together, which take turns, as on one line to the internet; 0: unbounded. What a
// client has sent stays on its way though the client has given up.
func (p *Proxy) Share(rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line, p.free = rate, [2]time.Time{}
}

// piece is what one connection sends on a shared line before it is the next one's
// turn: a packet.
const piece = 1 << 10

// reserve answers when so many bytes will have passed the shared line.
func (p *Proxy) reserve(bytes int, back bool) (d time.Duration, shared bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line == 0 {
		return 0, false
	}
	way := 0
	if back {
		way = 1
	}
	now := time.Now()
	if p.free[way].Before(now) {
		p.free[way] = now
	}
	p.free[way] = p.free[way].Add(time.Duration(bytes) * time.Second / time.Duration(p.line))
	return p.free[way].Sub(now), true
}

// Cut breaks all connections and returns how many there were. New ones work.
func (p *Proxy) Cut() int {
	links := p.all()
	for _, l := range links {
		l.cut()
	}
	return len(links)
}

// Refuse breaks all connections, and each new one at once.
func (p *Proxy) Refuse() {
	p.turn(refusing)
	p.Cut()
}

// Stall holds up all that is sent, both ways, until Pass; new connections are
// accepted. What was held up is delivered then, whether or not the client waits.
func (p *Proxy) Stall() { p.turn(stalling) }

// BlackHole swallows all that is sent, both ways, and tells neither side of the
// other's end, as a router does that has lost its table. New connections are
// accepted and swallowed too until Pass; those of before stay lost.
func (p *Proxy) BlackHole() {
	p.turn(swallowing)
	for _, l := range p.all() {
		l.lost.Store(true)
	}
}

// DeliverDelayed sends the server what was delayed, one by one, waits until it
// is done and returns how many calls that were. What the server answers, error
// or not, nobody reads. A connection that was cut delivers nothing any more.
func (p *Proxy) DeliverDelayed() int {
	p.mu.Lock()
	delayed := p.delayed
	p.delayed = nil
	p.mu.Unlock()
	for _, deliver := range delayed {
		deliver()
	}
	return len(delayed)
}

func (p *Proxy) turn(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	close(p.changed)
	p.changed = make(chan struct{})
}

// now answers the mode, and what is closed when it changes.
func (p *Proxy) now() (m mode, changed <-chan struct{}, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode, p.changed, p.closed
}

// pace answers how long a number of bytes is on its way.
func (p *Proxy) pace(bytes int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.latency
	if p.rate > 0 {
		d += time.Duration(bytes) * time.Second / time.Duration(p.rate)
	}
	return d
}

func (p *Proxy) fate(c Call) Fate {
	p.mu.Lock()
	judge := p.judge
	p.mu.Unlock()
	if judge == nil {
		return Deliver
	}
	return judge(c)
}

func (p *Proxy) all() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		if p.secure != nil {
			client = tls.Server(client, p.secure)
		}
		p.working.Go(func() { p.serve(client) })
	}
}

// close breaks everything and waits for it.
func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.turn(passing)
	_ = p.listener.Close()
	p.Cut()
	p.working.Wait()
}

// speech tells the messages of a protocol apart, on one connection. Its
// requests and its replies are read by two goroutines.
type speech interface {
	// opening reads what a client says before its first request; last says that
	// nothing follows.
	opening(r *bufio.Reader, client net.Conn) (out []byte, last bool, err error)
	// request reads a client's next message.
	request(r *bufio.Reader) (message, error)
	// reply reads a server's next message; done says that the request is done
	// and committed.
	reply(r *bufio.Reader) (out []byte, done bool, err error)
}

// message is what a client sends.
type message struct {
	bytes []byte
	call  Call // zero: none is made
	// midway says that more messages of the same request follow.
	midway bool
}
