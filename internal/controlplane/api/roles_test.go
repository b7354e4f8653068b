package api_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// rule says who may do what an operation does: from which role on in the
// organisation, what they are answered, and what everybody else is. In path and
// body, words in angle brackets stand for ids.
type rule struct {
	path, body, least, may, others string
	streams                        bool // whoever may is answered for as long as they listen
}

const (
	nobody  = ""        // who is not signed in may, too
	anybody = "anybody" // it is about oneself
	digest  = "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
)

// rules are of every operation in the document, by its id.
var rules = map[string]rule{
	"whoami":           {path: "/me", least: anybody, may: "200"},
	"list-orgs":        {path: "/orgs", least: anybody, may: "200"},
	"list-api-tokens":  {path: "/api-tokens", least: anybody, may: "200"},
	"create-api-token": {path: "/api-tokens", body: `{"name": "x"}`, least: anybody, may: "201"},
	"revoke-api-token": {path: "/api-tokens/<none>", least: anybody, may: "404 token_not_found"},
	"get-cli-token":    {path: "/cli/token", body: `{"code": "none", "verifier": "` + digest + `"}`, least: nobody, may: "403 code_invalid"},
	"revoke-cli-token": {path: "/cli/token", least: anybody, may: "401 not_signed_in"}, // by no token: see TestTokenEndsAtOnce

	"list-provisions":         {path: "/provisions?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"create-provision":        {path: "/provisions", body: `{"cluster": "<cluster>", "config_snapshot": ` + snapshot + `}`, least: "operator", may: "202", others: "404 cluster_not_found"},
	"get-provision":           {path: "/provisions/<queued>", least: "viewer", may: "200", others: "404 provision_not_found"},
	"get-provision-plan":      {path: "/provisions/<queued>/plan", least: "viewer", may: "200", others: "404 provision_not_found"},
	"get-provision-stages":    {path: "/provisions/<queued>/stages", least: "viewer", may: "200", others: "404 provision_not_found"},
	"get-provision-resources": {path: "/provisions/<queued>/resources", least: "viewer", may: "200", others: "404 provision_not_found"},
	"get-provision-result":    {path: "/provisions/<done>/result", least: "admin", may: "200", others: "403 not_yours 404 provision_not_found"},
	"get-logs":                {path: "/provisions/<queued>/logs", least: "viewer", may: "200", others: "404 provision_not_found"},
	"get-events":              {path: "/provisions/<queued>/events", least: "viewer", may: "200", others: "404 provision_not_found"},
	"follow-logs":             {path: "/provisions/<queued>/logs/stream", least: "viewer", streams: true, others: "404 provision_not_found"},
	"follow-events":           {path: "/provisions/<queued>/events/stream", least: "viewer", streams: true, others: "404 provision_not_found"},
	"approve-provision":       {path: "/provisions/<waits>/approve", body: `{"plan_digest": "` + digest + `"}`, least: "operator", may: "200", others: "404 provision_not_found"},
	"reject-provision":        {path: "/provisions/<unwanted>/reject", least: "operator", may: "200", others: "404 provision_not_found"},
	"cancel-provision":        {path: "/provisions/<stopped>/cancel", least: "operator", may: "200", others: "404 provision_not_found"},
	"input-provision":         {path: "/provisions/<ended>/input", body: `{"done": true}`, least: "operator", may: "409 not_awaiting_input", others: "404 provision_not_found"},
	"assign-provision":        {path: "/provisions/<ended>/assign", least: "operator", may: "409 not_awaiting_input", others: "404 provision_not_found"},
	"comment-provision":       {path: "/provisions/<waits>/comment", body: `{"text": "hello"}`, least: "operator", may: "204", others: "404 provision_not_found"},
	"retry-provision":         {path: "/provisions/<ended>/retry", least: "operator", may: "202", others: "404 provision_not_found"},
	"create-upload":           {path: "/uploads?cluster=<cluster>", body: "sealed", least: "admin", may: "201", others: "404 cluster_not_found"},

	"list-workspaces":           {path: "/workspaces?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"get-workspace":             {path: "/workspaces/<workspace>", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"list-workspace-resources":  {path: "/workspaces/<workspace>/resources", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"list-workspace-provisions": {path: "/workspaces/<workspace>/provisions", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"list-workspace-states":     {path: "/workspaces/<workspace>/states", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"get-workspace-outputs":     {path: "/workspaces/<used>/outputs", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"get-workspace-applied":     {path: "/workspaces/<workspace>/applied", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"get-workspace-drift":       {path: "/workspaces/<workspace>/drift", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"list-machines":             {path: "/machines?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"plan-machines":             {path: "/machines", body: `{"cluster": "<cluster>", "config_snapshot": ` + snapshot + `, "machines": [{"name": "planned"}]}`, least: "operator", may: "201", others: "404 cluster_not_found"},
	"delete-planned-machine":    {path: "/machines/<machine>", least: "operator", may: "409 machine_exists", others: "404 machine_not_found"},
	"provision-machines":        {path: "/machines/provision?org=<org>", body: `{"workspace": "<workspace>", "machines": ["nobody"]}`, least: "viewer", may: "404 machine_not_found", others: "404 org_not_found"},
	"get-machine":               {path: "/machines/<machine>", least: "viewer", may: "200", others: "404 machine_not_found"},
	"list-machine-history":      {path: "/machines/<machine>/history", least: "viewer", may: "200", others: "404 machine_not_found"},
	"list-drift":                {path: "/drift?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"watch-workspace-drift":     {path: "/workspaces/<workspace>/drift", body: `{"every_seconds": 3600}`, least: "operator", may: "200", others: "404 workspace_not_found"},
	"lock-workspace":            {path: "/workspaces/<locked>/lock", body: `{"reason": "another"}`, least: "operator", may: "409 workspace_locked", others: "404 workspace_not_found"},
	"unlock-workspace":          {path: "/workspaces/<workspace>/unlock", least: "operator", may: "204", others: "404 workspace_not_found"},
	"release-workspace":         {path: "/workspaces/<workspace>/release", least: "admin", may: "409 workspace_not_held", others: "404 workspace_not_found"},
	"rebind-workspace":          {path: "/workspaces/<locked>/rebind", body: `{"repo": "https://git.example/a/b", "reason": "moved"}`, least: "admin", may: "204", others: "404 workspace_not_found"},

	"list-clusters":        {path: "/clusters?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"create-cluster":       {path: "/clusters?org=<org>", body: `{"name": "new"}`, least: "admin", may: "201", others: "404 org_not_found"},
	"get-cluster":          {path: "/clusters/<cluster>", least: "viewer", may: "200", others: "404 cluster_not_found"},
	"pause-cluster":        {path: "/clusters/<cluster>/pause", least: "admin", may: "204", others: "404 cluster_not_found"},
	"resume-cluster":       {path: "/clusters/<cluster>/resume", least: "admin", may: "204", others: "404 cluster_not_found"},
	"get-cluster-policy":   {path: "/clusters/<cluster>/policy", least: "viewer", may: "200", others: "404 cluster_not_found"},
	"set-cluster-policy":   {path: "/clusters/<cluster>/policy", body: `{"approval": "always"}`, least: "admin", may: "200", others: "404 cluster_not_found"},
	"get-join":             {path: "/joins/BCDF-GHJK", least: "admin", may: "404 join_not_found", others: "403 not_an_admin 404 join_not_found"},
	"approve-join":         {path: "/joins/BCDF-GHJK/approve", body: `{"cluster": "<cluster>", "fingerprint": "` + digest + `"}`, least: "admin", may: "404 join_not_found", others: "404 cluster_not_found"},
	"refuse-join":          {path: "/joins/BCDF-GHJK/refuse", least: "admin", may: "404 join_not_found", others: "403 not_an_admin 404 join_not_found"},
	"create-join-token":    {path: "/clusters/<cluster>/join-tokens", least: "admin", may: "201", others: "404 cluster_not_found"},
	"list-trusted-issuers": {path: "/clusters/<cluster>/trusted-issuers", least: "admin", may: "200", others: "404 cluster_not_found"},
	"trust-issuer": {path: "/clusters/<cluster>/trusted-issuers", body: `{"issuer": "https://kubernetes.example", "subjects": ["system:serviceaccount:a:b"], "keys": {"keys": [{"kty": "EC"}]}}`,
		least: "admin", may: "200", others: "404 cluster_not_found"},
	"untrust-issuer":       {path: "/clusters/<cluster>/trusted-issuers/<none>", least: "admin", may: "404 trust_not_found", others: "404 cluster_not_found"},
	"list-cluster-tokens":  {path: "/clusters/<cluster>/tokens", least: "admin", may: "200", others: "404 cluster_not_found"},
	"rotate-cluster-token": {path: "/clusters/<cluster>/tokens", least: "admin", may: "201", others: "404 cluster_not_found"},
	"revoke-cluster-token": {path: "/clusters/<cluster>/tokens/<token>", least: "admin", may: "204", others: "404 cluster_not_found"},

	"provision-server":     {path: "/provision?org=<org>", body: `{"image_id": "none"}`, least: "viewer", may: "404 no_server", others: "404 org_not_found"},
	"get-server-provision": {path: "/provision/<none>?org=<org>", least: "viewer", may: "404 server_not_found", others: "404 org_not_found"},
	"set-pool-template":    {path: "/pools/<pool>/template?org=<org>", body: `{"template": "<template>"}`, least: "admin", may: "204", others: "404 org_not_found 404 pool_not_found"},
	"delete-pool-template": {path: "/pools/<pool>/template?org=<org>", least: "admin", may: "204", others: "404 org_not_found 404 pool_not_found"},
	"list-pools":           {path: "/pools?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"get-pool":             {path: "/pools/<pool>", least: "viewer", may: "200", others: "404 pool_not_found"},
	"set-pool-image":       {path: "/pools/<pool>/images", body: `{"image": "linux", "name": "debian-13"}`, least: "admin", may: "204", others: "404 pool_not_found"},
	"delete-pool-image":    {path: "/pools/<pool>/images?image=linux", least: "admin", may: "204", others: "404 pool_not_found"},
	"list-pool-quotas":     {path: "/pool-quotas?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"set-pool-quota":       {path: "/pool-quotas?org=<org>", body: `{"pool": "lab", "machines": 5}`, least: "admin", may: "200", others: "404 org_not_found"},
	"preview-placement":    {path: "/placement?org=<org>", body: `{"cluster": "prod", "config_snapshot": {"template_source": {"repo": "https://git.example/placed", "version": "v1"}, "workspace": "new/one"}}`, least: "operator", may: "200", others: "404 org_not_found cluster_not_found"},
	"free-place":           {path: "/places/leftover?org=<org>&workspace=placed", least: "admin", may: "204", others: "404 org_not_found workspace_not_found"},
	"delete-pool-quota":    {path: "/pool-quotas/<quota>?org=<org>", least: "admin", may: "204", others: "404 org_not_found"},

	"list-templates":         {path: "/templates?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"save-template":          {path: "/templates?org=<org>", body: `{"name": "n", "repo": "https://git.example/a/b", "version": "v1"}`, least: "admin", may: "201", others: "404 org_not_found"},
	"get-template":           {path: "/templates/<template>", least: "viewer", may: "200", others: "404 template_not_found"},
	"get-template-variables": {path: "/templates/<template>/variables", least: "viewer", may: "200", others: "404 template_not_found"},
	"inspect-template":       {path: "/templates/<template>/inspect", least: "operator", may: "202", others: "404 org_not_found template_not_found"},
	"pin-template":           {path: "/templates/<template>/pin", body: `{"commit": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "reason": "x"}`, least: "admin", may: "204", others: "404 org_not_found template_not_found"},
	"remove-template":        {path: "/templates/<gone>", least: "admin", may: "204", others: "404 org_not_found template_not_found"},

	"list-webhooks":   {path: "/webhooks?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"create-webhook":  {path: "/webhooks?org=<org>", body: `{"name": "new", "url": "https://hooks.example/x", "events": ["drift"]}`, least: "admin", may: "201", others: "404 org_not_found"},
	"get-webhook":     {path: "/webhooks/<webhook>", least: "viewer", may: "200", others: "404 webhook_not_found"},
	"change-webhook":  {path: "/webhooks/<webhook>", body: `{"enabled": true}`, least: "admin", may: "200", others: "404 webhook_not_found"},
	"rotate-webhook":  {path: "/webhooks/<webhook>/rotate", least: "admin", may: "200", others: "404 webhook_not_found"},
	"remove-webhook":  {path: "/webhooks/<unused>", least: "admin", may: "204", others: "404 webhook_not_found"},
	"list-deliveries": {path: "/webhooks/<webhook>/deliveries", least: "admin", may: "200", others: "404 webhook_not_found"},
	"test-webhook":    {path: "/webhooks/<webhook>/test", least: "admin", may: "202", others: "404 webhook_not_found"},
	"redeliver":       {path: "/webhooks/<webhook>/deliveries/<delivery>/redeliver", least: "admin", may: "202", others: "404 webhook_not_found"},

	"list-members":         {path: "/members?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"set-member":           {path: "/members/<none>?org=<org>", body: `{"role": "viewer"}`, least: "admin", may: "404 member_not_found", others: "404 org_not_found"},
	"remove-member":        {path: "/members/<member>?org=<org>", least: "admin", may: "204", others: "404 org_not_found"},
	"list-audit":           {path: "/audit?org=<org>", least: "admin", may: "200", others: "403 not_admin 404 org_not_found"},
	"list-invitations":     {path: "/invitations?org=<org>", least: "admin", may: "200", others: "403 not_admin 404 org_not_found"},
	"invite-member":        {path: "/invitations?org=<org>", body: `{"email": "ada@example.com", "role": "viewer"}`, least: "admin", may: "201", others: "404 org_not_found"},
	"list-own-invitations": {path: "/me/invitations", least: anybody, may: "200"},
	"accept-invitation":    {path: "/me/invitations/<none>/accept", body: `{"role": "viewer"}`, least: anybody, may: "404 invitation_not_found"},
	"decline-invitation":   {path: "/me/invitations/<none>/decline", least: anybody, may: "404 invitation_not_found"},
	"revoke-invitation":    {path: "/invitations/<invitation>?org=<org>", least: "admin", may: "204", others: "404 org_not_found"},
}

// Each role does by the API exactly what it may, operation by operation: of what
// others try, nothing comes; and a stranger is told nothing, not even whether there
// is something.
func TestEachRoleMayWhatItMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.scene(t)
	methods := map[string]string{}
	for _, of := range newChecker(w.handler).paths {
		for method, op := range of {
			if op.Tags[0] == "Agents" {
				continue // another package's, and no person's
			}
			methods[op.OperationID] = strings.ToUpper(method)
			if _, known := rules[op.OperationID]; !known {
				t.Errorf("nothing here says who may do %s: add it to rules", op.OperationID)
			}
		}
	}
	const did = `SELECT (SELECT count(*) FROM public.audit_events) || ' ' || (SELECT count(*) FROM public.provisions) || ' ' || (SELECT count(*) FROM tendril.blobs)`
	before := w.Text(t, did)
	for name, r := range rules {
		if methods[name] == "" {
			t.Errorf("there is no operation %s: take it out of rules", name)
			continue
		}
		call := func(who string, ids map[string]string) (answer, string) {
			t.Helper()
			got := w.as(t, who, methods[name], r.fill(r.path, ids), r.fill(r.body, ids))
			return got, strings.TrimSpace(fmt.Sprint(got.status, " ", got.text("reason")))
		}
		for _, who := range everybody {
			if r.mayBe(who) {
				break
			}
			got, said := call(who, ids)
			switch {
			case who == nobody && said != "401 not_signed_in" || who != nobody && !r.refuses(said):
				t.Errorf("%q does %s: %s %s, want %s", who, name, said, got.body, cmp.Or(r.others, "401"))
			case who == "stranger":
				made := map[string]string{}
				for key := range ids {
					made[key] = uuid.NewString()
				}
				none, _ := call(who, made)
				if there, not := r.plain(got, ids), r.plain(none, made); there != not {
					t.Errorf("a stranger does %s: %s for what is there, and %s for what is not, want one answer", name, there, not)
				}
			}
		}
	}
	if after := w.Text(t, did); after != before {
		t.Errorf("audit, provisions and uploads: %s, before that %s, want nothing by who may not", after, before)
	}
	for name, r := range rules {
		if r.streams {
			continue // they would listen
		}
		for _, who := range everybody {
			if !r.mayBe(who) {
				continue
			}
			got := w.as(t, who, methods[name], r.fill(r.path, ids), r.fill(r.body, ids))
			if said := strings.TrimSpace(fmt.Sprint(got.status, " ", got.text("reason"))); said != r.may {
				t.Errorf("%q does %s: %s %s, want %s", who, name, said, got.body, r.may)
			}
			if who == "stranger" && strings.Contains(string(got.body), w.Org.String()) {
				t.Errorf("a stranger does %s: %s, want nothing of others", name, got.body)
			}
		}
	}
}

// scene is something of all that operations are called with, by the names that
// rules have for it.
func (w *world) scene(t *testing.T) map[string]string {
	t.Helper()
	ids := map[string]string{"org": w.Org.String(), "cluster": w.Cluster.String(), "none": uuid.NewString()}
	w.Deploy(t, "used")
	q, done := w.agent(t)
	sealed := []byte("sealed")
	result := digestOf(sealed)
	if err := q.PutBlob(t.Context(), done.ClaimID, queue.Blob{Kind: queue.BlobResult, Digest: result, Meta: json.RawMessage(`{}`)}, sealed); err != nil {
		t.Fatal(err)
	}
	if err := q.Report(t.Context(), done.ClaimID, provision.Report{Status: provision.Success, Detail: provision.Detail{ResultDigest: result, Outputs: map[string]provision.Output{"a": {Value: json.RawMessage(`1`)}},
		Machines: []provision.Machine{{Name: "ada", Status: provision.MachineRunning}}}}); err != nil {
		t.Fatal(err)
	}
	ids["done"] = done.ProvisionID.String()
	ids["machine"] = w.Text(t, "SELECT id::text FROM public.machines")
	for _, name := range []string{"waits", "unwanted"} {
		ids[name] = w.Deploy(t, name).String()
		a, err := q.Claim(t.Context(), uuid.New())
		if err != nil || a == nil {
			t.Fatalf("Claim() = %v, %v, want what was deployed", a, err)
		}
		w.Exec(t, "SELECT tendril.await_approval($1, $2)", a.ClaimID, digest)
	}
	ids["stopped"] = w.Deploy(t, "stopped").String()
	ids["queued"] = w.deploy(t).text("id")
	ids["ended"] = w.deploy(t).text("id")
	w.as(t, "operator", "POST", "/provisions/"+ids["ended"]+"/cancel", "").want(t, "cancel", 200, "")
	w.Deploy(t, "locked")
	w.Exec(t, "UPDATE public.workspaces SET locked_at = now(), lock_reason = 'x' WHERE name = 'locked'")
	for _, name := range []string{"template", "gone"} {
		w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, $2, 'https://git.example/a/b', 'v1')", w.Org, name)
		ids[name] = w.Text(t, "SELECT id::text FROM public.templates WHERE name = $1", name)
	}
	for name, called := range map[string]string{"workspace": "a", "used": "used", "locked": "locked"} {
		ids[name] = w.Text(t, "SELECT id::text FROM public.workspaces WHERE name = $1", called)
	}
	ids["member"] = uuid.NewString()
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'viewer')", w.Org, ids["member"])
	w.Exec(t, "SELECT public.invite_member($1, 'grace@example.com', 'viewer')", w.Org)
	ids["invitation"] = w.Text(t, "SELECT id::text FROM public.invitations")
	ids["token"] = w.Text(t, "SELECT id::text FROM tendril.cluster_tokens WHERE cluster_id = $1", w.Cluster)
	queuetest.NewLab(t, w.World, "lab")
	ids["pool"] = w.Text(t, "SELECT id::text FROM public.pools WHERE name = 'lab'")
	w.Exec(t, `INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, variables, file) VALUES ($1, 'https://git.example/placed', 'v1', '', 'https://git.example/placed', 'done', '[]', $2)`, w.Org, placedFile)
	w.Deploy(t, "placed")
	w.Exec(t, "INSERT INTO public.reservations (org_id, pool_id, workspace_id, name, node, cores, memory_mib, why) SELECT w.org_id, p.id, w.id, 'leftover', 'pve1', 1, 1024, '' FROM public.workspaces w, public.pools p WHERE w.name = 'placed' AND p.name = 'lab'")
	ids["quota"] = w.Text(t, `SELECT public.set_pool_quota($1, '{"machines": 9}')::text`, w.Org)
	w.withNotifier(t)
	for _, name := range []string{"webhook", "unused"} {
		ids[name] = w.as(t, "admin", "POST", "/webhooks", `{"name": "`+name+`", "url": "https://hooks.example/x", "events": ["drift"]}`).want(t, "POST /webhooks", 201, "").text("id")
	}
	ids["delivery"] = w.as(t, "admin", "POST", "/webhooks/"+ids["webhook"]+"/test", "").want(t, "a test", 202, "").text("id")
	return ids
}

// everybody is who there is, each of whom may what those before may.
var everybody = []string{nobody, "stranger", "viewer", "operator", "admin"}

func (r rule) mayBe(who string) bool {
	least := r.least
	if least == anybody {
		least = "stranger"
	}
	return slices.Index(everybody, who) >= slices.Index(everybody, least)
}

// refuses reports whether that is what those who may not are answered: a status,
// and one of the words that follow it.
func (r rule) refuses(answer string) bool {
	status, reason, _ := strings.Cut(answer, " ")
	words := strings.Fields(r.others)
	return slices.Contains(words, status) && (reason == "" || slices.Contains(words, reason))
}

func (rule) fill(text string, ids map[string]string) string {
	for key, id := range ids {
		text = strings.ReplaceAll(text, "<"+key+">", id)
	}
	return text
}

// plain is an answer without the ids in it.
func (rule) plain(a answer, ids map[string]string) string {
	text := fmt.Sprint(a.status, " ", string(a.body))
	for _, id := range ids {
		text = strings.ReplaceAll(text, id, "ID")
	}
	return text
}
