package sample

import (
	"encoding/json"
	"fmt"
	"strings"
)

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
	return append(lines, bold+"Plan:"+plain+" 1 to add, 2 to change, 1 to destroy, 1 to replace.", "#This plan destroys or replaces something, so it awaits approval.")
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
