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
	Fingerprint string `json:"fingerprint" pattern:"^[0-9a-fA-F]{64}$" doc:"The fingerprint that was shown: an agent with another key is refused." example:"612792f7dcdaeb63aa5f8edceb6dda47843f273d5afd105e4ec2d1169704d4ca"`
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

// TrustIssuerInputBody trusts the service account tokens of a Kubernetes cluster.
type TrustIssuerInputBody struct {
	Issuer   string         `json:"issuer" minLength:"1" maxLength:"500" doc:"The issuer, as the tokens have it." example:"https://kubernetes.default.svc.cluster.local"`
	Subjects []string       `json:"subjects" minItems:"1" maxItems:"20" doc:"The service accounts whose pods may join." example:"[\"system:serviceaccount:tendril:tendril\"]"`
	Keys     map[string]any `json:"keys" doc:"The issuer's public keys, a JSON Web Key Set with at most 16 keys, as /openid/v1/jwks of its API server answers." example:"{\"keys\": [{\"kty\": \"RSA\", \"kid\": \"1\", \"n\": \"AQAB\", \"e\": \"AQAB\"}]}"`
	Audience string         `json:"audience,omitempty" maxLength:"500" doc:"The tokens' audience, which must have the cluster's id in it. Not given: tendril:ID."`
	Valid    *int64         `json:"valid_seconds,omitempty" minimum:"60" maximum:"3153600000" doc:"How long agents may join by it, in seconds. Not given: for good." example:"86400"`
}

// Trusted is an issuer just trusted.
type Trusted struct {
	ID       uuid.UUID `json:"trust_id" doc:"Its id, by which it is trusted no more."`
	Audience string    `json:"audience" doc:"The audience that agents' tokens must be for."`
}

// TrustedIssuer is an issuer whose tokens let agents join.
type TrustedIssuer struct {
	ID         uuid.UUID  `json:"id" doc:"Its id."`
	Issuer     string     `json:"issuer" doc:"The issuer, as the tokens have it."`
	Audience   string     `json:"audience" doc:"The audience that agents' tokens must be for."`
	Subjects   []string   `json:"subjects" doc:"The service accounts whose pods may join."`
	KeyIDs     []string   `json:"key_ids" doc:"The ids of its keys. Empty: a key without one."`
	CreatedBy  *uuid.UUID `json:"created_by,omitempty" doc:"The user who trusted it, or changed that last. Absent: the control plane."`
	CreatedAt  time.Time  `json:"created_at" doc:"When it was trusted first."`
	ExpiresAt  *time.Time `json:"expires_at,omitempty" doc:"Until when agents may join by it. Absent: for good."`
	LastUsedAt *time.Time `json:"last_used_at,omitempty" doc:"When an agent last joined by it. Absent: none did."`
}
