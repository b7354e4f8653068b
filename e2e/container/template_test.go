package container

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

// counting prints numbered lines, 20 a second, until it is told to stop, and
// then how many there were.
const counting = `
resource "terraform_data" "before" {}
resource "terraform_data" "slow" {
  depends_on       = [terraform_data.before]
  triggers_replace = timestamp()
  provisioner "local-exec" {
    command = "n=0; while [ ! -e /tmp/go ]; do n=$((n+1)); echo \"line $n.\"; echo $n >/tmp/count; sleep 0.05; done; echo \"printed $n lines.\""
  }
}
`

// countingRepo serves the template counting and returns its URL.
func (a *agent) countingRepo() string {
	a.w.t.Helper()
	repo, _ := a.server.Repo("counting", gittest.Text(map[string]string{"main.tf": counting}), "v1")
	return repo.URL
}

// letGo ends the counting of what runs, or begins, in the agent's container.
func (a *agent) letGo() {
	a.w.t.Helper()
	if code, out := a.exec("touch", "/tmp/go"); code != 0 {
		a.w.t.Fatalf("touch = %d: %s", code, out)
	}
}

// count is how many lines have been printed so far.
func (a *agent) count() (n int) {
	a.w.t.Helper()
	patience.Await(a.w.t, "a number of lines", func() bool { // now and then it is being written
		_, text := a.exec("cat", "/tmp/count")
		var err error
		n, err = strconv.Atoi(strings.TrimSpace(text))
		return err == nil
	})
	return n
}

// awaitCount waits until more lines have been printed.
func (a *agent) awaitCount(n int) {
	a.w.t.Helper()
	patience.Await(a.w.t, "line "+strconv.Itoa(n), func() bool { return a.count() >= n })
}

var ( // in what runlog.Printed answers
	numbered = regexp.MustCompile(`line(\d+)\.`)
	printed  = regexp.MustCompile(`printed(\d+)lines\.`)
)

// wantCounted checks that a log has each numbered line once, in order, and returns how
// many there are. A kill may reach the script before the engine, which then shows once
// more what the script had printed: only the script's own lines count.
func wantCounted(t testing.TB, log string) int {
	t.Helper()
	found := numbered.FindAllStringSubmatch(runlog.Printed(log), -1)
	for i, match := range found {
		if match[1] != strconv.Itoa(i+1) {
			t.Errorf("numbered line %d of the log is %q", i+1, match[0])
			break
		}
	}
	return len(found)
}

// wantAllCounted checks that no line is missing of those that were printed.
func wantAllCounted(t testing.TB, log string) {
	t.Helper()
	total := printed.FindStringSubmatch(runlog.Printed(log))
	if got := wantCounted(t, log); total == nil || total[1] != strconv.Itoa(got) {
		t.Errorf("the log has %d numbered lines and says %v", got, total)
	}
}

// helloRepo serves the sample template hello, in the directory hello.
func (a *agent) helloRepo() string {
	a.w.t.Helper()
	files := map[string]string{}
	dir := filepath.Join(root(), "templates", "hello")
	entries, err := os.ReadDir(dir)
	if err != nil {
		a.w.t.Fatal(err)
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			a.w.t.Fatal(err)
		}
		files["hello/"+entry.Name()] = string(text)
	}
	repo, _ := a.server.Repo("samples", gittest.Text(files), "v1")
	return repo.URL
}
