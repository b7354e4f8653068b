package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// rule says who may do what an operation does: from which role on in the
// organisation, what they are answered, and what everybody else is. In path and
// body, words in angle brackets stand for ids.
type rule struct {
	path, body, least, may, others string
	streams                        bool // whoever may is answered for as long as they listen
}

const (
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

	"list-provisions":         {path: "/provisions?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"create-provision":        {path: "/provisions", body: `{"cluster": "<cluster>", "config_snapshot": ` + snapshot + `}`, least: "operator", may: "202", others: "404 cluster_not_found"},
	"get-provision":           {path: "/provisions/<queued>", least: "viewer", may: "200", others: "404 provision_not_found"},
	"get-provision-plan":      {path: "/provisions/<queued>/plan", least: "viewer", may: "200", others: "404 provision_not_found"},
	"get-provision-stages":    {path: "/provisions/<queued>/stages", least: "viewer", may: "200", others: "404 provision_not_found"},
	"get-provision-resources": {path: "/provisions/<queued>/resources", least: "viewer", may: "200", others: "404 provision_not_found"},
	"get-provision-result":    {path: "/provisions/<ended>/result", least: "operator", may: "404 result_not_found", others: "404 provision_not_found"},
	"get-logs":                {path: "/provisions/<queued>/logs", least: "viewer", may: "200", others: "404 provision_not_found"},
	"get-events":              {path: "/provisions/<queued>/events", least: "viewer", may: "200", others: "404 provision_not_found"},
	"follow-logs":             {path: "/provisions/<queued>/logs/stream", least: "viewer", streams: true, others: "404 provision_not_found"},
	"follow-events":           {path: "/provisions/<queued>/events/stream", least: "viewer", streams: true, others: "404 provision_not_found"},
	"approve-provision":       {path: "/provisions/<queued>/approve", body: `{"plan_digest": "` + digest + `"}`, least: "operator", may: "409 not_awaiting_approval", others: "404 provision_not_found"},
	"reject-provision":        {path: "/provisions/<queued>/reject", least: "operator", may: "409 not_awaiting_approval", others: "404 provision_not_found"},
	"cancel-provision":        {path: "/provisions/<ended>/cancel", least: "operator", may: "200", others: "404 provision_not_found"},
	"retry-provision":         {path: "/provisions/<ended>/retry", least: "operator", may: "202", others: "404 provision_not_found"},
	"create-upload":           {path: "/uploads?cluster=<cluster>", body: "sealed", least: "admin", may: "201", others: "404 cluster_not_found"},

	"list-workspaces":           {path: "/workspaces?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"get-workspace":             {path: "/workspaces/<workspace>", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"list-workspace-resources":  {path: "/workspaces/<workspace>/resources", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"list-workspace-provisions": {path: "/workspaces/<workspace>/provisions", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"list-workspace-states":     {path: "/workspaces/<workspace>/states", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"get-workspace-outputs":     {path: "/workspaces/<workspace>/outputs", least: "viewer", may: "404 no_outputs", others: "404 workspace_not_found"},
	"get-workspace-applied":     {path: "/workspaces/<workspace>/applied", least: "viewer", may: "200", others: "404 workspace_not_found"},
	"get-workspace-drift":       {path: "/workspaces/<workspace>/drift", least: "viewer", may: "200", others: "404 workspace_not_found"},
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
	"list-cluster-tokens":  {path: "/clusters/<cluster>/tokens", least: "admin", may: "200", others: "404 cluster_not_found"},
	"rotate-cluster-token": {path: "/clusters/<cluster>/tokens", least: "admin", may: "201", others: "404 cluster_not_found"},
	"revoke-cluster-token": {path: "/clusters/<cluster>/tokens/<none>", least: "admin", may: "404 token_not_found", others: "404 cluster_not_found"},

	"list-templates":         {path: "/templates?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"save-template":          {path: "/templates?org=<org>", body: `{"name": "n", "repo": "https://git.example/a/b", "version": "v1"}`, least: "admin", may: "201", others: "404 org_not_found"},
	"get-template":           {path: "/templates/<template>", least: "viewer", may: "200", others: "404 template_not_found"},
	"get-template-variables": {path: "/templates/<template>/variables", least: "viewer", may: "200", others: "404 template_not_found"},
	"inspect-template":       {path: "/templates/<template>/inspect", least: "operator", may: "202", others: "404 org_not_found template_not_found"},
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

	"list-members":      {path: "/members?org=<org>", least: "viewer", may: "200", others: "404 org_not_found"},
	"set-member":        {path: "/members/<none>?org=<org>", body: `{"role": "viewer"}`, least: "admin", may: "204", others: "404 org_not_found"},
	"remove-member":     {path: "/members/<nobody>?org=<org>", least: "admin", may: "404 member_not_found", others: "404 org_not_found"},
	"list-audit":        {path: "/audit?org=<org>", least: "admin", may: "200", others: "403 not_admin 404 org_not_found"},
	"list-invitations":  {path: "/invitations?org=<org>", least: "admin", may: "200", others: "403 not_admin 404 org_not_found"},
	"invite-member":     {path: "/invitations?org=<org>", body: `{"email": "ada@example.com", "role": "viewer"}`, least: "admin", may: "201", others: "404 org_not_found"},
	"revoke-invitation": {path: "/invitations/<none>?org=<org>", least: "admin", may: "404 invitation_not_found", others: "404 org_not_found"},
}

// Each role does by the API exactly what it may, operation by operation; a
// stranger is told nothing, and not even whether there is something.
func TestEachRoleMayWhatItMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := map[string]string{"org": w.Org.String(), "cluster": w.Cluster.String(), "none": uuid.NewString(), "nobody": uuid.NewString()}
	id := func(name, query string) {
		t.Helper()
		var found uuid.UUID
		if err := w.Conn.QueryRow(t.Context(), query).Scan(&found); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		ids[name] = found.String()
	}
	ids["queued"] = w.deploy(t).text("id")
	ids["ended"] = w.deploy(t).text("id")
	w.as(t, "operator", "POST", "/provisions/"+ids["ended"]+"/cancel", "").want(t, "cancel", 200, "")
	id("workspace", "SELECT id FROM public.workspaces")
	w.Deploy(t, "locked")
	w.Exec(t, "UPDATE public.workspaces SET locked_at = now(), lock_reason = 'x' WHERE name = 'locked'")
	id("locked", "SELECT id FROM public.workspaces WHERE name = 'locked'")
	for _, name := range []string{"template", "gone"} {
		w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, $2, 'https://git.example/a/b', 'v1')", w.Org, name)
		id(name, "SELECT id FROM public.templates WHERE name = '"+name+"'")
	}

	w.withNotifier(t)
	for _, name := range []string{"webhook", "unused"} {
		ids[name] = w.as(t, "admin", "POST", "/webhooks", `{"name": "`+name+`", "url": "https://hooks.example/x", "events": ["drift"]}`).want(t, "POST /webhooks", 201, "").text("id")
	}
	ids["delivery"] = w.as(t, "admin", "POST", "/webhooks/"+ids["webhook"]+"/test", "").want(t, "a test", 202, "").text("id")

	methods := map[string]string{}
	for _, of := range newChecker(w.handler).paths {
		for method, op := range of {
			methods[op.OperationID] = strings.ToUpper(method)
			if _, known := rules[op.OperationID]; !known {
				t.Errorf("nothing here says who may do %s: add it to rules", op.OperationID)
			}
		}
	}
	for name, r := range rules {
		if methods[name] == "" {
			t.Errorf("there is no operation %s: take it out of rules", name)
			continue
		}
		for _, who := range []string{"", "stranger", "viewer", "operator", "admin"} {
			got := w.as(t, who, methods[name], r.fill(r.path, ids), r.fill(r.body, ids))
			switch answer := strings.TrimSpace(fmt.Sprint(got.status, " ", got.text("reason"))); {
			case who == "":
				got.want(t, "nobody: "+name, http.StatusUnauthorized, "not_signed_in")
			case !r.mayBe(who):
				if !r.refuses(answer) {
					t.Errorf("%s does %s: %s %s, want %s", who, name, answer, got.body, r.others)
				}
				if who != "stranger" {
					continue
				}
				made := map[string]string{}
				for key := range ids {
					made[key] = uuid.NewString()
				}
				none := w.as(t, who, methods[name], r.fill(r.path, made), r.fill(r.body, made))
				if there, not := r.plain(got, ids), r.plain(none, made); there != not {
					t.Errorf("a stranger does %s: %s for what is there, and %s for what is not, want one answer", name, there, not)
				}
			case !r.streams && answer != r.may:
				t.Errorf("%s does %s: %s %s, want %s", who, name, answer, got.body, r.may)
			}
			if r.streams && who == "stranger" {
				break // the others would listen
			}
		}
	}
}

func (r rule) mayBe(who string) bool {
	order := []string{anybody, "stranger", "viewer", "operator", "admin"}
	return slices.Index(order, who) >= slices.Index(order, r.least)
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
