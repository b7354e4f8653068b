package console_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/tendril-run/tendril/internal/controlplane/console"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

const publishedChart = "oci://ghcr.io/tendril-run/charts/tendril"

// render carries out a command "helm install" as "helm template" of the chart
// beside us.
func render(t *testing.T, command string) string {
	t.Helper()
	args := strings.Fields(strings.ReplaceAll(command, "\\\n", " "))
	if len(args) < 4 || args[0] != "helm" || args[1] != "install" || args[3] != publishedChart {
		t.Fatalf("the command is %q, want helm install NAME %s …", command, publishedChart)
	}
	args[1], args[3] = "template", "../../../charts/tendril"
	out, err := exec.CommandContext(t.Context(), pgtest.Tool(t, "helm"), args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("the chart refuses %q: %v\n%s", command, err, out)
	}
	return string(out)
}

// What the console has people type must be what the chart takes, flag by flag.
func TestInstallCommandFitsTheChart(t *testing.T) {
	t.Parallel()
	for _, cluster := range []string{"prod", "2024", "true", "0x10", "edge.eu-1_b"} {
		shown := console.NewInstallation("https://trellis.example:8443", cluster)
		rendered := render(t, shown.Helm)
		for _, want := range []string{
			`url = "https://trellis.example:8443"`,
			`value: "` + cluster + `.$(POD_NAME)"`,
		} {
			if !strings.Contains(rendered, want) {
				t.Errorf("%s renders nothing with %q:\n%s", shown.Helm, want, rendered)
			}
		}
		// The Secret that the commands before it make is the one that is mounted.
		secret := regexp.MustCompile(`kubectl create secret generic (\S+) --namespace (\S+) \\\n  --from-file=(\S+)=/dev/stdin`).FindStringSubmatch(shown.Secret)
		if secret == nil {
			t.Fatalf("%q makes no Secret", shown.Secret)
		}
		mounted := regexp.MustCompile(fmt.Sprintf(`- secret:\n +name: "%s"\n( +#.*\n)*( +optional: true\n)? +items:\n +- key: "?%s"?\n`, secret[1], secret[3]))
		if !mounted.MatchString(rendered) {
			t.Errorf("the pod mounts no Secret %s with %s:\n%s", secret[1], secret[3], rendered)
		}
		if !strings.Contains(rendered, "namespace: "+secret[2]+"\n") || !strings.Contains(shown.Secret, "kubectl create namespace "+secret[2]+"\n") {
			t.Errorf("the Secret is made in namespace %s, the agent elsewhere", secret[2])
		}
	}
}

// The page shows those very words.
func TestInstallCommandOnThePage(t *testing.T) {
	t.Parallel()
	e := newEstate(t)
	page := html.UnescapeString(e.get(t, e.admin, "/clusters/prod"))
	want := console.NewInstallation("https://trellis.example", "prod")
	for _, command := range []string{want.Join, want.Secret, want.Helm} {
		if !strings.Contains(page, command) {
			t.Errorf("GET /clusters/prod lacks %q", command)
		}
	}
}
