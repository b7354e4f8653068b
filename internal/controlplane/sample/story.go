package sample

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

const day = 24 * time.Hour

func repoOf(template string) string { return "https://git.example.com/platform/" + template }

// commitOf is a commit that looks like one.
func commitOf(template, version string) string {
	sum := sha256.Sum256([]byte(template + version))
	return hex.EncodeToString(sum[:20])
}

// tell tells all of it, oldest first, as numbers are given out.
func (t *teller) tell() error {
	for _, chapter := range []func() error{t.members, t.machines, t.pools, t.catalogue, t.weeks, t.today, t.rules} {
		if err := chapter(); err != nil {
			return err
		}
	}
	return nil
}

func (t *teller) members() error {
	t.people = map[string]uuid.UUID{}
	for _, p := range []struct{ name, email, role string }{
		{"Ada Lovelace", "ada@example.com", "admin"}, {"Grace Hopper", "grace@example.com", "operator"},
		{"Linus Pauling", "linus@example.com", "operator"}, {"Mary Somerville", "mary@example.com", "viewer"},
	} {
		id := uuid.NewSHA1(uuid.NameSpaceURL, []byte(p.email))
		t.people[p.name] = id
		if err := t.exec("INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", t.org, id, p.role); err != nil {
			return err
		}
		if err := t.exec("SELECT tendril.name_person($1, $2, $3, true)", id, p.name, p.email); err != nil {
			return err
		}
	}
	if err := t.as(""); err != nil {
		return err
	}
	return t.exec("SELECT public.invite_member($1, 'rosalind@example.com', 'operator')", t.org)
}

func (t *teller) machines() error {
	if err := t.as("Ada Lovelace"); err != nil {
		return err
	}
	for _, c := range []struct {
		name, agent, host string
		slots             int
	}{{online, "eu-central-1a", "ip-10-20-1-17", 1}, {stale, "staging-runner", "runner-02.staging", 4}, {offline, "store-17", "nuc-store-17", 1}} {
		if err := t.addCluster(c.name, c.agent, c.host, c.slots); err != nil {
			return err
		}
	}
	return nil
}

// pools are those of the cluster that is online, and one that its agent can't reach.
func (t *teller) pools() error {
	node := func(name string, cores, memory float64) map[string]any {
		return map[string]any{
			"name": name, "online": true, "cores": 32, "memory_mib": 131072, "cores_used": cores, "memory_used": memory, "images": []string{"debian-13", "rocky-9"}, "labels": map[string]string{"rack": "2"},
			"storages": []map[string]any{{"name": "ceph", "free_gib": 5120, "size_gib": 12288}, {"name": "local-lvm", "free_gib": 640, "size_gib": 1800}},
		}
	}
	down := node("pve3", 0, 0)
	down["online"] = false
	text, err := json.Marshal([]map[string]any{
		{"name": "rack-2", "kind": "proxmox", "nodes": []map[string]any{node("pve1", 0.31, 0.44), node("pve2", 0.46, 0.58), down},
			"limits": map[string]any{"overcommit_cores": 4, "ids": []int{140, 199}, "addresses": []map[string]string{{"from": "10.20.14.21", "to": "10.20.14.99"}}}},
		{"name": "bench", "kind": "libvirt", "problem": "connect to qemu+tls://bench.example: connection refused"},
	})
	if err != nil {
		return err
	}
	c := t.clusters[online]
	if err := t.exec("SELECT public.report_pools($1, $2, $3, $4)", c.hash, c.instance, c.boot, string(text)); err != nil {
		return err
	}
	return t.exec(`SELECT public.set_pool_quota($1, '{"workspaces": "search/*", "machines": 4, "memory_mib": 65536}')`, t.org)
}

// catalogue has three templates, of which one could not be looked at.
func (t *teller) catalogue() error {
	variables := func(list ...map[string]any) string {
		for _, v := range list {
			for key, value := range map[string]any{"required": false, "sensitive": false, "nullable": true, "ephemeral": false, "type_json": "string"} {
				if _, ok := v[key]; !ok {
					v[key] = value
				}
			}
		}
		encoded, _ := json.Marshal(list) // of plain maps: always can
		return string(encoded)
	}
	for _, e := range []struct{ name, version, about, variables, problem string }{
		{"network", "v3.1.0", "A VPC with public and private subnets in three zones.", variables(
			map[string]any{"name": "region", "type": "string", "description": "Where the network lies.", "required": true},
			map[string]any{"name": "cidr", "type": "string", "description": "The network's addresses.", "default": "10.20.0.0/16"},
			map[string]any{"name": "zones", "type": "list(string)", "type_json": []any{"list", "string"}, "default": []string{"a", "b", "c"}},
		), ""},
		{"web-service", "v2.4.1", "A container behind a load balancer, with its database.", variables(
			map[string]any{"name": "image", "type": "string", "description": "The container to run.", "required": true},
			map[string]any{"name": "replicas", "type": "number", "type_json": "number", "default": 2},
			map[string]any{"name": "public", "type": "bool", "type_json": "bool", "default": false, "description": "Reachable from the Internet."},
			map[string]any{"name": "database_password", "type": "string", "sensitive": true, "required": true},
			map[string]any{"name": "tags", "type": "map(string)", "type_json": []any{"map", "string"}, "default": map[string]string{"team": "shop"}},
		), ""},
		{"edge-node", "v0.9.0", "The small machine in each shop.", "", "The template does not parse: main.tf:14: Unclosed configuration block: There is no closing brace for this block before the end of the file."},
	} {
		if err := t.exec(`INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, commit, variables, inspected_by, inspected_at, problem_code, problem, about)
			VALUES ($1, $2, $3, '', $2, CASE WHEN $4 = '' THEN 'failed' ELSE 'done' END, CASE WHEN $4 <> '' THEN $5 END, nullif($4, '')::jsonb, CASE WHEN $4 <> '' THEN 'trellis' END, now() - interval '20 days',
			        CASE WHEN $6 <> '' THEN 'template_invalid' END, nullif($6, ''), CASE WHEN $4 <> '' THEN jsonb_build_object('provisioner', 'terraform', 'icon', $7::text) END)`,
			t.org, repoOf(e.name), e.version, e.variables, commitOf(e.name, e.version), e.problem, map[string]string{"network": "network", "web-service": "container"}[e.name]); err != nil {
			return err
		}
		if err := t.exec("SELECT public.save_template($1, $2, $3, $4, '', $5)", t.org, "sample-"+e.name, repoOf(e.name), e.version, e.about); err != nil {
			return err
		}
	}
	// Looked at by what trellis cannot: asked for by the catalogue, known already.
	if err := t.exec(`UPDATE public.template_inspections SET status = 'failed', problem_code = 'template_invalid', problem = $2 WHERE org_id = $1 AND variables IS NULL AND repo LIKE '%/edge-node'`,
		t.org, "The template does not parse: main.tf:14: Unclosed configuration block: There is no closing brace for this block before the end of the file."); err != nil {
		return err
	}
	return t.exec("SELECT tendril.record_tags($1, $2, $3)", t.org, repoOf("web-service"), fmt.Sprintf(`[{"tag": "v2.5.0", "commit": %q}, {"tag": "v2.4.1", "commit": %q}, {"tag": "v2.4.0", "commit": %q}]`,
		commitOf("web-service", "v2.5.0"), commitOf("web-service", "v2.4.1"), commitOf("web-service", "v2.4.0")))
}

// weeks are what has gone before.
func (t *teller) weeks() error {
	people := []string{"Ada Lovelace", "Grace Hopper", "Linus Pauling"}
	for week := range 3 {
		for i, w := range []struct{ cluster, workspace, template string }{
			{online, "network/prod", "network"}, {online, "shop/prod", "web-service"}, {online, "payments/prod", "web-service"},
			{stale, "shop/staging", "web-service"}, {online, "search/prod", "web-service"},
		} {
			ago := time.Duration(21-7*week-i)*day + time.Duration(i*97+week*41)*time.Minute
			r := run{cluster: w.cluster, workspace: w.workspace, template: w.template, version: fmt.Sprintf("v2.%d.0", 2+week), operation: "apply", by: people[(week+i)%3],
				reason: []string{"Release 2026.44", "Scale for the weekend", "Rotate certificates"}[(week+i)%3], vars: varsOf(w.workspace), ago: ago, took: time.Duration(70+31*i+17*week) * time.Second,
				resources: resourcesOf(w.workspace), outputs: outputsOf(w.workspace), end: "SUCCESS"}
			if w.template == "network" {
				r.version = fmt.Sprintf("v3.%d.0", week-1+1)
			}
			r.plan = planOf(r.resources, week)
			r.lines = applied(r, week)
			if week == 1 && i == 3 {
				r.end, r.code, r.message, r.resources, r.outputs = "CANCELLED", "cancelled", "Cancelled before apply had begun.", nil, ""
				r.plan = ""
				r.lines = []string{"#Checking out " + repoOf(r.template) + " " + r.version, "#Stopping: somebody has asked for it."}
			}
			if err := t.play(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// today is what is going on, and what needs somebody.
func (t *teller) today() error {
	drift := `[{"address": "aws_security_group.public", "action": "update", "attributes": [{"path": "ingress[1].cidr_blocks[0]", "before": "10.0.0.0/8", "after": "0.0.0.0/0"}]},
		{"address": "aws_route.nat[2]", "action": "delete"}]`
	broken := resourcesOf("shop/staging")
	broken[2].Status = "tainted"
	for _, r := range []run{
		{cluster: online, workspace: "network/prod", template: "network", version: "v3.2.0", operation: "refresh", by: "", reason: "Drift schedule", vars: varsOf("network/prod"),
			ago: 9 * time.Hour, took: 41 * time.Second, drift: drift, lines: []string{"#Drift: 2 resources have changed outside."}, end: "SUCCESS"},
		{cluster: offline, workspace: "edge/store-17", template: "edge-node", version: "v0.9.0", operation: "apply", by: "Linus Pauling", reason: "New till", vars: varsOf("edge/store-17"),
			ago: 3*day + 2*time.Hour, took: 6 * time.Minute, plan: planOf(resourcesOf("edge/store-17"), 0), lines: applied(run{template: "edge-node", version: "v0.9.0", resources: resourcesOf("edge/store-17")}, 0)[:9], end: "LOST"},
		{cluster: stale, workspace: "shop/staging", template: "web-service", version: "v2.5.0", operation: "apply", by: "Grace Hopper", reason: "Try 2.5 before production", vars: varsOf("shop/staging"),
			ago: 47 * time.Minute, took: 3*time.Minute + 12*time.Second, plan: planOf(broken, 2), resources: broken, lines: failed(broken), end: "FAILED", code: "apply_failed",
			message: "Error: creating ECS Service (shop): InvalidParameterException: Unable to assume the service linked role. Please verify that the ECS service linked role exists."},
		{cluster: online, workspace: "payments/prod", template: "web-service", version: "v2.5.0", operation: "apply", by: "Grace Hopper", reason: "Move to the larger database", vars: varsOf("payments/prod"),
			ago: 26 * time.Minute, took: 58 * time.Second, plan: planOf(resourcesOf("payments/prod"), 3), lines: planned(resourcesOf("payments/prod")), end: "AWAITING_APPROVAL"},
		{cluster: online, workspace: "shop/prod", template: "web-service", version: "v2.4.1", operation: "apply", by: "Ada Lovelace", reason: "Release 2026.47", vars: varsOf("shop/prod"),
			ago: 4 * time.Minute, took: 4 * time.Minute, plan: planOf(resourcesOf("shop/prod"), 1), lines: applied(run{template: "web-service", version: "v2.4.1", resources: resourcesOf("shop/prod")}, 1)[:14], end: "PROCESSING"},
	} {
		if err := t.play(r); err != nil {
			return err
		}
	}
	// What waits: for the slot, and for a lock.
	for _, r := range []run{
		{cluster: online, workspace: "search/prod", template: "web-service", version: "v2.5.0", operation: "apply", by: "Linus Pauling", reason: "Reindex", vars: varsOf("search/prod")},
		{cluster: online, workspace: "network/prod", template: "network", version: "v3.2.0", operation: "plan", by: "Grace Hopper", reason: "What would put the drift right?", vars: varsOf("network/prod")},
	} {
		if _, err := t.deploy(r); err != nil {
			return err
		}
	}
	return nil
}

// rules are set last: what has been ran before them.
func (t *teller) rules() error {
	if err := t.as("Ada Lovelace"); err != nil {
		return err
	}
	for _, statement := range []string{
		"SELECT public.lock_workspace(id, 'Migration of the address plan until Friday') FROM public.workspaces WHERE org_id = $1 AND name = 'network/prod' AND cluster_id IN (SELECT id FROM public.clusters WHERE name = 'sample-prod-eu')",
		`SELECT public.set_cluster_policy(id, '{"approval": "destructive", "four_eyes": true}') FROM public.clusters WHERE org_id = $1 AND name = 'sample-prod-eu'`,
		"SELECT public.set_drift_schedule(id, '366 days') FROM public.workspaces WHERE org_id = $1 AND name = 'network/prod' AND cluster_id IN (SELECT id FROM public.clusters WHERE name = 'sample-prod-eu')",
		"UPDATE public.clusters SET last_seen_at = now() - interval '3 days', created_at = now() - interval '40 days' WHERE org_id = $1 AND name = 'sample-edge'",
		"UPDATE public.clusters SET created_at = now() - interval '60 days' WHERE org_id = $1 AND name IN ('sample-prod-eu', 'sample-staging')",
		"UPDATE public.agents a SET last_heartbeat_at = now() - interval '3 days' FROM public.clusters c WHERE c.id = a.cluster_id AND c.org_id = $1 AND c.name = 'sample-edge'",
	} {
		if err := t.exec(statement, t.org); err != nil {
			return err
		}
	}
	return nil
}

// What engines print in colours.
const (
	bold, green, yellow, red, plain = "\x1b[1m", "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
)

// varsOf are the variables of a workspace's deploys.
func varsOf(workspace string) map[string]any {
	if strings.HasPrefix(workspace, "network/") {
		return map[string]any{"region": "eu-central-1", "cidr": "10.20.0.0/16", "zones": []string{"a", "b", "c"}}
	}
	name, _, _ := strings.Cut(workspace, "/")
	return map[string]any{"image": "registry.example.com/" + name + ":2026.47", "replicas": 3, "public": name == "shop"}
}

// resourcesOf are what exists in a workspace.
func resourcesOf(workspace string) []resource {
	name, stage, _ := strings.Cut(workspace, "/")
	const provider = "registry.terraform.io/hashicorp/aws"
	r := func(address, id string, ips ...string) resource {
		kind, _, _ := strings.Cut(address, ".")
		return resource{Address: address, Type: kind, Provider: provider, ID: id, IPs: ips, Status: "created"}
	}
	if name == "network" {
		found := []resource{r("aws_vpc.main", "vpc-0a5c3d1e9f2b47c68"), r("aws_internet_gateway.main", "igw-07d21b6c5a4e8f930"), r("aws_security_group.public", "sg-03b9f5e7d8a1c2460")}
		for i, zone := range []string{"a", "b", "c"} {
			found = append(found, r(fmt.Sprintf("aws_subnet.private[%q]", zone), fmt.Sprintf("subnet-0c%d7e5b3a9d1f24%d0", i, i)), r(fmt.Sprintf("aws_subnet.public[%q]", zone), fmt.Sprintf("subnet-0d%d2f6c4b8e0a35%d1", i, i)),
				r(fmt.Sprintf("aws_eip.nat[%d]", i), fmt.Sprintf("eipalloc-09%d4c6a2e8f0b1d", i), fmt.Sprintf("203.0.113.%d", 20+i)), r(fmt.Sprintf("aws_nat_gateway.main[%d]", i), fmt.Sprintf("nat-0e%d8d0f2c4a6b15", i)), r(fmt.Sprintf("aws_route.nat[%d]", i), fmt.Sprintf("r-rtb-0f%d1", i)))
		}
		return found
	}
	return []resource{
		r("aws_db_instance."+name, name+"-"+stage, "10.20.11.7"), r("aws_ecs_task_definition."+name, "arn:aws:ecs:eu-central-1:123456789012:task-definition/"+name+":47"),
		r("aws_ecs_service."+name, "arn:aws:ecs:eu-central-1:123456789012:service/"+stage+"/"+name), r("aws_lb.public", "arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/app/"+name, "203.0.113.41", "203.0.113.42"),
		r("aws_lb_listener.https", "arn:aws:elasticloadbalancing:eu-central-1:123456789012:listener/app/"+name), r("aws_cloudwatch_log_group."+name, "/ecs/"+name), r("module.dns.aws_route53_record.service", "Z0123_"+name+".example.com_A"),
	}
}

// machinesOf are the machines of a workspace, as its runs report them.
func machinesOf(workspace string) []map[string]any {
	found := []map[string]any{}
	if workspace != "search/prod" {
		return found
	}
	for i, status := range []string{"running", "running", "stopped"} {
		found = append(found, map[string]any{
			"name": fmt.Sprintf("search-%d", i+1), "status": status, "address": fmt.Sprintf("proxmox_virtual_environment_vm.search[\"search-%d\"]", i+1), "pool": "rack-2", "node": fmt.Sprintf("pve%d", i%2+1),
			"external_id": fmt.Sprint(140 + i), "ip_addresses": []string{fmt.Sprintf("10.20.14.%d", 21+i)}, "ssh_user": "debian", "image": "debian-13", "cores": 4, "memory_mib": 8192, "disk_gib": 60,
			"labels": map[string]string{"role": "index", "stage": "prod"}, "actions": []string{"destroy", "rebuild", "refresh"},
		})
	}
	return found
}

// wantsOf are the places that a run reserves for its machines.
func wantsOf(r run) (wants []map[string]any) {
	if r.operation != "apply" || r.resources == nil {
		return nil
	}
	for _, m := range machinesOf(r.workspace) {
		wants = append(wants, map[string]any{"name": m["name"], "pool": m["pool"], "image": m["image"], "cores": m["cores"], "memory_mib": m["memory_mib"], "spread": "search"})
	}
	return wants
}

func outputsOf(workspace string) string {
	name, stage, _ := strings.Cut(workspace, "/")
	return fmt.Sprintf(`{"url": {"type": "string", "value": "https://%s.%s.example.com"}, "zones": {"type": ["list", "string"], "value": ["eu-central-1a", "eu-central-1b", "eu-central-1c"]},
		"database_password": {"type": "string", "sensitive": true}}`, name, stage)
}

// planOf is a plan of a kind: 0 creates all, 1 updates some, 2 creates and
// replaces, 3 destroys as well.
func planOf(resources []resource, kind int) string {
	type attribute struct {
		Path     string `json:"path"`
		Before   any    `json:"before,omitempty"`
		After    any    `json:"after,omitempty"`
		Unknown  bool   `json:"unknown,omitempty"`
		Replaces bool   `json:"replaces,omitempty"`
	}
	type change struct {
		Address    string      `json:"address"`
		Action     string      `json:"action"`
		Attributes []attribute `json:"attributes,omitempty"`
	}
	counts := map[string]int{}
	var changes []change
	for i, r := range resources {
		c := change{Address: r.Address, Action: "create"}
		switch {
		case kind == 0:
			c.Attributes = []attribute{{Path: "id", Unknown: true}, {Path: "tags.team", After: "platform"}}
		case i == 0 && kind >= 2:
			c.Action, c.Attributes = "replace", []attribute{{Path: "instance_class", Before: "db.t4g.medium", After: "db.r7g.large", Replaces: true}, {Path: "endpoint", Before: "db.internal:5432", Unknown: true}}
		case i == 1 || i == 2:
			c.Action, c.Attributes = "update", []attribute{{Path: "container_definitions[0].image", Before: "shop:2026.46", After: "shop:2026.47"}, {Path: "desired_count", Before: 2, After: 3}}
		case i == 3 && kind == 3:
			c.Action, c.Attributes = "delete", []attribute{{Path: "idle_timeout", Before: 60}}
		case i == 4 && kind != 2:
			c.Attributes = []attribute{{Path: "port", After: 443}, {Path: "arn", Unknown: true}}
		default:
			continue
		}
		counts[c.Action]++
		changes = append(changes, c)
	}
	encoded, _ := json.Marshal(map[string]any{ // of plain values: always can
		"add": counts["create"], "change": counts["update"], "destroy": counts["delete"], "replace": counts["replace"], "import": 0, "move": 0, "resources": changes,
	})
	return string(encoded)
}

func begun(r run) []string {
	return []string{
		"#Checking out " + repoOf(r.template) + " " + r.version, "#Checked out commit " + commitOf(r.template, r.version), "Initializing the backend...", "Initializing provider plugins...",
		"- Reusing previous version of hashicorp/aws from the dependency lock file", "- Using previously-installed hashicorp/aws v5.94.1", green + "Terraform has been successfully initialized!" + plain,
	}
}

// planned are the lines of a plan.
func planned(resources []resource) []string {
	lines := begun(run{template: "web-service", version: "v2.5.0"})
	for _, r := range resources {
		lines = append(lines, bold+r.Address+": Refreshing state... [id="+r.ID+"]"+plain)
	}
	return append(lines, bold+"Plan:"+plain+" 1 to add, 2 to change, 1 to destroy, 1 to replace.", "#This plan destroys or replaces something, so it needs approval.")
}

// applied are the lines of an apply that goes well.
func applied(r run, kind int) []string {
	lines := begun(r)
	for i, it := range r.resources {
		doing, done := "Creating...", "Creation complete after %ds [id=%s]"
		if kind > 0 {
			doing, done = "Modifying...", "Modifications complete after %ds [id=%s]"
		}
		lines = append(lines, bold+it.Address+": "+doing+plain)
		if i == 0 {
			for seconds := 10; seconds <= 40; seconds += 10 {
				lines = append(lines, fmt.Sprintf("%s: Still creating... [%ds elapsed]", it.Address, seconds))
			}
		}
		lines = append(lines, bold+it.Address+": "+fmt.Sprintf(done, 3+7*i%41, it.ID)+plain)
	}
	return append(lines, bold+green+"Apply complete!"+plain+" Resources: "+fmt.Sprint(len(r.resources))+" added, 0 changed, 0 destroyed.", "#Done.")
}

// failed are the lines of an apply that does not.
func failed(resources []resource) []string {
	lines := planned(resources)
	lines = lines[:len(lines)-1]
	return append(lines, bold+"aws_ecs_task_definition.shop: Modifying..."+plain, bold+"aws_ecs_task_definition.shop: Modifications complete after 1s"+plain, bold+"aws_ecs_service.shop: Creating..."+plain,
		yellow+"╷"+plain, yellow+"│"+plain+" "+bold+"Warning: Argument is deprecated"+plain, yellow+"│"+plain+"   on main.tf line 41, in resource \"aws_lb\" \"public\":", yellow+"╵"+plain,
		red+"╷"+plain, red+"│ "+bold+"Error: "+plain+bold+"creating ECS Service (shop): InvalidParameterException: Unable to assume the service linked role. Please verify that the ECS service linked role exists."+plain, red+"│"+plain,
		red+"│"+plain+"   with aws_ecs_service.shop,", red+"│"+plain+"   on main.tf line 22, in resource \"aws_ecs_service\" \"shop\":", red+"│"+plain+"   22: resource \"aws_ecs_service\" \"shop\" {", red+"╵"+plain,
		"#Failed (apply_failed): creating ECS Service (shop): InvalidParameterException: Unable to assume the service linked role. Please verify that the ECS service linked role exists.")
}
