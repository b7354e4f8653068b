package wiretest

import (
	"bufio"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one client's connection and the one to the server that belongs to it.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	speech         speech
	ended          chan struct{}
	once           sync.Once
	lost           atomic.Bool // in a black hole, for good
	swallow        atomic.Bool // the reply that comes next is lost, and then all
}

// serve carries one connection until it ends.
func (p *Proxy) serve(client net.Conn) {
	l := &link{proxy: p, client: client, speech: p.speak(), ended: make(chan struct{})}
	defer l.cut()
	if !p.enter(l) {
		return
	}
	defer p.leave(l)
	if l.server != nil {
		var back sync.WaitGroup
		back.Go(l.fromServer)
		defer back.Wait()
		defer l.cut()
		l.fromClient()
	}
	if l.lost.Load() {
		<-l.ended // the server does not hear of the client's end
	}
}

// enter connects a link to the server, as the mode is.
func (p *Proxy) enter(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed || p.mode == refusing:
		return false
	case p.mode == swallowing:
		l.lost.Store(true)
	default:
		server, err := p.dial()
		if err != nil {
			return false // server may be a nil *tls.Conn, which is no nil net.Conn
		}
		l.server = server
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) leave(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// abort breaks a connection so that the other side gets a reset.
func abort(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn() // no farewell
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // else it ends in order
	}
	_ = conn.Close()
}

// cut breaks the connection on both sides.
func (l *link) cut() {
	l.once.Do(func() {
		close(l.ended)
		abort(l.client)
		if l.server != nil {
			_ = l.server.Close() // broken already, or is to be
		}
	})
}

// fromClient passes on requests, each as a whole.
func (l *link) fromClient() {
	r := bufio.NewReader(l.client)
	out, last, err := l.speech.opening(r, l.client)
	if err != nil || !l.send(l.server, out) || last {
		return
	}
	out = nil
	fate := Deliver
	for {
		m, err := l.speech.request(r)
		if err != nil {
			return
		}
		out = append(out, m.bytes...)
		if m.call.Function != "" && fate == Deliver {
			fate = l.proxy.fate(m.call)
		}
		if m.midway {
			continue
		}
		switch fate {
		case LoseRequest:
			return
		case Delay:
			if !l.delay() {
				return
			}
		case LoseReply:
			l.swallow.Store(true)
		}
		if !l.send(l.server, out) {
			return
		}
		if fate == Delay {
			<-l.ended // fromServer ends it when the request is done
			return
		}
		out, fate = out[:0], Deliver
	}
}

// fromServer passes on replies, as many at once as there are.
func (l *link) fromServer() {
	r := bufio.NewReader(l.server)
	var out []byte
	for {
		m, done, err := l.speech.reply(r)
		if err != nil {
			if !l.lost.Load() {
				l.cut()
			}
			return
		}
		switch {
		case !l.swallow.Load():
			out = append(out, m...)
		case done:
			l.cut()
			return
		}
		if r.Buffered() > 0 || len(out) == 0 {
			continue
		}
		if !l.send(l.client, out) {
			return
		}
		out = out[:0]
	}
}

// delay keeps the request that is at hand until it is to be delivered. The
// client's connection breaks at once.
func (l *link) delay() bool {
	l.swallow.Store(true)
	release := make(chan struct{})
	l.proxy.mu.Lock()
	l.proxy.delayed = append(l.proxy.delayed, func() {
		close(release)
		<-l.ended
	})
	l.proxy.mu.Unlock()
	abort(l.client) // who sees that may deliver at once
	select {
	case <-release:
		return true
	case <-l.ended:
		return false
	}
}

// send passes on what the proxy lets pass; false when the link has ended.
func (l *link) send(to net.Conn, data []byte) bool {
	if d := l.proxy.pace(len(data)); d > 0 && !l.wait(time.After(d)) {
		return false
	}
	for left := len(data); left > 0; left -= piece {
		d, shared := l.proxy.reserve(min(left, piece), to == l.client)
		if !shared {
			break
		}
		if !l.wait(time.After(d)) {
			return false
		}
	}
	for {
		mode, changed, over := l.proxy.now()
		switch {
		case over:
			return false
		case l.lost.Load():
			return true // swallowed
		case mode != stalling:
			_, err := to.Write(data)
			return err == nil
		}
		select {
		case <-changed:
		case <-l.ended:
			return false
		}
	}
}

func (l *link) wait(c <-chan time.Time) bool {
	select {
	case <-c:
		return true
	case <-l.ended:
		return false
	}
}
