package rpcqueue

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// answer is what came back over HTTP, from whomever.
type answer struct {
	status int
	header http.Header
	body   []byte
	// endless: there was more than is read, so nothing of it is there.
	endless bool
}

// result reads the result of a function into reply, nil where it has none. False
// when this is not one: what stands between (a login page of a network, a
// maintenance page) says 200 as well, and must not be taken for the database's
// word that lines are stored.
func (a answer) result(reply reply) bool {
	switch {
	case a.endless:
		return false
	case reply == nil: // a void function; PostgREST before 11 said 200 and null
		return a.status == http.StatusNoContent || a.status == http.StatusOK && string(bytes.TrimSpace(a.body)) == "null"
	case a.status != http.StatusOK:
		return false
	}
	return json.Unmarshal(a.body, reply) == nil && reply.valid()
}

// registration is what register_agent answers.
type registration struct {
	ClusterID   uuid.UUID `json:"cluster_id"`
	ClusterName string    `json:"cluster_name"`
	Contract    int       `json:"contract"`
	Heartbeat   float64   `json:"heartbeat_seconds"`
	Lease       float64   `json:"lease_seconds"`
	ClusterKey  string    `json:"age_public_key"`
}

func (r *registration) valid() bool { return r.ClusterID != uuid.Nil && r.Contract > 0 }

// standing is what check_agent answers.
type standing queue.Standing

func (s *standing) valid() bool { return s.ClusterID != uuid.Nil && s.Contract > 0 && !s.Now.IsZero() }

// pulse is what agent_heartbeat answers.
type pulse struct {
	Cancel    []uuid.UUID `json:"cancel"`
	Lost      []uuid.UUID `json:"lost"`
	Poll      float64     `json:"poll_seconds"`
	Heartbeat float64     `json:"heartbeat_seconds"`
}

func (p *pulse) valid() bool { return p.Cancel != nil && p.Lost != nil }

// assignments are the rows that fetch_next_provision answers, one at most. There
// is room for no more: a slice of what "{}" becomes a hundred thousand times is
// more memory than an agent has.
type assignments struct {
	row  [1]provision.Assignment
	none bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *assignments) UnmarshalJSON(text []byte) error {
	a.none = string(text) == "[]"
	return json.Unmarshal(text, &a.row)
}

func (a *assignments) valid() bool {
	return a.none || a.row[0].ClaimID != uuid.Nil && a.row[0].ProvisionID != uuid.Nil
}

// ids are what fail_orphaned_provisions answers.
type ids []uuid.UUID

func (i *ids) valid() bool { return *i != nil }

// chunkNumber is what insert_provision_log answers.
type chunkNumber int64

func (n *chunkNumber) valid() bool { return *n > 0 }
