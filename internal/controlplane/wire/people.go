package wire

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Org is an organisation that the person belongs to.
type Org struct {
	ID   uuid.UUID `json:"id" doc:"Its id."`
	Name string    `json:"name" doc:"The organisation's name."`
	Role string    `json:"role" enum:"viewer,operator,admin" doc:"Your role there."`
}

// Member is somebody who belongs to an organisation.
type Member struct {
	UserID uuid.UUID `json:"user_id" doc:"The person's id."`
	Name   string    `json:"name,omitempty" doc:"What they are called."`
	Email  string    `json:"email,omitempty" doc:"Their mail address."`
	Role   string    `json:"role" enum:"viewer,operator,admin" doc:"Their role."`
	Since  time.Time `json:"since" doc:"Since when they belong to it."`
}

// AuditEvent is something that somebody did.
type AuditEvent struct {
	ID        int64           `json:"id" doc:"Counts what was done, growing with time."`
	At        time.Time       `json:"at" doc:"When."`
	Actor     *uuid.UUID      `json:"actor,omitempty" doc:"Who. Absent: the control plane itself."`
	ActorName string          `json:"actor_name,omitempty" doc:"What they are called."`
	Action    string          `json:"action" doc:"What, such as approve_provision."`
	Object    string          `json:"object" doc:"What kind of thing it was done to, such as provision."`
	ObjectID  *uuid.UUID      `json:"object_id,omitempty" doc:"Which one."`
	Called    string          `json:"called,omitempty" doc:"What that is called: the name, or # and the number. Absent where it is gone."`
	Detail    json.RawMessage `json:"detail" doc:"More about it, by keys that belong to the action."`
}

// Invitation is one that an organisation has made and nobody has accepted. It is
// for an e-mail address, or for a user's id.
type Invitation struct {
	ID        uuid.UUID  `json:"id" doc:"Its id."`
	Email     string     `json:"email,omitempty" doc:"The invited person's address."`
	UserID    *uuid.UUID `json:"user_id,omitempty" doc:"The invited person's id, where the invitation is not for an address."`
	Role      string     `json:"role" doc:"The role they will have."`
	CreatedAt time.Time  `json:"created_at" doc:"When it was made."`
	ExpiresAt time.Time  `json:"expires_at" doc:"The invitation can be accepted until then."`
	Expired   bool       `json:"expired" doc:"The invitation can no longer be accepted."`
	Declined  bool       `json:"declined" doc:"The person has declined it."`
}

// OwnInvitation is one that the person may accept.
type OwnInvitation struct {
	ID        uuid.UUID `json:"id" doc:"Its id."`
	OrgID     uuid.UUID `json:"org_id" doc:"The organisation's id."`
	Org       string    `json:"org" doc:"The organisation's name."`
	Role      string    `json:"role" doc:"The role you will have."`
	InvitedBy string    `json:"invited_by,omitempty" doc:"The admin who invites you, by name or address."`
	CreatedAt time.Time `json:"created_at" doc:"When it was made."`
	ExpiresAt time.Time `json:"expires_at" doc:"You can accept the invitation until then."`
}

// Credential is a session or an API token of the person's own. What it is shown
// by is nowhere.
type Credential struct {
	ID         uuid.UUID  `json:"id" doc:"Its id."`
	Kind       string     `json:"kind" doc:"api_token."`
	Name       string     `json:"name" doc:"What uses it."`
	CreatedAt  time.Time  `json:"created_at" doc:"When it was made."`
	LastUsedAt *time.Time `json:"last_used_at,omitempty" doc:"When it was last used."`
	ExpiresAt  *time.Time `json:"expires_at,omitempty" doc:"When it ends."`
	Powers     *Powers    `json:"powers,omitempty" doc:"What it may do; absent: all that you may."`
	Audience   string     `json:"audience,omitempty" doc:"The URL of the resource that it is for; absent: the whole REST API."`
}

// Powers are what an API token may do, where that is less than its person may.
type Powers struct {
	Change         string   `json:"change,omitempty" enum:"nothing,propose" default:"propose" doc:"nothing: it reads alone. propose: the plans of its runs wait for a person."`
	MayApply       []string `json:"may_apply,omitempty" maxItems:"50" doc:"Patterns of workspaces where they don't wait, but for destroys, which it may approve there itself; * is any text." example:"lab/*"`
	Workspaces     []string `json:"workspaces,omitempty" maxItems:"50" doc:"Patterns of the workspaces where it may change anything; absent: all." example:"lab/*"`
	Destroy        *bool    `json:"destroy,omitempty" default:"true" doc:"Whether it may ask for a destroy, and apply without an approval what destroys something."`
	Approve        bool     `json:"approve,omitempty" doc:"Whether it may approve plans, but for those that your own tokens have proposed."`
	CallsPerMinute int      `json:"calls_per_minute,omitempty" minimum:"1" maximum:"6000" doc:"How many requests it is answered; absent: any number."`
	RunsPerHour    int      `json:"runs_per_hour,omitempty" minimum:"1" maximum:"1000" doc:"How many runs it may ask for; absent: any number."`
}

// APIToken is a new API token, which is shown once.
type APIToken struct {
	ID        uuid.UUID  `json:"id" doc:"Its id."`
	Token     string     `json:"token" doc:"The token. Nobody can read it again."`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"When it ends."`
}

// MeBody is who asks.
type MeBody struct {
	ID    uuid.UUID `json:"id" doc:"Your id."`
	Name  string    `json:"name,omitempty" doc:"What you are called."`
	Email string    `json:"email,omitempty" doc:"Your mail address."`
	Orgs  []Org     `json:"orgs" doc:"The organisations that this person belongs to, with their role in each."`
	// Powers are the token's that asks.
	Powers *Powers `json:"powers,omitempty" doc:"What the API token that asks may do; absent: all that you may."`
}

// SetMemberInputBody gives a member another role.
type SetMemberInputBody struct {
	Role string `json:"role" enum:"viewer,operator,admin" doc:"viewer reads; operator deploys, cancels, approves as well; admin manages clusters, templates, tokens and members as well." example:"operator"`
}

// NewInvitationInputBody invites a person.
type NewInvitationInputBody struct {
	Email string    `json:"email,omitempty" maxLength:"320" doc:"The person's address, which the issuer that they sign in at must have verified. Either this or user." example:"ada@example.com"`
	User  uuid.UUID `json:"user,omitzero" doc:"The person's id, where no address is known."`
	Role  string    `json:"role" enum:"viewer,operator,admin" doc:"The role they will have." example:"operator"`
}

// InvitationAnswer answers an invitation.
type InvitationAnswer struct {
	ID uuid.UUID `json:"id" doc:"The invitation's id."`
}

// AcceptInvitationInputBody accepts an invitation.
type AcceptInvitationInputBody struct {
	Role string `json:"role" enum:"viewer,operator,admin" doc:"The role that you were shown: an invitation that has changed since is not accepted." example:"operator"`
}

// NewAPITokenInputBody makes an API token.
type NewAPITokenInputBody struct {
	Name   string  `json:"name" minLength:"1" maxLength:"200" doc:"What will use it, for people." example:"ci"`
	Days   int     `json:"days,omitempty" minimum:"1" maximum:"366" default:"90" doc:"How long it lasts."`
	Powers *Powers `json:"powers,omitempty" doc:"What it may do; absent: all that you may."`
}

// CliCode is what a command line shows that a browser has let in.
type CliCode struct {
	Code     string `json:"code" doc:"What the browser has brought. It is good for two minutes, once, whatever is shown with it." example:"5ZWQH3D4KJ2LMNOPQRSTUVWXYZ"`
	Verifier string `json:"verifier" pattern:"^[A-Za-z0-9._~-]{43,128}$" doc:"What the challenge was made of that the browser was sent with (RFC 7636, S256)." example:"dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"`
}

// CliToken is what it gets for it.
type CliToken struct {
	Token     string    `json:"token" doc:"An API token of the person's. Nobody can read it again."`
	ExpiresAt time.Time `json:"expires_at" doc:"When it ends."`
	User      CliUser   `json:"user" doc:"Who has let it in."`
}

// CliUser is the person of a CliToken.
type CliUser struct {
	ID    uuid.UUID `json:"id" doc:"The person's id."`
	Name  string    `json:"name,omitempty" doc:"What they are called."`
	Email string    `json:"email,omitempty" doc:"Their address, as the issuer has it."`
}
