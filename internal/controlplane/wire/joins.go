package wire

import (
	"time"

	"github.com/google/uuid"
)

// JoinRequest is an agent whose key waits for an admin.
type JoinRequest struct {
	Fingerprint string    `json:"fingerprint" doc:"SHA-256 of its key, as 64 hexadecimal digits. The agent shows it, too."`
	Words       string    `json:"words" doc:"The beginning of the fingerprint as words, to compare with what the agent shows."`
	Name        string    `json:"name" doc:"Its name, as it says."`
	Host        string    `json:"host" doc:"Its host, as it says."`
	Version     string    `json:"version" doc:"Its version, as it says."`
	Slots       int       `json:"slots" doc:"How many provisions it runs at a time, as it says."`
	Operations  []string  `json:"operations" doc:"The operations that its policy allows, as it says. Empty: it did not say."`
	Wanted      string    `json:"wanted,omitempty" doc:"The name of the cluster that it wants to join. Absent: any."`
	Address     string    `json:"address,omitempty" doc:"From where it asked. Absent: not known."`
	RequestedAt time.Time `json:"requested_at" doc:"When it asked."`
	ExpiresAt   time.Time `json:"expires_at" doc:"When its code expires."`
}

// ApproveJoinInputBody lets an agent join.
type ApproveJoinInputBody struct {
	Cluster     string `json:"cluster" minLength:"1" maxLength:"100" doc:"The cluster that it joins, by its name or id." example:"prod"`
	Fingerprint string `json:"fingerprint" pattern:"^[0-9a-fA-F]{64}$" doc:"The fingerprint that was shown: an agent with another key is refused."`
}

// JoinedKey is the key of an agent that has joined.
type JoinedKey struct {
	ID      uuid.UUID `json:"key_id" doc:"The key's id, by which it is revoked."`
	Cluster string    `json:"cluster" doc:"The name of the cluster that it has joined."`
}

// NewJoinTokenInputBody makes a one-time token.
type NewJoinTokenInputBody struct {
	Name  string `json:"name,omitempty" maxLength:"200" doc:"What it is for." example:"chart of staging"`
	Valid *int64 `json:"valid_seconds,omitempty" minimum:"60" maximum:"86400" doc:"How long it is valid, in seconds; at most a day. Not given: an hour." example:"3600"`
}

// JoinToken is a one-time token just made, which nobody can read again.
type JoinToken struct {
	ID        uuid.UUID `json:"token_id" doc:"Its id, by which it is revoked."`
	Token     string    `json:"token" doc:"The token. One agent joins with it. Nobody can read it again."`
	ExpiresAt time.Time `json:"expires_at" doc:"When it expires."`
}
