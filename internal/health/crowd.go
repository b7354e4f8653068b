package health

import (
	"net"
	"slices"
	"sync"
)

// crowd is a listener with room for one more at any time: of the connections that
// are open the oldest is closed for the next one. A probe says what it wants at
// once and is gone, so it is those who say nothing that go, however many they are.
// A limit at which newcomers wait would let a few of these keep out the probe by
// whose answer an agent lives.
type crowd struct {
	net.Listener
	most int

	mu   sync.Mutex
	open []*member // the oldest first
}

// Crowd returns a listener that has at most so many connections open, for a port
// that probes ask and anybody can reach.
func Crowd(listener net.Listener, most int) net.Listener {
	return &crowd{Listener: listener, most: most}
}

// Accept implements net.Listener.
func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the server's, which looks at what it is
	}
	one := &member{Conn: conn, crowd: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= c.most {
		_ = c.open[0].Conn.Close() // its server notices
		c.open = slices.Delete(c.open, 0, 1)
	}
	c.open = append(c.open, one)
	return one, nil
}

// member is a connection of a crowd.
type member struct {
	net.Conn
	crowd *crowd
}

// Close implements net.Conn.
func (m *member) Close() error {
	m.crowd.leave(m)
	return m.Conn.Close() //nolint:wrapcheck // the server's
}

func (c *crowd) leave(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = slices.DeleteFunc(c.open, func(other *member) bool { return other == m })
}
