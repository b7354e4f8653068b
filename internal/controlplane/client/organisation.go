package client

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// Clusters lists the clusters of the organisation by name, with the agents heard of
// within a day.
func (c *Client) Clusters(ctx context.Context) ([]wire.Cluster, error) {
	return list[wire.Cluster](ctx, c, call{doing: "list the clusters", method: http.MethodGet, path: []string{"clusters"}, query: c.inOrg()}, MostItems)
}

// FindCluster returns the cluster of that name or id; "" means the only one there
// is. A *problem.RefusedError says which there are when none is meant, or several.
func (c *Client) FindCluster(ctx context.Context, ref string) (wire.Cluster, error) {
	clusters, err := c.Clusters(ctx)
	if err != nil {
		return wire.Cluster{}, err
	}
	var matching []wire.Cluster
	names := make([]string, len(clusters))
	for i, c := range clusters {
		names[i] = c.Name
		if ref == "" || c.Name == ref || strings.EqualFold(c.ID.String(), ref) {
			matching = append(matching, c)
		}
	}
	switch {
	case len(matching) == 1:
		return matching[0], nil
	case len(clusters) == 0:
		return wire.Cluster{}, &problem.RefusedError{Code: "PT404", Reason: "cluster_not_found", Message: "there is no cluster, or you have no access to it", Hint: "make one with: trellis clusters create NAME"}
	case ref == "":
		return wire.Cluster{}, &problem.RefusedError{Code: "PT422", Reason: "cluster_missing", Message: "there are several clusters: " + strings.Join(names, ", "), Hint: "say which one with --cluster"}
	case len(matching) > 1:
		return wire.Cluster{}, &problem.RefusedError{Code: "PT422", Reason: "cluster_ambiguous", Message: fmt.Sprintf("several clusters are named %q", ref), Hint: "give the id: trellis clusters list -o json"}
	}
	return wire.Cluster{}, &problem.RefusedError{Code: "PT404", Reason: "cluster_not_found", Message: fmt.Sprintf("there is no cluster %q, or you have no access to it", ref), Hint: "there are: " + strings.Join(names, ", ")}
}

// the returns the only one of a list that fits; none and several are the refusals where
// nothing fits, or more than one.
func the[T any](list []T, err error, fits func(T) bool, none, several *problem.RefusedError) (one T, _ error) {
	if err != nil {
		return one, err
	}
	list = slices.DeleteFunc(list, func(entry T) bool { return !fits(entry) })
	switch len(list) {
	case 1:
		return list[0], nil
	case 0:
		return one, none
	}
	return one, several
}

// CreateCluster makes a cluster. Its token nobody can read again.
func (c *Client) CreateCluster(ctx context.Context, name string) (wire.NewCluster, error) {
	return ask[wire.NewCluster](ctx, c, call{doing: "create a cluster", method: http.MethodPost, path: []string{"clusters"}, query: c.inOrg(), body: wire.NewClusterInputBody{Name: name}})
}

// Pause keeps a cluster's agents from claiming anything, or lets them again.
func (c *Client) Pause(ctx context.Context, cluster uuid.UUID, paused bool, reason string) error {
	verb := "resume"
	if paused {
		verb = "pause"
	}
	_, err := post[struct{}](ctx, c, "pause or resume the cluster", wire.ClusterReasonInputBody{Reason: reason}, "clusters", cluster.String(), verb)
	return err
}

// Policy returns a cluster's policy.
func (c *Client) Policy(ctx context.Context, cluster uuid.UUID) (wire.Policy, error) {
	return get[wire.Policy](ctx, c, "read the cluster's policy", "clusters", cluster.String(), "policy")
}

// SetPolicy changes what is not nil of a cluster's policy, and returns all of it.
func (c *Client) SetPolicy(ctx context.Context, cluster uuid.UUID, change wire.PolicyChange) (wire.Policy, error) {
	return ask[wire.Policy](ctx, c, call{doing: "set the cluster's policy", method: http.MethodPut, path: []string{"clusters", cluster.String(), "policy"}, body: change})
}

// RotateToken makes a new token for a cluster's agents, which nobody can read again.
// Those before it go on being valid for overlap, at most 30 days.
func (c *Client) RotateToken(ctx context.Context, cluster uuid.UUID, overlap time.Duration) (string, error) {
	seconds := int64(overlap.Seconds())
	made, err := post[wire.NewToken](ctx, c, "rotate the cluster's token", wire.RotateInputBody{Overlap: &seconds}, "clusters", cluster.String(), "tokens")
	return made.Token, err
}

// JoinRequest returns the agent that waits to join with a code.
func (c *Client) JoinRequest(ctx context.Context, code string) (wire.JoinRequest, error) {
	return get[wire.JoinRequest](ctx, c, "look up the code", "joins", code)
}

// ApproveJoin lets the agent that waits with a code join a cluster, if its key has this fingerprint.
func (c *Client) ApproveJoin(ctx context.Context, code string, cluster uuid.UUID, fingerprint string) (wire.JoinedKey, error) {
	return post[wire.JoinedKey](ctx, c, "let the agent join", wire.ApproveJoinInputBody{Cluster: cluster.String(), Fingerprint: fingerprint}, "joins", code, "approve")
}

// RefuseJoin refuses the agent that waits with a code.
func (c *Client) RefuseJoin(ctx context.Context, code string) error {
	_, err := post[struct{}](ctx, c, "refuse the agent", nil, "joins", code, "refuse")
	return err
}

// NewJoinToken makes a token with which one agent joins a cluster. Nobody can read it again.
func (c *Client) NewJoinToken(ctx context.Context, cluster uuid.UUID, name string, valid time.Duration) (wire.JoinToken, error) {
	seconds := int64(valid.Seconds())
	return post[wire.JoinToken](ctx, c, "make a join token", wire.NewJoinTokenInputBody{Name: name, Valid: &seconds}, "clusters", cluster.String(), "join-tokens")
}

// TrustIssuer lets agents with an issuer's service account tokens join a cluster.
func (c *Client) TrustIssuer(ctx context.Context, cluster uuid.UUID, trust wire.TrustIssuerInputBody) (wire.Trusted, error) {
	return post[wire.Trusted](ctx, c, "trust the issuer", trust, "clusters", cluster.String(), "trusted-issuers")
}

// TrustedIssuers lists the issuers whose service account tokens let agents join a cluster.
func (c *Client) TrustedIssuers(ctx context.Context, cluster uuid.UUID) ([]wire.TrustedIssuer, error) {
	return whole[wire.TrustedIssuer](ctx, c, "list the trusted issuers", nil, "clusters", cluster.String(), "trusted-issuers")
}

// UntrustIssuer trusts an issuer no more; agents that have joined by it stay.
func (c *Client) UntrustIssuer(ctx context.Context, cluster, trust uuid.UUID) error {
	return c.remove(ctx, "trust the issuer no more", nil, "clusters", cluster.String(), "trusted-issuers", trust.String())
}

// ClusterTokens lists what is known of the tokens and keys of a cluster's agents.
func (c *Client) ClusterTokens(ctx context.Context, cluster uuid.UUID) ([]wire.ClusterToken, error) {
	return whole[wire.ClusterToken](ctx, c, "list the cluster's tokens", nil, "clusters", cluster.String(), "tokens")
}

// RevokeClusterToken ends a token, join token or key of a cluster's agents at once.
func (c *Client) RevokeClusterToken(ctx context.Context, cluster, token uuid.UUID) error {
	return c.remove(ctx, "revoke the token", nil, "clusters", cluster.String(), "tokens", token.String())
}

// Me tells who asks.
func (c *Client) Me(ctx context.Context) (wire.MeBody, error) {
	return get[wire.MeBody](ctx, c, "ask who you are", "me")
}

// RevokeOwnToken ends the token that this client asks with.
func (c *Client) RevokeOwnToken(ctx context.Context) error {
	return c.remove(ctx, "revoke the token", nil, "cli", "token")
}

// APITokens lists the person's own API tokens.
func (c *Client) APITokens(ctx context.Context) ([]wire.Credential, error) {
	return whole[wire.Credential](ctx, c, "list your API tokens", nil, "api-tokens")
}

// RevokeAPIToken ends one of the person's own API tokens.
func (c *Client) RevokeAPIToken(ctx context.Context, id uuid.UUID) error {
	return c.remove(ctx, "revoke the token", nil, "api-tokens", id.String())
}

// Members lists who belongs to the organisation.
func (c *Client) Members(ctx context.Context) ([]wire.Member, error) {
	return list[wire.Member](ctx, c, call{doing: "list the members", method: http.MethodGet, path: []string{"members"}, query: c.inOrg()}, MostItems)
}

// FindMember returns the member of that e-mail address, name or id.
func (c *Client) FindMember(ctx context.Context, who string) (wire.Member, error) {
	members, err := c.Members(ctx)
	return the(members, err, func(m wire.Member) bool {
		return strings.EqualFold(m.Email, who) || m.Name == who || strings.EqualFold(m.UserID.String(), who)
	}, &problem.RefusedError{Code: "PT404", Reason: "member_not_found", Message: fmt.Sprintf("there is no member %q", who), Hint: "trellis members list"},
		&problem.RefusedError{Code: "PT422", Reason: "member_ambiguous", Message: fmt.Sprintf("several members are called %q", who), Hint: "give the id: trellis members list"})
}

// SetMember gives somebody a role in the organisation.
func (c *Client) SetMember(ctx context.Context, user uuid.UUID, role string) error {
	_, err := ask[struct{}](ctx, c, call{doing: "set the member's role", method: http.MethodPut, path: []string{"members", user.String()}, query: c.inOrg(), body: wire.SetMemberInputBody{Role: role}})
	return err
}

// RemoveMember takes somebody out of the organisation.
func (c *Client) RemoveMember(ctx context.Context, user uuid.UUID) error {
	return c.remove(ctx, "remove the member", c.inOrg(), "members", user.String())
}

// Audit lists what was done in the organisation, the newest first.
func (c *Client) Audit(ctx context.Context, limit int) ([]wire.AuditEvent, error) {
	return list[wire.AuditEvent](ctx, c, call{doing: "read the audit", method: http.MethodGet, path: []string{"audit"}, query: c.inOrg()}, limit)
}

// Invitations lists those that nobody has accepted.
func (c *Client) Invitations(ctx context.Context) ([]wire.Invitation, error) {
	return whole[wire.Invitation](ctx, c, "list the invitations", c.inOrg(), "invitations")
}

// Invite invites a person, by e-mail address or by user id, and returns the
// invitation's id.
func (c *Client) Invite(ctx context.Context, who, role string) (uuid.UUID, error) {
	body := wire.NewInvitationInputBody{Email: who, Role: role}
	if user, err := uuid.Parse(who); err == nil {
		body.Email, body.User = "", user
	}
	made, err := ask[wire.InvitationAnswer](ctx, c, call{doing: "invite a person", method: http.MethodPost, path: []string{"invitations"}, query: c.inOrg(), body: body})
	return made.ID, err
}

// RevokeInvitation revokes an invitation.
func (c *Client) RevokeInvitation(ctx context.Context, id uuid.UUID) error {
	return c.remove(ctx, "revoke the invitation", c.inOrg(), "invitations", id.String())
}

// OwnInvitations lists what the person is invited to.
func (c *Client) OwnInvitations(ctx context.Context) ([]wire.OwnInvitation, error) {
	return whole[wire.OwnInvitation](ctx, c, "list your invitations", nil, "me", "invitations")
}

// FindOwnInvitation returns the open invitation to the organisation of that name or id,
// or the one of that id itself.
func (c *Client) FindOwnInvitation(ctx context.Context, org string) (wire.OwnInvitation, error) {
	list, err := c.OwnInvitations(ctx)
	return the(list, err, func(i wire.OwnInvitation) bool {
		return i.Org == org || strings.EqualFold(i.ID.String(), org) || strings.EqualFold(i.OrgID.String(), org)
	}, &problem.RefusedError{Code: "PT404", Reason: "invitation_not_found", Message: fmt.Sprintf("you have no open invitation to %q", org), Hint: "trellis invitations"},
		&problem.RefusedError{Code: "PT422", Reason: "invitation_ambiguous", Message: fmt.Sprintf("several organisations called %q invited you", org), Hint: "give the invitation's id: trellis invitations"})
}

// AcceptInvitation joins an organisation in the role that the person saw.
func (c *Client) AcceptInvitation(ctx context.Context, id uuid.UUID, role string) error {
	_, err := ask[struct{}](ctx, c, call{doing: "accept the invitation", method: http.MethodPost, path: []string{"me", "invitations", id.String(), "accept"}, body: wire.AcceptInvitationInputBody{Role: role}})
	return err
}

// DeclineInvitation declines one of the person's invitations.
func (c *Client) DeclineInvitation(ctx context.Context, id uuid.UUID) error {
	_, err := ask[struct{}](ctx, c, call{doing: "decline the invitation", method: http.MethodPost, path: []string{"me", "invitations", id.String(), "decline"}})
	return err
}

// Templates lists the organisation's catalogue.
func (c *Client) Templates(ctx context.Context) ([]wire.Template, error) {
	return list[wire.Template](ctx, c, call{doing: "list the templates", method: http.MethodGet, path: []string{"templates"}, query: c.inOrg()}, MostItems)
}

// Template returns one template of the catalogue.
func (c *Client) Template(ctx context.Context, ref string) (wire.Template, error) {
	return ask[wire.Template](ctx, c, call{doing: "look for the template", method: http.MethodGet, path: []string{"templates", ref}, query: c.inOrg()})
}

// SaveTemplate puts a template into the catalogue, or changes what stands there
// under its name, and returns what stands there then.
func (c *Client) SaveTemplate(ctx context.Context, t wire.SaveTemplateInputBody) (wire.Template, error) {
	return ask[wire.Template](ctx, c, call{doing: "save the template", method: http.MethodPost, path: []string{"templates"}, query: c.inOrg(), body: t})
}

// RemoveTemplate takes a template out of the catalogue.
func (c *Client) RemoveTemplate(ctx context.Context, ref string) error {
	return c.remove(ctx, "remove the template", c.inOrg(), "templates", ref)
}

// ofVersion is the query for a version of a template; "" is the catalogue's own.
func (c *Client) ofVersion(version string) url.Values {
	query := url.Values{}
	if c.options.Org != "" {
		query.Set("org", c.options.Org)
	}
	if version != "" {
		query.Set("version", version)
	}
	return query
}

// PinTemplate says which commit a tag of a template means for the organisation.
func (c *Client) PinTemplate(ctx context.Context, ref, tag, commit, reason string) error {
	_, err := ask[struct{}](ctx, c, call{doing: "pin the template", method: http.MethodPost, path: []string{"templates", ref, "pin"}, query: c.inOrg(),
		body: wire.PinInputBody{Version: tag, Commit: commit, Reason: reason}})
	return err
}

// InspectTemplate has a version of a template looked at again, and returns what
// is known of it until then.
func (c *Client) InspectTemplate(ctx context.Context, ref, version string) (wire.Inspection, error) {
	return ask[wire.Inspection](ctx, c, call{doing: "have the template inspected", method: http.MethodPost, path: []string{"templates", ref, "inspect"}, query: c.ofVersion(version)})
}

// TemplateVariables returns what is known of a version of a template.
func (c *Client) TemplateVariables(ctx context.Context, ref, version string) (wire.Inspection, error) {
	return ask[wire.Inspection](ctx, c, call{doing: "read what the template declares", method: http.MethodGet, path: []string{"templates", ref, "variables"}, query: c.ofVersion(version)})
}

// Webhooks lists the organisation's webhooks.
func (c *Client) Webhooks(ctx context.Context) ([]wire.Webhook, error) {
	return whole[wire.Webhook](ctx, c, "list the webhooks", c.inOrg(), "webhooks")
}

// FindWebhook returns the webhook of that name or id.
func (c *Client) FindWebhook(ctx context.Context, ref string) (wire.Webhook, error) {
	list, err := c.Webhooks(ctx)
	var names []string
	for _, w := range list {
		names = append(names, w.Name)
	}
	hint := "there are: " + strings.Join(names, ", ")
	if len(names) == 0 {
		hint = "there is none yet: trellis webhooks add"
	}
	none := &problem.RefusedError{Code: "PT404", Reason: "webhook_not_found", Message: fmt.Sprintf("there is no webhook %q, or you have no access to it", ref), Hint: hint}
	return the(list, err, func(w wire.Webhook) bool { return w.Name == ref || strings.EqualFold(w.ID.String(), ref) }, none, none)
}

// AddWebhook makes a webhook.
func (c *Client) AddWebhook(ctx context.Context, n wire.NewWebhookInputBody) (wire.MadeWebhook, error) {
	return ask[wire.MadeWebhook](ctx, c, call{doing: "make the webhook", method: http.MethodPost, path: []string{"webhooks"}, query: c.inOrg(), body: n})
}

// RemoveWebhook removes a webhook, and what was sent to it.
func (c *Client) RemoveWebhook(ctx context.Context, id uuid.UUID) error {
	return c.remove(ctx, "remove the webhook", nil, "webhooks", id.String())
}

// TestWebhook sends a message that only tries, and returns its delivery.
func (c *Client) TestWebhook(ctx context.Context, id uuid.UUID) (uuid.UUID, error) {
	sent, err := post[wire.SentAnswer](ctx, c, "try the webhook", nil, "webhooks", id.String(), "test")
	return sent.ID, err
}

// Deliveries lists what was sent to a webhook, the latest first.
func (c *Client) Deliveries(ctx context.Context, id uuid.UUID, limit int) ([]wire.Delivery, error) {
	return list[wire.Delivery](ctx, c, call{doing: "list what was sent", method: http.MethodGet, path: []string{"webhooks", id.String(), "deliveries"}}, limit)
}

// Workspaces lists the organisation's workspaces by cluster and name, at most limit.
func (c *Client) Workspaces(ctx context.Context, limit int) ([]wire.Standing, error) {
	return list[wire.Standing](ctx, c, call{doing: "list the workspaces", method: http.MethodGet, path: []string{"workspaces"}, query: c.inOrg()}, limit)
}

// FindWorkspace returns the workspace of that name or id.
func (c *Client) FindWorkspace(ctx context.Context, ref string) (wire.WorkspaceDetail, error) {
	return ask[wire.WorkspaceDetail](ctx, c, call{doing: "look for the workspace", method: http.MethodGet, path: []string{"workspaces", ref}, query: c.inOrg()})
}

// Resources lists what exists in a workspace, by address.
func (c *Client) Resources(ctx context.Context, workspace uuid.UUID) ([]wire.Resource, error) {
	return list[wire.Resource](ctx, c, call{doing: "list the resources", method: http.MethodGet, path: []string{"workspaces", workspace.String(), "resources"}, query: c.inOrg()}, MostItems)
}

// MachineFilter says which machines a list has; what is empty does not matter.
type MachineFilter struct {
	Words, Workspace, Status, Pool, Health string
	Labels                                 []string // name=value, without commas
}

// Machines lists the organisation's machines by name.
func (c *Client) Machines(ctx context.Context, f MachineFilter) ([]wire.Machine, error) {
	return list[wire.Machine](ctx, c, call{doing: "list the machines", method: http.MethodGet, path: []string{"machines"}, query: c.inOrgWith(f.parameters())}, MostItems)
}

func (f MachineFilter) parameters() map[string]string {
	return map[string]string{"q": f.Words, "workspace": f.Workspace, "status": f.Status, "pool": f.Pool, "health": f.Health, "label": strings.Join(f.Labels, ",")}
}

// FindMachine returns the machine of that name or id; workspace, if it is not empty, is the
// one to look in.
func (c *Client) FindMachine(ctx context.Context, ref, workspace string) (wire.Machine, error) {
	return ask[wire.Machine](ctx, c, call{doing: "look for the machine", method: http.MethodGet, path: []string{"machines", ref}, query: c.inOrgWith(map[string]string{"workspace": workspace})})
}

// MachineHistory lists what a machine has been, the newest first.
func (c *Client) MachineHistory(ctx context.Context, id uuid.UUID) ([]wire.MachineEvent, error) {
	return whole[wire.MachineEvent](ctx, c, "read the machine's history", nil, "machines", id.String(), "history")
}

// PlanMachines draws up machines; it returns their ids in order.
func (c *Client) PlanMachines(ctx context.Context, asked wire.PlanMachinesBody) ([]uuid.UUID, error) {
	answer, err := ask[wire.PlannedAnswer](ctx, c, call{doing: "plan the machines", method: http.MethodPost, path: []string{"machines"}, query: c.inOrg(), body: asked})
	return answer.IDs, err
}

// DeletePlannedMachine deletes a machine that is planned.
func (c *Client) DeletePlannedMachine(ctx context.Context, id uuid.UUID) error {
	return c.remove(ctx, "delete the planned machine", nil, "machines", id.String())
}

// ProvisionMachines queues the deploy of machines that are planned.
func (c *Client) ProvisionMachines(ctx context.Context, asked wire.ProvisionMachinesBody) (wire.QueuedAnswer, error) {
	return ask[wire.QueuedAnswer](ctx, c, call{doing: "provision the machines", method: http.MethodPost, path: []string{"machines", "provision"}, query: c.inOrg(), body: asked})
}

// Pools lists the organisation's pools by cluster and name; cluster, if it is not empty, is the
// one to look in.
func (c *Client) Pools(ctx context.Context, cluster string) ([]wire.Pool, error) {
	return whole[wire.Pool](ctx, c, "list the pools", c.inOrgWith(map[string]string{"cluster": cluster}), "pools")
}

// FindPool returns the pool of that name or id, like FindMachine.
func (c *Client) FindPool(ctx context.Context, ref, cluster string) (wire.PoolDetail, error) {
	return ask[wire.PoolDetail](ctx, c, call{doing: "look for the pool", method: http.MethodGet, path: []string{"pools", ref}, query: c.inOrgWith(map[string]string{"cluster": cluster})})
}

// SetPoolImage says what an image that templates name is called in a pool.
func (c *Client) SetPoolImage(ctx context.Context, pool, cluster string, asked wire.PoolImageBody) error {
	_, err := ask[struct{}](ctx, c, call{doing: "set the image's name", method: http.MethodPut, path: []string{"pools", pool, "images"}, query: c.inOrgWith(map[string]string{"cluster": cluster}), body: asked})
	return err
}

// DeletePoolImage forgets what an image is called in a pool.
func (c *Client) DeletePoolImage(ctx context.Context, pool, cluster, image string) error {
	return c.remove(ctx, "delete the image's name", c.inOrgWith(map[string]string{"cluster": cluster, "image": image}), "pools", pool, "images")
}

// PreviewPlacement says where the machines of a deploy would go.
func (c *Client) PreviewPlacement(ctx context.Context, cluster uuid.UUID, snapshot json.RawMessage) (wire.Placement, error) {
	return ask[wire.Placement](ctx, c, call{doing: "preview the placement", method: http.MethodPost, path: []string{"placement"}, query: c.inOrg(), body: wire.PlacementBody{Cluster: cluster.String(), Snapshot: snapshot}})
}

// FreePlace gives back the place of a workspace's machine that is gone or was never made.
func (c *Client) FreePlace(ctx context.Context, workspace, machine string) error {
	return c.remove(ctx, "free the place", c.inOrgWith(map[string]string{"workspace": workspace}), "places", machine)
}

// PoolQuotas lists the organisation's quotas with what is used of them.
func (c *Client) PoolQuotas(ctx context.Context) ([]wire.PoolQuota, error) {
	return whole[wire.PoolQuota](ctx, c, "list the quotas", c.inOrg(), "pool-quotas")
}

// SetPoolQuota sets a quota, and returns its id.
func (c *Client) SetPoolQuota(ctx context.Context, asked wire.PoolQuotaBody) (uuid.UUID, error) {
	answer, err := ask[wire.PoolQuotaAnswer](ctx, c, call{doing: "set the quota", method: http.MethodPut, path: []string{"pool-quotas"}, query: c.inOrg(), body: asked})
	return answer.ID, err
}

// DeletePoolQuota deletes a quota.
func (c *Client) DeletePoolQuota(ctx context.Context, id uuid.UUID) error {
	return c.remove(ctx, "delete the quota", c.inOrg(), "pool-quotas", id.String())
}

// inOrgWith is inOrg with further parameters, as far as they are not empty.
func (c *Client) inOrgWith(parameters map[string]string) url.Values {
	query := url.Values{}
	maps.Copy(query, c.inOrg())
	for name, value := range parameters {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

// LastApplied returns the cluster and the snapshot of the newest apply in a workspace.
func (c *Client) LastApplied(ctx context.Context, workspace uuid.UUID) (cluster uuid.UUID, snapshot json.RawMessage, err error) {
	found, err := get[wire.AppliedAnswerBody](ctx, c, "look for what was deployed", "workspaces", workspace.String(), "applied")
	return found.ClusterID, found.Snapshot, err
}

// LastOutputs returns the newest provision of a workspace that has outputs.
func (c *Client) LastOutputs(ctx context.Context, workspace uuid.UUID) (wire.Provision, error) {
	return get[wire.Provision](ctx, c, "look for the outputs", "workspaces", workspace.String(), "outputs")
}

// Lock keeps a workspace from running anything until it is unlocked.
func (c *Client) Lock(ctx context.Context, workspace uuid.UUID, reason string) error {
	return c.doTo(ctx, "lock the workspace", workspace, "lock", wire.LockInputBody{Reason: reason})
}

// Unlock ends a person's lock of a workspace.
func (c *Client) Unlock(ctx context.Context, workspace uuid.UUID, reason string) error {
	return c.doTo(ctx, "unlock the workspace", workspace, "unlock", wire.WorkspaceReasonInputBody{Reason: reason})
}

// Release ends what holds a workspace without a run.
func (c *Client) Release(ctx context.Context, workspace uuid.UUID, reason string) error {
	return c.doTo(ctx, "release the workspace", workspace, "release", wire.WorkspaceReasonInputBody{Reason: reason})
}

func (c *Client) doTo(ctx context.Context, doing string, workspace uuid.UUID, verb string, body any) error {
	_, err := post[struct{}](ctx, c, doing, body, "workspaces", workspace.String(), verb)
	return err
}

// Drift tells what is known of one workspace.
func (c *Client) Drift(ctx context.Context, workspace uuid.UUID) (wire.Drift, error) {
	return get[wire.Drift](ctx, c, "read what has drifted", "workspaces", workspace.String(), "drift")
}

// WatchDrift sets how often drift is looked for; 0: never.
func (c *Client) WatchDrift(ctx context.Context, workspace uuid.UUID, every time.Duration) error {
	_, err := ask[struct{}](ctx, c, call{doing: "set the schedule", method: http.MethodPut, path: []string{"workspaces", workspace.String(), "drift"}, body: wire.WatchDriftInputBody{Every: int64(every.Seconds())}})
	return err
}

// StateVersions lists the managed states that are kept of a workspace, the newest first.
func (c *Client) StateVersions(ctx context.Context, workspace uuid.UUID) ([]wire.StateVersion, error) {
	return whole[wire.StateVersion](ctx, c, "list the states", nil, "workspaces", workspace.String(), "states")
}

// Drifts lists the workspaces that are checked for drift, or were.
func (c *Client) Drifts(ctx context.Context) ([]wire.Drift, error) {
	return whole[wire.Drift](ctx, c, "list what has drifted", c.inOrg(), "drift")
}

// SetPoolTemplate says with which template servers of a pool are provisioned; "": with none.
func (c *Client) SetPoolTemplate(ctx context.Context, pool, cluster, template string) error {
	query := c.inOrgWith(map[string]string{"cluster": cluster})
	if template == "" {
		return c.remove(ctx, "set the pool's template", query, "pools", pool, "template")
	}
	_, err := ask[struct{}](ctx, c, call{doing: "set the pool's template", method: http.MethodPut, path: []string{"pools", pool, "template"}, query: query, body: wire.PoolTemplateBody{Template: template}})
	return err
}

// ProvisionServer asks for a bare-metal server with an image.
func (c *Client) ProvisionServer(ctx context.Context, asked wire.ServerProvisionBody) (wire.ServerOperation, error) {
	return ask[wire.ServerOperation](ctx, c, call{doing: "provision the server", method: http.MethodPost, path: []string{"provision"}, query: c.inOrg(), body: asked})
}

// ServerStatus says how an operation, or a server's newest one, stands.
func (c *Client) ServerStatus(ctx context.Context, operation string) (wire.ServerStatus, error) {
	return ask[wire.ServerStatus](ctx, c, call{doing: "ask how the provisioning stands", method: http.MethodGet, path: []string{"provision", operation}, query: c.inOrg()})
}
