package chaos

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// sixty is a template of sixty resources, each of which writes down that it was
// made. Once so many of them are, the others wait until they may go on. One that was
// tainted is made a second time, and counts once.
const sixty = `
variable "journal" { type = string }
variable "stop" {
  type    = number
  default = 60
}
variable "padding" {
  type    = number
  default = 0
}
variable "gate" {
  type    = string
  default = ""
}
resource "terraform_data" "each" {
  for_each = toset([for n in range(60) : tostring(n)])
  input    = join("", [for n in range(var.padding) : "${each.key} is as large as sixty-four bytes ----------------------"])
  provisioner "local-exec" {
    command = <<-EOT
      umask 0
      if [ "$(sort -u "$J" 2>/dev/null | wc -l)" -ge ${var.stop} ]; then while [ ! -e "$J.go" ]; do sleep 0.05; done; fi
      sleep 0.03
      echo ${each.key} >> "$J"
    EOT
    environment = { J = var.journal }
  }
}
output "gate" { value = var.gate == "" ? "" : file(var.gate) }
`

// many is a workspace of the template, and the file where it is written down
// what was made.
type many struct {
	*works
	t        *testing.T
	repo     string
	name     string
	engine   string
	identity string
	journal  string
	vars     map[string]any // beside the journal
	// tainted was at one time: it may be made a second time.
	tainted []string
}

// many makes a workspace of the template.
func (w *works) many(t *testing.T, name, identity string) *many {
	t.Helper()
	return &many{
		works: w, t: t, repo: w.Template("sixty-"+name, map[string]string{"main.tf": sixty}), name: name, engine: "terraform",
		identity: identity, journal: filepath.Join(w.journal, name),
	}
}

// queue queues an operation, with vars of this one alone.
func (m *many) queue(operation string, vars map[string]any) (id uuid.UUID) {
	m.t.Helper()
	given := map[string]any{"journal": m.journal}
	maps.Copy(given, m.vars)
	maps.Copy(given, vars)
	snapshot, err := json.Marshal(map[string]any{
		"template_source": map[string]any{"repo": m.repo, "version": "v1"}, "workspace": m.name,
		"terraform_vars": given, "terraform": map[string]any{"engine": m.engine},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	err = m.Conn.QueryRow(m.t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot, operation) VALUES ($1, $2, $3) RETURNING id",
		m.Cluster, string(snapshot), operation).Scan(&id)
	if err != nil {
		m.t.Fatal(err)
	}
	return id
}

func (m *many) deploy() uuid.UUID {
	m.t.Helper()
	return m.queue("apply", nil)
}

// goOn has those that wait go on.
func (m *many) goOn() {
	m.t.Helper()
	if err := os.WriteFile(m.journal+".go", nil, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// made is how often each resource was made.
func (m *many) made() map[string]int {
	m.t.Helper()
	text, err := os.ReadFile(m.journal)
	if err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	times := map[string]int{}
	for _, name := range strings.Fields(string(text)) {
		times[name]++
	}
	return times
}

// awaitMade waits until so many were made.
func (m *many) awaitMade(n int) {
	m.t.Helper()
	await(m.t, fmt.Sprintf("%d resources", n), func() bool { return len(m.made()) >= n })
}

// compare fails the test unless the state in the database lists exactly what was
// made, and public.resources what the state lists. Of what was being made when
// its engine was interrupted nobody can say more than that it may be there: the
// state has it tainted.
func (m *many) compare(when string) (listed, tainted int) {
	m.t.Helper()
	state, made := m.ManagedState(m.t, m.name, m.identity), m.made()
	for name := range made {
		// One that was tainted is taken away before it is made again, and the next
		// interrupt may come in between.
		if _, listed := state[name]; !listed && !slices.Contains(m.tainted, name) {
			m.t.Errorf("%s: %s was made, and the state does not list it", when, name)
		}
	}
	for name, instance := range state {
		if instance.Tainted {
			tainted++
			m.tainted = append(m.tainted, name)
		} else if made[name] == 0 {
			m.t.Errorf("%s: the state lists %s, which was not made", when, name)
		}
	}
	recorded := strings.Fields(m.Text(m.t, `SELECT coalesce(string_agg(substring(address from '"(.*)"'), ' '), '') FROM public.resources r
		JOIN public.workspaces w ON w.id = r.workspace_id WHERE w.name = $1`, m.name))
	slices.Sort(recorded)
	if want := slices.Sorted(maps.Keys(state)); !slices.Equal(recorded, want) {
		m.t.Errorf("%s: public.resources lists %v, the state %v", when, recorded, want)
	}
	counted.add("managed states compared with what was made", 1)
	return len(state), tainted
}

// planned fails the test unless a plan comes to its end and is about what is
// missing, and nothing else.
func (m *many) planned(when string) {
	m.t.Helper()
	listed, tainted := m.compare(when)
	id := m.queue("plan", nil)
	if got := m.AwaitEnd(id); got != "SUCCESS" {
		m.t.Errorf("%s: the next plan = %s: %s, want SUCCESS", when, got, m.Message(id))
		return
	}
	got := m.Text(m.t, "SELECT concat_ws(' ', plan_summary -> 'add', plan_summary -> 'replace', plan_summary -> 'change', plan_summary -> 'destroy') FROM public.provisions WHERE id = $1", id)
	if want := fmt.Sprint(60-listed, tainted, 0, 0); got != want {
		m.t.Errorf("%s: the next plan would add, replace, change and destroy %s, want %s", when, got, want)
	}
	if listed == 60 && tainted == 0 && !strings.Contains(m.Log(m.t, id), "No changes") {
		m.t.Errorf("%s: the plan does not say that there are no changes", when)
	}
}

// finish makes the rest, and fails the test if anything but what was tainted was
// made twice.
func (m *many) finish(when string) {
	m.t.Helper()
	m.compare(when)
	m.goOn()
	if id := m.deploy(); m.AwaitEnd(id) != "SUCCESS" {
		m.t.Errorf("%s: the next deploy = %s: %s, want SUCCESS", when, m.Status(m.t, id), m.Message(id))
	}
	for name, times := range m.made() {
		if times > 1 && !slices.Contains(m.tainted, name) {
			m.t.Errorf("%s: %s was made %d times", when, name, times)
		}
	}
	if got := len(m.made()); got != 60 {
		m.t.Errorf("%s: made %d of 60", when, got)
	}
	m.planned("after what followed: " + when)
}

// A resource that was made twice counts once: counted twice, it has the others wait
// before as many are made as the test waits for, and both wait for ever.
func TestGateCountsEachResourceOnce(t *testing.T) {
	t.Parallel()
	_, rest, _ := strings.Cut(sixty, "<<-EOT\n")
	command, _, found := strings.Cut(rest, "EOT\n")
	if !found {
		t.Fatal("the template has no command")
	}
	journal := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(journal, []byte("1\n1\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := patience.Context(t.Context(), 10*time.Second)
	defer cancel()
	script := exec.CommandContext(ctx, "sh", "-c", strings.NewReplacer("${var.stop}", "3", "${each.key}", "3").Replace(command))
	script.Env = append(os.Environ(), "J="+journal)
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("two of three resources are made, and the third waits: %v %s", err, out)
	}
	if text, err := os.ReadFile(journal); err != nil || string(text) != "1\n1\n2\n3\n" {
		t.Errorf("journal = %q, %v, want the third resource in it", text, err)
	}
}
