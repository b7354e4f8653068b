package charts

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/config"
)

// mount is where the agent's files are in the pod.
const mount = "/etc/tendril"

// file is one that the pod gets below mount.
type file struct {
	path string
	// from is where its content is: kind, name and key.
	from [3]string
}

// mounted lists the files in order, from the pod's own words.
func mounted(all objects) (files []file) {
	for _, set := range all.of("StatefulSet") {
		sources, _ := set.get("spec", "template", "spec", "volumes", "config", "projected", "sources").([]any)
		for _, source := range sources {
			for _, kind := range []string{"configMap", "secret"} {
				items, _ := follow(source, kind, "items").([]any)
				for _, item := range items {
					files = append(files, file{fmt.Sprint(follow(item, "path")), [3]string{kind, fmt.Sprint(follow(source, kind, "name")), fmt.Sprint(follow(item, "key"))}})
				}
			}
			if at := follow(source, "serviceAccountToken", "path"); at != nil {
				files = append(files, file{path: fmt.Sprint(at)})
			}
		}
	}
	return files
}

// content is what such a file would hold: what is rendered, else what somebody
// would have put into a Secret of theirs.
func content(all objects, f file) string {
	for _, o := range all.of("ConfigMap") {
		if text, ok := o.get("data", f.from[2]).(string); ok && o.get("metadata", "name") == f.from[1] && f.from[0] == "configMap" {
			return text
		}
	}
	switch f.path {
	case "token":
		return "tnd_0123456789"
	case "service-account-token":
		return "eyJhbGciOiJSUzI1NiJ9.e30.c2lnbmF0dXJl"
	case "join-token":
		return "tnj_0123456789"
	case "queue-url":
		return "postgres://agent:hunter2@db.example/tendril"
	case "queue-listen-url":
		return "postgres://agent:hunter2@direct.example/tendril"
	case "ca.crt":
		return authority
	default:
		return "secret"
	}
}

// start reads the rendered configuration as the agent in the pod would: the same
// files in another directory, the same environment.
func start(t *testing.T, all objects) (config.Config, error) {
	t.Helper()
	dir := t.TempDir()
	for _, f := range mounted(all) {
		at := filepath.Join(dir, f.path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(strings.ReplaceAll(content(all, f), mount, dir)), 0o440); err != nil {
			t.Fatal(err)
		}
	}
	set := all.one(t, "StatefulSet")
	environ := []string{"PATH=" + os.Getenv("PATH")}
	variables, _ := set.get("spec", "template", "spec", "containers", 0, "env").([]any)
	for _, variable := range variables {
		value, _ := follow(variable, "value").(string)
		value = strings.ReplaceAll(strings.ReplaceAll(value, mount, dir), "$(POD_NAME)", "tendril-0")
		environ = append(environ, fmt.Sprintf("%v=%s", follow(variable, "name"), value))
	}
	at := slices.IndexFunc(environ, func(entry string) bool { return strings.HasPrefix(entry, "TENDRIL_CONFIG=") })
	if at < 0 {
		t.Fatalf("the pod's environment names no configuration: %v", environ)
	}
	return config.Load(strings.TrimPrefix(environ[at], "TENDRIL_CONFIG="), environ)
}

// Whatever is rendered must be taken by the agent, which refuses what it does
// not know and files that others may read.
func TestAgentTakesItsConfiguration(t *testing.T) {
	t.Parallel()
	for _, tc := range agentRenderings {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rendered, complaint := agentChart.template(t, tc.values)
			if complaint != "" {
				t.Fatal(complaint)
			}
			all := decode(t, rendered)
			got, err := start(t, all)
			if err != nil {
				t.Fatalf("the agent refuses what the chart renders: %v\n%s", err, all.one(t, "ConfigMap").get("data", "tendril.toml"))
			}
			if got.Health.Listen != ":9090" {
				t.Errorf("health.listen = %q, want :9090, where the probes ask", got.Health.Listen)
			}
			set := all.one(t, "StatefulSet")
			grace, _ := set.get("spec", "template", "spec", "terminationGracePeriodSeconds").(int)
			if longest := got.DrainTimeout.Duration + got.Run.CancelGrace.Duration + 40*time.Second; time.Duration(grace)*time.Second < longest {
				t.Errorf("the pod gets %d s to end, and the agent may take %s", grace, longest)
			}
			mounts, _ := set.get("spec", "template", "spec", "containers", 0, "volumeMounts").([]any)
			if at := fmt.Sprint(follow(element(mounts, "data"), "mountPath")); path.Dir(got.DataDir) != at {
				t.Errorf("data_dir = %s, want it right below the volume, %s, whose own directory belongs to root", got.DataDir, at)
			}
		})
	}
}

func TestAgentGetsWhatValuesSay(t *testing.T) {
	t.Parallel()
	rendered, complaint := agentChart.template(t, everything)
	if complaint != "" {
		t.Fatal(complaint)
	}
	got, err := start(t, decode(t, rendered))
	if err != nil {
		t.Fatal(err)
	}
	app, corp := got.Git.Hosts["github.com"], got.Git.Hosts["git.corp.example:8443"]
	for _, tc := range []struct {
		what string
		got  any
		want string
	}{
		{"name", got.Name, "prod.tendril-0"},
		{"slots", got.Slots, "4"},
		{"drain_timeout", got.DrainTimeout, "45m0s"},
		{"run.cancel_grace", got.Run.CancelGrace, "1m0s"},
		{"log_format", got.LogFormat, "text"},
		{"log_level", got.LogLevel, "DEBUG"},
		{"queue.url", got.Queue.URL, "postgres://agent:hunter2@db.example/tendril"},
		{"queue.listen_url", got.Queue.ListenURL, "postgres://agent:hunter2@direct.example/tendril"},
		{"queue.token", got.Queue.Token.Reveal(), "tnd_0123456789"},
		{"policy.repos", got.Policy.Repos, "[https://github.com/acme/** git@git.corp.example:infra/*]"},
		{"policy.operations", got.Policy.Operations, "[plan apply inspect]"},
		{"policy.approval", got.Policy.Approval, "destructive"},
		{"policy.modules", got.Policy.Modules, "[**]"},
		{"policy.check_ranges", got.Policy.CheckRanges, "[10.0.0.0/8]"},
		{"policy.programs", got.Policy.Programs, "[/opt/acme/provision.sh]"},
		{"policy.hook", got.Policy.Hook, "[/bin/sh -c exit 0]"},
		{"policy.hook_timeout", got.Policy.HookTimeout, "30s"},
		{"policy.requester_keys", got.Policy.RequesterKeys, "[acme/**: age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p]"},
		{"policy.plain_sensitive", got.Policy.PlainSensitive, "true"},
		{"state.default", got.State.Default, "managed"},
		{"state.backend", got.State.Backend, "s3"},
		{"state.config", got.State.Config["s3"]["key"], "{workspace_id}.tfstate"},
		{"git.hosts app_id", app.AppID, "12345"},
		{"git.hosts app_installation_id", app.AppInstallationID, "67890"},
		{"git.hosts app_key_file", filepath.Base(app.AppKeyFile), "app.pem"},
		{"git.hosts repos", app.Repos, "[https://github.com/modules/*]"},
		{"git.hosts ssh_key_file", filepath.Base(corp.SSHKeyFile), "ssh_key"},
		{"git.hosts known_hosts_file", filepath.Base(corp.KnownHostsFile), "known_hosts"},
		{"git.ca_file", filepath.Base(got.Git.CAFile), "ca.crt"},
		{"git.timeout", got.Git.Timeout, "5m0s"},
		{"credentials", len(got.Credentials), "2"},
		{"credentials env_file", filepath.Base(got.Credentials[0].EnvFile), "env"},
		{"credentials aws_role_arn", got.Credentials[1].AWSRoleARN, "arn:aws:iam::123456789012:role/preview"},
		{"credentials_default", got.CredentialsDefault, "true"},
		{"identity_file", filepath.Base(got.IdentityFile), "identity"},
		{"engine.kind", got.Engine.Kind, "tofu"},
		{"run.timeout", got.Run.Timeout, "4h0m0s"},
		{"run.pass_env", got.Run.PassEnv, "[ACME_REGION]"},
		{"manual.notification_kind", got.Manual.NotificationKind, "slack"},
	} {
		if text := fmt.Sprint(tc.got); text != tc.want {
			t.Errorf("%s = %s, want %s", tc.what, text, tc.want)
		}
	}
}

// authority is a certificate of nobody's, for files that must hold one.
const authority = `-----BEGIN CERTIFICATE-----
bm9ib2R5
-----END CERTIFICATE-----
`

// Numbers of pools arrive as they stand in the values: Helm has all of a file as floats, whole
// ones are whole for the agent, and others are not cut.
func TestAgentGetsPools(t *testing.T) {
	t.Parallel()
	const values = `
config:
  pools:
    - {name: lab, kind: libvirt, hosts: {vm1: "unix:///run/libvirt/libvirt-sock"}, vm_ids: "100-100099", overcommit_cores: 1.5, overcommit_memory: 2}
    - name: desks
      kind: static
      workspaces: ["class/**"]
      machines: [{name: desk1, address: 10.0.0.5, ssh_port: 2222, cores: 4, memory: 1048576}]
`
	rendered, complaint := agentChart.template(t, "cluster: prod\nqueue: {url: 'https://trellis.example', tokenSecret: token}\npolicy: {repos: ['https://git.example/**']}\n"+values)
	if complaint != "" {
		t.Fatal(complaint)
	}
	got, err := start(t, decode(t, rendered))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Pools) != 2 {
		t.Fatalf("pools = %+v, want two", got.Pools)
	}
	lab, desk := got.Pools[0], got.Pools[1].Machines[0]
	if lab.VMIDs != "100-100099" || lab.OvercommitCores != 1.5 || lab.OvercommitMemory != 2 {
		t.Errorf("pool lab = %+v, want vm_ids 100-100099, overcommit_cores 1.5 and overcommit_memory 2", lab)
	}
	if desk.SSHPort != 2222 || desk.Cores != 4 || desk.Memory != 1048576 {
		t.Errorf("desk1 = %+v, want port 2222, 4 cores, 1048576 MiB", desk)
	}
}
