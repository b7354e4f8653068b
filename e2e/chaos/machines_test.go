package chaos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// speaks are the two ways in which a template's program is asked to make machines, each
// with an example that is shipped. Their cloud is a directory.
var speaks = map[string]struct{ example, commands string }{
	"lines": {"bash/fake-cloud", `command = ["./fake-cloud"]`},
	"once":  {"once/fake-cloud", "provision = [\"./fake-cloud\"]\n  terminate = [\"./fake-cloud\"]\n  idempotent = true"},
}

// slowly has the examples take a while for each of their steps, so that they can be killed
// at any of them. With the protocol they stop at a message where the cloud has a file that
// says so, until it has none. Runs may have a uid of their own each.
const slowly = `
umask 0
FAKE_CLOUD=$TEST_JOURNAL
jq() { sleep "0.0$((RANDOM % 10))"; command jq "$@"; }
sent=0
at_message() {
  case $request in *'"type":"describe"'* | *'"type":"plan"'*) return 0 ;; esac
  sent=$((sent + $2))
  [ -e "$FAKE_CLOUD/hold-$1-$sent" ] || return 0
  mv "$FAKE_CLOUD/hold-$1-$sent" "$FAKE_CLOUD/held"
  while [ -e "$FAKE_CLOUD/held" ]; do sleep 0.05; done
}
`

// machineWorks is works with an agent whose template makes machines in one workspace.
type machineWorks struct {
	*works
	own           *pgtest.Own
	agent         *site.Agent
	url, identity string
	cloud         string
}

func newMachines(t *testing.T, how string) *machineWorks {
	t.Helper()
	works, own := ownWorks(t, pgtest.Durable())
	w := &machineWorks{works: works, own: own, identity: works.IdentityFile(), cloud: works.journal} // every uid may write there
	w.agent = w.works.agent("one", 1, "")
	w.agent.ManageState(w.identity)
	w.agent.Start()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "provisioners", speaks[how].example))
	if err != nil {
		t.Fatal(err)
	}
	program := string(text)
	for _, change := range [][2]string{
		{"\nset -euo pipefail\n", "\nset -euo pipefail\n" + slowly},
		{"\nsend() {\n", "\nsend() {\n  at_message before 1\n  message \"$@\"\n  at_message after 0\n}\nmessage() {\n"},
		{"\nreport() {\n", "\nreport() {\n  at_message before 1\n"},
	} {
		changed := strings.Replace(program, change[0], change[1], 1)
		if changed == program && how == "lines" {
			t.Fatalf("the example has no %q any more", change[0])
		}
		program = changed
	}
	repo, _ := w.Git.Repo("machines", gittest.Files{
		"variables.tf": gittest.File("variable \"names\" { type = set(string) }\nvariable \"memory\" { type = number }\nvariable \"image\" { type = string }\n"),
		"tendril.hcl": gittest.File(fmt.Sprintf(`
provisioner "script" {
  speak = %q
  %s
  machine {
    for_each = var.names
    name     = each.key
    image    = var.image
    memory   = var.memory
  }
}
`, how, speaks[how].commands)),
		"fake-cloud": gittest.Executable(program),
	}, "v1")
	w.url = repo.URL
	return w
}

// wish is what one run is for.
type wish struct {
	operation string
	names     []string
	memory    int
	image     string
}

func (w *machineWorks) run(wish wish) (id uuid.UUID) {
	w.T.Helper()
	snapshot := site.SnapshotOf(w.url, "machines", map[string]any{"names": wish.names, "memory": wish.memory, "image": wish.image})
	id = uuid.New()
	w.Exec(w.T, "INSERT INTO public.provisions (id, cluster_id, operation, config_snapshot) VALUES ($1, $2, $3, $4)", id, w.Cluster, wish.operation, snapshot)
	return id
}

// succeed runs a wish, which must succeed, and counts what there is then.
func (w *machineWorks) succeed(after string, wish wish) {
	w.T.Helper()
	id := w.run(wish)
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		w.T.Errorf("the %s after %s = %s: %s, want SUCCESS\n%s", wish.operation, after, got, w.Message(id), w.Log(w.T, id))
	}
	w.countMachines(after, wish)
}

// script is a program of the template that is at work, and the run's process that has
// started it; of none both are 0.
func (w *machineWorks) script() (script, exec int) {
	w.T.Helper()
	below, err := process.Descendants(w.agent.Cmd.Process.Pid)
	if err != nil {
		w.T.Fatal(err)
	}
	for _, p := range below {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)) // it may have ended
		if strings.Contains(string(command), "/fake-cloud\x00") && slices.ContainsFunc(below, func(exec process.Info) bool {
			return exec.PID == p.Parent && exec.Parent == w.agent.Cmd.Process.Pid
		}) {
			return p.PID, p.Parent
		}
	}
	return 0, 0
}

// victims are who is killed while machines are made, changed and destroyed.
var victims = []string{"script", "exec", "agent", "database"}

// kill kills one of them. One that has ended by itself meanwhile was killed too late.
func (w *machineWorks) kill(victim string) {
	w.T.Helper()
	switch victim {
	case "script", "exec":
		script, exec := w.script()
		pid := script
		if victim == "exec" {
			pid = exec
		}
		if pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
			victim += ", too late"
		}
	case "agent":
		w.agent.Kill()
		w.agent.Start()
	case "database":
		w.own.Crash(w.T)
		<-time.After(rand.N(time.Second))
		_ = os.Remove(filepath.Join(w.cloud, "held")) // what is held goes on without it
		<-time.After(rand.N(time.Second))
		w.own.Start(w.T)
		w.reconnect()
	}
	counted.add("faults while a script makes machines: "+victim, 1)
}

// A process is killed at any moment while a script makes, changes and destroys machines.
// What exists after the next run is what is recorded: none is there twice, none is forgotten.
func TestMachinesOfAScript(t *testing.T) {
	t.Parallel()
	for how := range speaks {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newMachines(t, how)
			before := wish{"apply", []string{"a", "b"}, 1024, "debian-12"}
			w.succeed("nothing", before)
			drawn := rand.IntN(len(victims) * 3)
			for n := range fewer(1, 2, 50) {
				next, victim := before, victims[(drawn+n)%len(victims)]
				switch (drawn + n) % 3 {
				case 0: // others than before, but for one
					next.names = []string{fmt.Sprint("a", n), fmt.Sprint("b", n), before.names[0]}[rand.IntN(2):]
				case 1:
					next.memory = 1024 * (2 + n)
					if n%2 == 1 {
						next.image = fmt.Sprint("debian-", n)
					}
				case 2:
					next.operation = "destroy"
				}
				id := w.run(next)
				if rand.IntN(2) == 0 { // the programs' plans take as long as their applies
					w.awaitStage(id, "apply")
				}
				await(t, "a script", func() bool {
					script, _ := w.script()
					return script != 0 || w.over(id)
				})
				<-time.After(rand.N(time.Second)) // anywhere in what it does
				w.kill(victim)
				w.AwaitEnd(id)
				w.succeed("the "+victim+" was killed", next)
				if before = next; next.operation == "destroy" {
					before.operation = "apply"
				}
			}
			w.end(wish{"destroy", before.names, before.memory, before.image})
		})
	}
}

// A process is killed at each message of the protocol; see TestKilledAtEachMessage of package
// executor for the same without an agent and a database.
func TestKilledAtEachMessage(t *testing.T) {
	t.Parallel()
	w := newMachines(t, "lines")
	one := wish{"apply", []string{"a"}, 1024, "debian-12"}
	w.succeed("nothing", wish{"destroy", one.names, one.memory, one.image})
	type moment struct{ operation, at, victim string }
	var moments []moment
	for operation, messages := range map[string]int{"apply": 6, "destroy": 4} { // intent, two steps, machine, state, result
		at := []string{"after-1", fmt.Sprint("after-", messages)}
		for n := range messages {
			at = append(at, fmt.Sprint("before-", n+1))
		}
		for _, at := range at {
			for _, victim := range victims {
				moments = append(moments, moment{operation, at, victim})
			}
		}
	}
	rand.Shuffle(len(moments), func(i, j int) { moments[i], moments[j] = moments[j], moments[i] })
	there := false
	for _, m := range moments[:fewer(1, 3, len(moments))] {
		next := one
		if next.operation = m.operation; there != (m.operation == "destroy") {
			undo := one
			if !there {
				undo.operation = "apply"
			} else {
				undo.operation = "destroy"
			}
			w.succeed("nothing", undo)
		}
		if err := os.WriteFile(filepath.Join(w.cloud, "hold-"+m.at), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		id := w.run(next)
		await(t, m.operation+" to be held at "+m.at, func() bool {
			_, err := os.Stat(filepath.Join(w.cloud, "held"))
			return err == nil || w.over(id)
		})
		if w.over(id) {
			t.Fatalf("the %s was not held at %s: %s\n%s", m.operation, m.at, w.Status(t, id), w.Log(t, id))
		}
		w.kill(m.victim)
		_ = os.Remove(filepath.Join(w.cloud, "held")) // the database's is gone
		w.AwaitEnd(id)
		w.succeed(fmt.Sprintf("the %s was killed %s", m.victim, m.at), next)
		there = m.operation == "apply"
		counted.add("messages of the protocol at which something was killed", 1)
	}
	w.end(wish{"destroy", one.names, one.memory, one.image})
}

// over reports whether a run has ended.
func (w *machineWorks) over(id uuid.UUID) bool {
	w.T.Helper()
	status := w.Text(w.T, "SELECT status FROM public.provisions WHERE id = $1", id)
	return status != "QUEUED" && status != "PROCESSING"
}

// awaitStage waits until a run is in a stage, or over.
func (w *machineWorks) awaitStage(id uuid.UUID, stage string) {
	w.T.Helper()
	w.Await("its "+stage, `SELECT p.status NOT IN ('QUEUED', 'PROCESSING') OR coalesce(c.stage, '') = $2
		FROM public.provisions p LEFT JOIN tendril.claims c ON c.provision_id = p.id WHERE p.id = $1`, id, stage)
}

// end destroys all, and counts what is left.
func (w *machineWorks) end(destroy wish) {
	w.T.Helper()
	w.succeed("all that", destroy)
	w.agent.Terminate()
	w.countLeftovers(w.agent)
	w.countRows()
}

// countMachines compares what is in the cloud with what is recorded: by the mark that each
// machine has, in the sealed state; and by its id in the cloud, in the tables.
func (w *machineWorks) countMachines(after string, wish wish) {
	w.T.Helper()
	found, err := filepath.Glob(filepath.Join(w.cloud, "vm-*"))
	if err != nil {
		w.T.Fatal(err)
	}
	exist, marked, memory := []string{}, []string{}, map[string]int{}
	for _, path := range found {
		var m struct {
			ID       string
			Contract string `json:"contract_id"`
			Memory   int    // of "lines" alone
		}
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &m)
		}
		if err != nil {
			w.T.Fatal(err)
		}
		exist = append(exist, filepath.Base(path))
		mark := fmt.Sprint(m.ID, m.Contract, " ", filepath.Base(path))
		marked, memory[mark] = append(marked, mark), m.Memory
	}
	state, err := machines.Read(w.OpenState(w.T, "machines", 0, w.identity))
	if err != nil {
		w.T.Fatal(err)
	}
	kept, marks, names := []string{}, map[string]bool{}, []string{}
	for _, m := range state.Machines {
		mark := m.ID + " " + m.ExternalID
		kept, names, marks[m.ID] = append(kept, mark), append(names, m.Wanted.Name), true
		if m.InDoubt() || m.Status != "running" || memory[mark] != 0 && memory[mark] != m.Wanted.Memory {
			w.T.Errorf("after %s: the state has %s as %s of %d MiB, in doubt: %t, want it running, of %d MiB",
				after, m.Wanted.Name, m.Status, m.Wanted.Memory, m.InDoubt(), memory[mark])
		}
	}
	listed := strings.Fields(w.Text(w.T, "SELECT coalesce(string_agg(external_id || CASE status WHEN 'running' THEN '' ELSE '=' || status END, ' '), '') FROM public.machines WHERE status <> 'gone'"))
	resources := strings.Fields(w.Text(w.T, "SELECT coalesce(string_agg(external_id, ' '), '') FROM public.resources WHERE type = 'machine'"))
	for _, all := range [][]string{exist, marked, kept, listed, resources} {
		slices.Sort(all)
	}
	want := slices.Sorted(slices.Values(wish.names))
	if wish.operation == "destroy" {
		want = nil
	}
	if !slices.Equal(marked, kept) || !slices.Equal(exist, listed) || !slices.Equal(exist, resources) || !slices.Equal(names, want) || len(marks) != len(exist) {
		w.T.Errorf("after %s: the cloud has %q, the state %q, the tables %q and %q, want %q once in each", after, marked, kept, listed, resources, want)
	}
	counted.add("machines of scripts that were counted", len(exist))
}
