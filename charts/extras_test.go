package charts

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// extras are what houses add to whatever they install, in the words of both charts.
const extras = `
annotations: {argocd.argoproj.io/sync-wave: "3"}
hostAliases: [{ip: 192.0.2.7, hostnames: [git.corp.example]}]
dnsConfig: {searches: [corp.example], options: [{name: ndots, value: "1"}]}
extraContainers: [{name: sql-proxy, image: "registry.example/sql-proxy:1", securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]
extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: extra, annotations: {argocd.argoproj.io/sync-wave: "3"}, namespace: "{{ .Release.Namespace }}"}}]
revisionHistoryLimit: 0
`

// Each object has the annotations of all, besides its own; pods have the names,
// containers and further objects that are asked for.
func TestExtras(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		chart  chart
		values string
		kind   string
	}{
		{agentChart, three + "serviceMonitor: {enabled: true}\nnetworkPolicy: {metricsFrom: [{podSelector: {}}]}\nrbac: {rules: [{apiGroups: [''], resources: [secrets], verbs: [get]}]}\n" +
			"serviceAccount: {annotations: {own: 'yes'}}\n", "StatefulSet"},
		{trellis, trellisLeast + "serviceMonitor: {enabled: true}\nnetworkPolicy: {metricsFrom: [{podSelector: {}}]}\ngc: {enabled: true, podLabels: {sidecar.istio.io/inject: 'false'}}\ningress: {enabled: true}\n" +
			"migrate: {podLabels: {sidecar.istio.io/inject: 'false'}, podAnnotations: {linkerd.io/inject: disabled}}\npodAnnotations: {linkerd.io/inject: enabled}\n" +
			"test: {tokenSecret: {name: token}, podLabels: {sidecar.istio.io/inject: 'false'}}\n" +
			"serviceAccount: {annotations: {own: 'yes'}}\nextraEnvFrom: [{configMapRef: {name: proxies}}]\nprobes: {liveness: {failureThreshold: 12}}\n", "Deployment"},
	} {
		rendered, complaint := of.chart.template(t, of.values+extras)
		if complaint != "" {
			t.Fatalf("%s: %s", of.chart, complaint)
		}
		if no := nonconforming(t, oldestKubernetes, rendered); no != "" {
			t.Errorf("%s: %s", of.chart, no)
		}
		all := decode(t, rendered)
		for _, o := range all {
			if got := o.get("metadata", "annotations", "argocd.argoproj.io/sync-wave"); got != "3" {
				t.Errorf("%s: %v %v has annotations %v, want those of all", of.chart, o.get("kind"), o.get("metadata", "name"), o.get("metadata", "annotations"))
			}
		}
		all.one(t, "ServiceAccount").want(t, "yes", "metadata", "annotations", "own")
		all.find(t, "ConfigMap", "extra").want(t, "platform", "metadata", "namespace")
		server := all.one(t, of.kind)
		server.want(t, 0, "spec", "revisionHistoryLimit")
		server.want(t, "registry.example/sql-proxy:1", "spec", "template", "spec", "containers", 1, "image")
		pods := objects{server}
		if of.chart == trellis {
			migration := all.one(t, "Job")
			// A sidecar that goes on keeps it from its end: injected where servers are alone.
			migration.want(t, "false", "spec", "template", "metadata", "labels", "sidecar.istio.io/inject")
			migration.want(t, "disabled", "spec", "template", "metadata", "annotations", "linkerd.io/inject")
			migration.want(t, nil, "spec", "template", "spec", "containers", 1)
			migration.want(t, "pre-install,pre-upgrade", "metadata", "annotations", "helm.sh/hook")
			all.one(t, "CronJob").want(t, "false", "spec", "jobTemplate", "spec", "template", "metadata", "labels", "sidecar.istio.io/inject")
			all.one(t, "Pod").want(t, "false", "metadata", "labels", "sidecar.istio.io/inject")
			all.one(t, "Pod").want(t, "enabled", "metadata", "annotations", "linkerd.io/inject")
			server.want(t, nil, "spec", "template", "metadata", "labels", "sidecar.istio.io/inject")
			server.want(t, "enabled", "spec", "template", "metadata", "annotations", "linkerd.io/inject")
			server.want(t, "proxies", "spec", "template", "spec", "containers", 0, "envFrom", 0, "configMapRef", "name")
			server.want(t, 12, "spec", "template", "spec", "containers", 0, "livenessProbe", "failureThreshold")
			server.want(t, "/healthz", "spec", "template", "spec", "containers", 0, "livenessProbe", "httpGet", "path")
			pods = append(pods, migration)
		}
		for _, o := range pods {
			o.want(t, "192.0.2.7", "spec", "template", "spec", "hostAliases", 0, "ip")
			o.want(t, "ndots", "spec", "template", "spec", "dnsConfig", "options", 0, "name")
		}
	}
}

// Behind a strict policy names are found wherever Kubernetes has them answered: OpenShift's listen on 5353.
func TestStrictPoliciesLetNamesBeAsked(t *testing.T) {
	t.Parallel()
	for c, values := range map[chart]string{agentChart: three, trellis: trellisLeast} {
		rendered, complaint := c.template(t, values+"networkPolicy: {strict: true, egress: [{ports: [{port: 443, protocol: TCP}]}]}\n")
		if complaint != "" {
			t.Fatalf("%s: %s", c, complaint)
		}
		for _, policy := range decode(t, rendered).of("NetworkPolicy") {
			var ports []string
			for _, p := range policy.get("spec", "egress", 0, "ports").([]any) {
				ports = append(ports, fmt.Sprint(follow(p, "protocol"), follow(p, "port")))
			}
			slices.Sort(ports)
			if got := fmt.Sprint(ports); got != "[TCP53 TCP5353 UDP53 UDP5353]" {
				t.Errorf("%s: %v lets out to %s first, want to what answers for names", c, policy.get("metadata", "name"), got)
			}
		}
	}
}

var (
	setValue    = regexp.MustCompile(`--set(?:-string|-file|-json)?[ =]'?([A-Za-z][A-Za-z0-9.]*)=`)
	dottedValue = regexp.MustCompile("`([a-z][A-Za-z]*(?:\\.[A-Za-z]+)+)[`=]")
)

// What the docs call a value of a chart is one: what they set, and each dotted name
// in the charts' spelling that begins as one of their tables does.
func TestDocsNameValuesThatThereAre(t *testing.T) {
	t.Parallel()
	known, tables := map[string]bool{}, map[string]bool{}
	for _, c := range []chart{agentChart, trellis} {
		for _, v := range documented(t, c) {
			for path := v.path; ; path = path[:strings.LastIndex(path, ".")] {
				known[path] = true
				if !strings.Contains(path, ".") {
					tables[path] = true
					break
				}
			}
		}
		// What is below a value that its comment explains as a whole.
		for path := range schemaOf(t, c, func(string) bool { return false }) {
			known[path] = true
		}
	}
	var files []string
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/monitoring/*.md", "*/README.md", "*/templates/NOTES.txt"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	named := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "trellis input ") {
				continue // its flag --set is another one
			}
			for _, m := range setValue.FindAllStringSubmatch(line, -1) {
				if named++; !known[m[1]] {
					t.Errorf("%s sets %s, which is a value of neither chart", file, m[1])
				}
			}
		}
		for _, m := range dottedValue.FindAllStringSubmatch(string(text), -1) {
			table, _, _ := strings.Cut(m[1], ".")
			if spelled := strings.ToLower(m[1]) != m[1]; spelled && tables[table] {
				if named++; !known[m[1]] {
					t.Errorf("%s speaks of %s, which is a value of neither chart", file, m[1])
				}
			}
		}
	}
	if named < 40 {
		t.Errorf("found %d names of values, want those of all pages", named)
	}
}
