package queue

import (
	"fmt"
	"strings"

	"github.com/tendril-run/tendril/internal/postgrest"
)

// Class says what a failed answer means for the request that it answers.
type Class int

const (
	// Outage says nothing about the request: the database, its contract, the way
	// to it or the right to use it is missing at the moment. The request is held
	// and repeated, with growing pauses, until there is another answer.
	Outage Class = iota
	// Refusal is the contract's own no to this request. It is final.
	Refusal
	// Content says that the database can't take what the request carries. The same
	// request fails for ever, and one without that content may succeed.
	Content
)

func (c Class) String() string {
	return [...]string{"outage", "refusal", "content refused"}[c]
}

// Meaning is one row of the table of answers.
type Meaning struct {
	// Code is a SQLSTATE, the first two characters of a class of them, or a code
	// of PostgREST's own or the beginning of several. The longest match counts.
	Code  string
	Class Class
	// Kind is what the row comes to for callers that tell more than classes apart.
	Kind Kind
	// Hint is what to do; "" leaves the hint of the answer.
	Hint string
}

// What to do about answers that come from a wrong setup.
const (
	// NoContract is for a database without the functions or tables of the contract.
	NoContract = "this database has no Tendril contract, an older one, or one that is away for a moment: if it stays like this, run \"trellis migrate\" against it"
	// NoPrivilege is for a role or an API key that may not call the functions.
	NoPrivilege   = "the queue's user must be a member of tendril_agent, or the API key the project's public (publishable or anon) one; \"trellis migrate\" grants what they need"
	hintLogin     = "check the user and password in the queue URL"
	hintDatabase  = "check the database name in the queue URL"
	hintReadOnly  = "the database takes no writes: a standby, or default_transaction_read_only is set"
	hintProfile   = "expose the schema public in the settings of the API"
	hintTooLarge  = "what stands before the database must let bodies of 2 MB pass"
	hintDiskSpace = "the database's disk or memory is full"
)

// Meanings is the table of all answers with a code, the same on every transport.
// Only the contract's refusals, PT4xx with a reason, are final. A code that isn't
// here is an outage.
//
// Content has the codes that PostgreSQL gives for a value it can't take. Some of
// them can also come from a broken database (a constraint that somebody added, a
// role that is missing), so nothing may be given up for such an answer before the
// same call without that content has succeeded.
var Meanings = []Meaning{
	// The contract's own.
	{Code: "PT4", Class: Refusal, Kind: Refused},
	{Code: "PT401", Class: Refusal, Kind: Unauthorized},
	{Code: "PT408", Class: Outage},
	{Code: "PT413", Class: Content, Kind: ContentRefused},
	{Code: "PT422", Class: Content, Kind: ContentRefused},
	{Code: "PT429", Class: Outage},
	{Code: "PT", Class: Outage},

	// PostgreSQL's, by class.
	{Code: "03", Class: Outage},                                         // SQL statement not yet complete
	{Code: "08", Class: Outage},                                         // connection
	{Code: "09", Class: Outage},                                         // triggered action
	{Code: "0A", Class: Outage},                                         // feature not supported
	{Code: "0B", Class: Outage},                                         // transaction initiation
	{Code: "0F", Class: Outage},                                         // locator
	{Code: "0L", Class: Outage, Hint: NoPrivilege},                      // grantor
	{Code: "0P", Class: Outage, Hint: NoPrivilege},                      // role specification
	{Code: "0Z", Class: Outage},                                         // diagnostics
	{Code: "20", Class: Outage},                                         // case not found
	{Code: "21", Class: Content, Kind: ContentRefused},                  // cardinality: one row twice in one statement
	{Code: "22", Class: Content, Kind: ContentRefused},                  // data
	{Code: "23", Class: Content, Kind: ContentRefused},                  // integrity constraint
	{Code: "24", Class: Outage},                                         // cursor state
	{Code: "25", Class: Outage},                                         // transaction state
	{Code: "25006", Class: Outage, Hint: hintReadOnly},                  // read-only transaction
	{Code: "26", Class: Outage},                                         // SQL statement name
	{Code: "27", Class: Outage},                                         // triggered data change
	{Code: "28", Class: Outage, Kind: Unauthorized, Hint: hintLogin},    // authorization
	{Code: "2B", Class: Outage},                                         // dependent privileges
	{Code: "2D", Class: Outage},                                         // transaction termination
	{Code: "2F", Class: Outage},                                         // SQL routine
	{Code: "34", Class: Outage},                                         // cursor name
	{Code: "38", Class: Outage},                                         // external routine
	{Code: "39", Class: Outage},                                         // external routine invocation
	{Code: "3B", Class: Outage},                                         // savepoint
	{Code: "3D", Class: Outage, Kind: Unauthorized, Hint: hintDatabase}, // no such database
	{Code: "3F", Class: Outage, Hint: NoContract},                       // no such schema
	{Code: "40", Class: Outage},                                         // transaction rollback: deadlock, serialization
	{Code: "42", Class: Outage, Hint: NoContract},                       // no such function, table or column; another signature
	{Code: "42501", Class: Outage, Hint: NoPrivilege},
	{Code: "42P17", Class: Outage},                     // infinite recursion in a policy
	{Code: "44", Class: Content, Kind: ContentRefused}, // WITH CHECK OPTION
	{Code: "53", Class: Outage, Hint: hintDiskSpace},   // resources
	{Code: "53300", Class: Outage},                     // too many connections
	{Code: "53400", Class: Outage},                     // configuration limit
	// Program limits. What is met by a value is its content; what is met by the shape of a
	// statement or a table, which no value changes, is the database's.
	{Code: "54", Class: Outage},
	{Code: "54000", Class: Content, Kind: ContentRefused}, // an index row too long, an array or a JSON document too large
	{Code: "54001", Class: Content, Kind: ContentRefused}, // the stack's depth: nested too deep
	{Code: "54011", Class: Outage},                        // too many columns
	{Code: "54023", Class: Outage},                        // too many arguments of a function
	{Code: "55", Class: Outage},                           // object state: a lock that isn't available
	{Code: "57", Class: Outage},                           // operator intervention: shutdown, statement time-out
	{Code: "58", Class: Outage},                           // system
	{Code: "72", Class: Outage},                           // snapshot too old
	{Code: "F0", Class: Outage},                           // configuration file
	{Code: "HV", Class: Outage},                           // foreign data
	{Code: "P0", Class: Outage},                           // PL/pgSQL: a RAISE without a code
	{Code: "XX", Class: Outage},                           // internal

	// PostgREST's own.
	{Code: "PGRST", Class: Outage},
	{Code: "PGRST0", Class: Outage}, // no connection, or the schema can't be read
	{Code: "PGRST1", Class: Outage}, // the request: another API than this one
	{Code: postgrest.CodeBadBody, Class: Content, Kind: ContentRefused},
	{Code: postgrest.CodeNoSuchProfile, Class: Outage, Hint: hintProfile},
	{Code: "PGRST2", Class: Outage, Hint: NoContract},   // the schema cache: no such function or table
	{Code: "PGRST3", Class: Outage, Kind: Unauthorized}, // the API key
	{Code: "PGRSTX", Class: Outage},                     // PostgREST itself
}

// MeaningOfStatus is the same for an HTTP answer that isn't PostgREST's: a proxy's
// page, a login form, a redirect. It says nothing of the database, whatever the
// status, but what is too large for something on the way stays too large.
func MeaningOfStatus(status int) Meaning {
	if status == 413 {
		return Meaning{Code: "413", Class: Content, Kind: ContentRefused, Hint: hintTooLarge}
	}
	return Meaning{Code: fmt.Sprint(status), Class: Outage}
}

// meaningOf finds the row of a code: of those that it begins with, the longest.
func meaningOf(code string) (found Meaning) {
	for _, m := range Meanings {
		if strings.HasPrefix(code, m.Code) && len(m.Code) > len(found.Code) {
			found = m
		}
	}
	return found
}

// Answer makes an Error of an answer with a code, the same on every transport.
// doing says what was tried, for messages that aren't the contract's own.
func Answer(doing, code, message, detail, hint string) *Error {
	m := meaningOf(code)
	e := &Error{Kind: m.Kind, Code: code, Reason: detail, Message: message, Hint: hint}
	if strings.HasPrefix(code, "PT") {
		switch {
		case m.Class == Refusal && detail == "" && m.Kind != Unauthorized:
			e.Kind = Unavailable // the contract gives a reason with each of its refusals
		case code == "PT409" && detail == "agent_superseded":
			e.Kind = Superseded
		case code == "PT409" && detail == "claim_lost":
			e.Kind = ClaimLost
		case code == "PT409" && detail == "cancel_requested":
			e.Kind = CancelRequested
		}
		return e
	}
	said := code
	if len(code) == sqlStateLength {
		said = "SQLSTATE " + code
	}
	e.Message, e.Reason = fmt.Sprintf("could not %s: %s (%s)", doing, message, said), ""
	if m.Hint != "" {
		e.Hint = m.Hint
	}
	return e
}

// sqlStateLength is how many characters each SQLSTATE has.
const sqlStateLength = 5
