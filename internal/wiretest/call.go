package wiretest

import (
	"regexp"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Call is one call of an SQL function, however it is sent.
type Call struct {
	Function string
	// Args are the parameters as they were sent: text, or PostgreSQL's binary
	// form where the client chose that (UUIDs, for one).
	Args []string
	// Named are they by name, as text or JSON, where the protocol names them.
	Named map[string]string
}

// Fate is what becomes of a call.
type Fate int

// What can become of a call. All but Deliver break the client's connection.
const (
	// Deliver passes on the request and the reply.
	Deliver Fate = iota
	// LoseReply has the server do and commit it, and swallows the answer.
	LoseReply
	// LoseRequest keeps it from the server.
	LoseRequest
	// Delay keeps it from the server until DeliverDelayed, as a network does
	// that sends again what a client has long given up.
	Delay
)

// calls knows what each statement and portal of a session calls.
type calls struct {
	statements, portals map[string]Call
}

func newCalls() *calls { return &calls{statements: map[string]Call{}, portals: map[string]Call{}} }

var called = regexp.MustCompile(`(?i)\bpublic\.(\w+)\s*\(`)

func callOf(sql string) Call {
	if found := called.FindStringSubmatch(sql); found != nil {
		return Call{Function: found[1]}
	}
	return Call{}
}

// read takes a client's message and answers the call it makes, if any.
func (c *calls) read(m frame) (made Call, err error) {
	switch m.kind() {
	case 'P':
		var parse pgproto3.Parse
		if err := parse.Decode(m.body()); err != nil {
			return made, err
		}
		c.statements[parse.Name] = callOf(parse.Query)
	case 'B':
		var bind pgproto3.Bind
		if err := bind.Decode(m.body()); err != nil {
			return made, err
		}
		portal := Call{Function: c.statements[bind.PreparedStatement].Function}
		for _, value := range bind.Parameters {
			portal.Args = append(portal.Args, string(value))
		}
		c.portals[bind.DestinationPortal] = portal
	case 'E':
		var execute pgproto3.Execute
		if err := execute.Decode(m.body()); err != nil {
			return made, err
		}
		made = c.portals[execute.Portal]
	case 'Q':
		var query pgproto3.Query
		if err := query.Decode(m.body()); err != nil {
			return made, err
		}
		made = callOf(query.String)
	}
	return made, nil
}
