package charts

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// What the chart starts is started: the programs' own arguments, with the files
// that are mounted and the environment that is set, on a real database.
func TestTrellisRuns(t *testing.T) {
	t.Parallel()
	program := filepath.Join(built(t, "trellis"), "trellis")
	database := pgtest.OwnServer(t)
	for _, tc := range []struct{ name, values, scheme string }{
		{"least", trellisLeast, "http"},
		{"most", trellisMost, "http"},
		{"supabase and TLS", trellisLeast + "tls: {secretName: certificate}\nsignIn: {supabase: {url: 'https://abc.supabase.co', keySecret: {name: supabase}, provider: github}}\n", "https"},
	} {
		rendered, complaint := trellis.template(t, tc.values)
		if complaint != "" {
			t.Fatal(complaint)
		}
		all := decode(t, rendered)
		for _, o := range append(all.of("Job"), all.of("CronJob")...) { // in this order
			if out, err := container(t, program, podSpec(o), database.URL).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v fails: %v\n%s", tc.name, o.get("metadata", "name"), err, out)
			}
		}
		t.Run(tc.name, func(t *testing.T) {
			serves(t, container(t, program, podSpec(all.one(t, "Deployment")), database.URL), all.one(t, "Deployment"), tc.scheme)
		})
	}
	t.Run("database by TLS", func(t *testing.T) { reachesByTLS(t, program, encrypted(t, database.URL)) })
	t.Run("an older version", func(t *testing.T) { goesBack(t, program, database.URL) })
	t.Run("no Secret", func(t *testing.T) { saysWhatIsMissing(t, program) })
}

// built are programs of ours in a directory, which others may enter.
func built(t *testing.T, programs ...string) (dir string) {
	t.Helper()
	dir = pgtest.Dir(t)
	for _, program := range programs {
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, program), "../cmd/"+program)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", program, err, out)
		}
	}
	return dir
}

// "helm test" deploys for real: its pod's process here, at all of Tendril, ends as
// its run does.
func TestHelmTestDeploys(t *testing.T) {
	t.Parallel()
	programs, data := built(t, "trellis", "tendril"), pgtest.Dir(t)
	program := filepath.Join(programs, "trellis")
	all := exec.CommandContext(t.Context(), program, "up", "--data-dir", data, "--listen", "127.0.0.1:0")
	var said outputtest.Buffer
	all.Stdout, all.Stderr = &said, &said
	all.Cancel = func() error { return all.Process.Signal(syscall.SIGINT) }
	if err := all.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = all.Wait() // what it says tells
	}()
	t.Cleanup(func() { <-ended }) // the test's context is over by then
	environment := map[string]string{}
	patience.AwaitShowing(t, "trellis up to answer", said.String, func() bool {
		out, err := exec.CommandContext(t.Context(), program, "env", "--data-dir", data).Output()
		for line := range strings.Lines(string(out)) {
			name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
			environment[name] = strings.Trim(value, `'"`)
		}
		return err == nil && environment["TRELLIS_TOKEN"] != ""
	})
	for _, tc := range []struct {
		name, values string
		ends         bool
		says         string
	}{
		{"as it is", "", true, "Hello, helm test!"},
		{"others' names", "cluster: local, workspace: acme/helm, variables: {name: 'Ada: #1', greeting: Welcome}", true, "Welcome, Ada: #1!"},
		{"a run that fails", "variables: {name: ''}", false, "The name must have 1 to 100 characters"},
		{"no such template", "template: none-such", false, "none-such"},
	} {
		rendered, complaint := trellis.template(t, "publicURL: "+environment["TRELLIS_URL"]+"\ndatabase: {urlSecret: {name: database}}\ntest: {tokenSecret: {name: token}, "+tc.values+"}\n")
		if complaint != "" {
			t.Fatal(complaint)
		}
		if no := nonconforming(t, oldestKubernetes, rendered); no != "" {
			t.Errorf("%s: %s", tc.name, no)
		}
		pod := decode(t, rendered).one(t, "Pod")
		pod.want(t, "test", "metadata", "annotations", "helm.sh/hook")
		for _, wrong := range unrestricted(pod) {
			t.Errorf("%s: the pod is unfit for a namespace of the restricted profile: %s", tc.name, wrong)
		}
		if out, err := container(t, program, podSpec(pod), environment["TRELLIS_TOKEN"]).CombinedOutput(); (err == nil) != tc.ends || !strings.Contains(string(out), tc.says) {
			t.Errorf("%s: the test ends with %v, want success: %t, and %q said:\n%s", tc.name, err, tc.ends, tc.says, out)
		}
	}
}

// serves has the server answer each of its probes, and end when it is told to.
func serves(t *testing.T, cmd *exec.Cmd, deployment object, scheme string) {
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	urls := map[string]string{}
	for lines := bufio.NewScanner(log); len(urls) < 2; {
		if !lines.Scan() {
			t.Fatalf("%s ends before it serves: %v\n%s", cmd.Args, cmd.Wait(), said.String())
		}
		said.WriteString(lines.Text() + "\n")
		var line struct{ Msg, URL string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Errorf("a line of the log is no JSON: %s", lines.Text())
		}
		if line.URL != "" {
			urls[line.Msg] = line.URL
		}
	}
	if people := urls["serving people and agents"]; !strings.HasPrefix(people, scheme+"://") {
		t.Errorf("people and agents are served at %q, want %s", people, scheme)
	}
	for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		path := deployment.get("spec", "template", "spec", "containers", 0, probe, "httpGet", "path")
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, urls["serving metrics and probes"]+fmt.Sprint(path), nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatalf("%s: %v", probe, err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s: GET %v = %s, want 200", probe, path, answer.Status)
		}
	}
	grace := deployment.get("spec", "template", "spec", "terminationGracePeriodSeconds").(int)
	killed := time.AfterFunc(time.Duration(grace)*time.Second, func() { _ = cmd.Process.Kill() })
	defer killed.Stop()
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v, want an end of its own within %d s", err, grace)
	}
}

// container is the process of a pod's only container, here: what is mounted lies
// in a directory of the test's, secret in the file of its database's URL or its
// token, and ports are any that are free.
func container(t *testing.T, program string, pod any, secret string) *exec.Cmd {
	t.Helper()
	root := t.TempDir()
	of := follow(pod, "containers", 0)
	mounts, _ := follow(of, "volumeMounts").([]any)
	for _, mount := range mounts {
		mountVolume(t, follow(pod, "volumes", follow(mount, "name")), filepath.Join(root, fmt.Sprint(follow(mount, "mountPath"))), secret)
	}
	here := strings.NewReplacer("/etc/trellis/", root+"/etc/trellis/", "--listen=:8080", "--listen=127.0.0.1:0", "--metrics-listen=:9090", "--metrics-listen=127.0.0.1:0")
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program)
	args, _ := follow(of, "args").([]any)
	for _, arg := range args {
		cmd.Args = append(cmd.Args, here.Replace(fmt.Sprint(arg)))
	}
	cmd.Env = []string{"HOME=" + root, "TMPDIR=" + root}
	variables, _ := follow(of, "env").([]any)
	for _, v := range variables {
		cmd.Env = append(cmd.Env, fmt.Sprintf("%v=%s", follow(v, "name"), here.Replace(fmt.Sprint(follow(v, "value")))))
	}
	return cmd
}

// mountVolume writes the files of a volume, as a kubelet does: behind links, and
// readable by the pod's group where the chart says so.
func mountVolume(t *testing.T, volume any, dir, secret string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	items, _ := follow(volume, "secret", "items").([]any)
	for _, item := range items {
		files[fmt.Sprint(follow(item, "path"))] = base64.StdEncoding.EncodeToString(make([]byte, 32)) + "\n" // good for any key
	}
	switch follow(volume, "name") {
	case "database":
		files["url"] = secret + "\n"
		if secret == "" && follow(volume, "secret", "optional") == true {
			delete(files, "url")
		}
	case "test":
		files["token"] = secret + "\n"
	case "ca":
		files["rds.pem"], _ = certificate(t)
	case "tls":
		files["tls.crt"], files["tls.key"] = certificate(t)
	}
	mode := os.FileMode(0o644)
	if declared, ok := follow(volume, "secret", "defaultMode").(int); ok {
		mode = os.FileMode(declared)
	}
	current := filepath.Join(dir, "..1")
	if err := errors.Join(os.Mkdir(current, 0o755), os.Symlink("..1", filepath.Join(dir, "..data"))); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := errors.Join(os.WriteFile(filepath.Join(current, name), []byte(content), mode), os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
}

// certificate is that of Go's own test servers.
func certificate(t *testing.T) (chain, key string) {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	pair := server.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}
