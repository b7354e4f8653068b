package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// TestMain is the child as well, and children that misbehave.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "inspect-template":
			syscall.Exit(Child(os.Stdin, os.Stdout)) // os.Exit would wait a second for the race detector
		case "eat-memory":
			if err := confine(); err != nil {
				panic(err)
			}
			var all [][]byte
			for range 64 {
				all = append(all, slices.Repeat([]byte{1}, 64<<20))
			}
			fmt.Println(`{"commit": "still there"}`, len(all))
			os.Exit(0)
		case "hang":
			time.Sleep(time.Hour) // Go would end a process in which nobody can go on
		}
	}
	pgtest.Main(m)
}

// site is a database, a git server, and an admin.
type site struct {
	*queuetest.World
	git      *gittest.Server
	database *store.Database
	admin    *store.Store
	options  Options
}

func newSite(t *testing.T) *site {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{World: queuetest.NewWorld(t), git: gittest.NewServer(t)}
	if s.database, err = store.Connect(t.Context(), s.URL, 4); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.database.Close)
	user := uuid.New()
	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, user)
	s.admin = s.database.As(user)
	s.options = Options{Command: []string{self, "inspect-template"}, CAFile: s.git.CAFile, Private: true, Timeout: 2 * time.Minute,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	return s
}

// look saves a version and returns what became of it.
func (s *site) look(t *testing.T, o Options, repo, version string) store.Inspection {
	t.Helper()
	if err := s.admin.InspectTemplate(t.Context(), s.Org, repo, version, ""); err != nil {
		t.Fatal(err)
	}
	if err := New(s.database, o).once(t.Context()); err != nil {
		t.Fatalf("once() = %v, want nil", err)
	}
	got, err := s.admin.TemplateVariables(t.Context(), s.Org, repo, version, "")
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// What is public is looked at: variables, commit and tags are stored. What is
// wrong with it is said in words that help, and what an agent may reach is left
// to one.
func TestInspect(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	good, commit := s.git.Repo("good", gittest.Text(map[string]string{"main.tf": `
		variable "region" { description = "Where" }
		variable "size" {
			type = number
			default = 3
		}
		variable "password" {
			sensitive = true
			default = "hunter2!"
		}`, "tendril.hcl": `title = "A network"
		description = "Where all else lies."
		icon = "network"`}), "v1")
	good.Tag("v1.10.0", commit)
	good.Tag("v1.9.0", commit)
	got := s.look(t, s.options, good.URL, "v1")
	if got.Status != store.InspectionDone || !got.Inspected || got.Commit == nil || *got.Commit != commit || len(got.Variables) != 3 {
		t.Fatalf("inspection = %+v, want three variables of %s", got, commit)
	}
	if v := got.Variables[1]; v.Name != "region" || !v.Required || v.Description != "Where" {
		t.Errorf("variable = %+v, want region, required", v)
	}
	if v := got.Variables[0]; !v.Sensitive || v.Default != nil || v.Required {
		t.Errorf("a sensitive variable = %+v, want no default told", v)
	}
	if want := (provision.About{Title: "A network", Description: "Where all else lies.", Icon: "network", Provisioner: "terraform"}); got.About == nil || *got.About != want {
		t.Errorf("about = %+v, want %+v", got.About, want)
	}
	versions, err := s.admin.TemplateVersions(t.Context(), s.Org, strings.TrimSuffix(good.URL, ".git"))
	var names []string
	for _, v := range versions {
		names = append(names, v.Version)
	}
	if want := []string{"v1.10.0", "v1.9.0", "v1"}; err != nil || !slices.Equal(names, want) || versions[2].UsedAt == nil {
		t.Errorf("TemplateVersions() = %+v, %v, want %v, the last one used", versions, err, want)
	}

	// Of a template whose machines get places, the file is kept for previews.
	const placed = "provisioner \"machine\" {\n machine {\n name = \"a\"\n pool = \"lab\"\n cores = 1\n memory = 1\n }\n}\n"
	machine, _ := s.git.Repo("machine", gittest.Text(map[string]string{"variables.tf": "", "tendril.hcl": placed}), "v1")
	s.look(t, s.options, machine.URL, "v1")
	if known, err := s.admin.PlacedTemplate(t.Context(), s.Org, machine.URL, "v1", ""); err != nil || known == nil || known.File == nil || *known.File != placed {
		t.Errorf("PlacedTemplate() = %+v, %v, want its file", known, err)
	}

	// It moves.
	good.Git("tag", "-f", "v1", good.Commit(gittest.Text(map[string]string{"main.tf": `variable "other" {}`})))
	if got := s.look(t, s.options, good.URL, "v1"); got.Status != store.InspectionFailed || got.Reason != "tag_moved" || len(got.Variables) != 3 {
		t.Errorf("inspection of a tag that moved = %+v, want tag_moved, and what was known", got)
	}

	broken, _ := s.git.Repo("broken", gittest.Text(map[string]string{"main.tf": `variable "a" {`}), "v1")
	deep, _ := s.git.Repo("deep", gittest.Text(map[string]string{"main.tf": "a = " + strings.Repeat("(", 256<<10)}), "v1")
	large, _ := s.git.Repo("large", gittest.Text(map[string]string{"main.tf": strings.Repeat("# a\n", 2<<20)}), "v1")
	outside, _ := s.git.Repo("outside", gittest.Files{"main.tf": gittest.Symlink("/dev/zero")}, "v1")
	empty, _ := s.git.Repo("empty", gittest.Text(map[string]string{"main.tf": ``}), "v1")
	for _, test := range []struct{ repo, version, status, reason, says string }{
		{good.URL, "v3", store.InspectionFailed, "version_not_found", `has no tag "v3"`},
		{broken.URL, "v1", store.InspectionFailed, "template_invalid", "main.tf:1"},
		{deep.URL, "v1", store.InspectionFailed, "template_invalid", "main.tf"},
		{large.URL, "v1", store.InspectionFailed, "template_invalid", "is too large"},
		{outside.URL, "v1", store.InspectionFailed, "path_refused", "leads out of the checkout"},
		{empty.URL, "v1", store.InspectionDone, "", ""},
		{s.git.URL + "/missing", "v1", store.InspectionHanded, "checkout_failed", "so an agent"},
		{"ssh://git@git.example/a/b", "v1", store.InspectionHanded, "repo_refused", "no credentials"},
		{"git@git.example:a/b", "v1", store.InspectionHanded, "repo_refused", "no credentials"},
		{"file:///etc", "v1", store.InspectionHanded, "repo_refused", "no credentials"},
	} {
		got := s.look(t, s.options, test.repo, test.version)
		if got.Status != test.status || got.Reason != test.reason || !strings.Contains(got.Problem, test.says) {
			t.Errorf("inspection of %s %s = %+v, want %s, %s, %q", test.repo, test.version, got, test.status, test.reason, test.says)
		}
	}
}

// A child that takes too much is the only one that ends.
func TestHostileChild(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for how, want := range map[string]string{"eat-memory": "template_invalid", "hang": "checkout_failed"} {
		o := s.options
		o.Command, o.Timeout = []string{o.Command[0], how}, 2*time.Second
		if how == "eat-memory" {
			o.Timeout = time.Minute
		}
		if how == "hang" {
			o.Timeout = -4 * time.Second // and the five that a child has to end by itself
		}
		got := s.look(t, o, s.git.URL+"/"+how, "v1")
		if got.Reason != want || got.Inspected {
			t.Errorf("inspection by a child that would %s = %+v, want %s", how, got, want)
		}
	}
}

// A child whose trellis was killed does not stay, nor does what it fetched.
func TestChildOfNobody(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() //nolint:errcheck // of the test
	dir := filepath.Join(t.TempDir(), "inspection")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	given, err := json.Marshal(question{Address: "https://" + silent.Addr().String() + "/x.git", Version: "v1", Dir: dir, Private: true, Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := patience.Context(t.Context(), time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "inspect-template")
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdin.Write(given); err != nil {
		t.Fatal(err)
	}
	fetching, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer fetching.Close() //nolint:errcheck // of the test
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil || ctx.Err() != nil {
		t.Errorf("the child ended with %v, want a failure", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("what it fetched is still there (%v)", err)
	}
}

// Nobody reaches an internal network by the URL of a template.
func TestPublicAddressesOnly(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	reached := make(chan struct{}, 1)
	go func() {
		if c, err := listener.Accept(); err == nil {
			reached <- struct{}{}
			_ = c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	if c, err := dialPublic(t.Context(), "tcp", "localhost:"+port); err == nil {
		_ = c.Close()
		t.Error("dialPublic(localhost) connects, want it refused")
	}
	s := newSite(t)
	o := s.options
	o.Private = false
	repo, _ := s.git.Repo("inside", gittest.Text(map[string]string{"main.tf": ``}), "v1")
	got := s.look(t, o, repo.URL, "v1")
	if got.Status != store.InspectionHanded || !strings.Contains(got.Problem, "no address of the Internet") {
		t.Errorf("inspection of %s = %+v, want it left to an agent, saying why", repo.URL, got)
	}
	select {
	case <-reached:
		t.Error("the listener was reached")
	default:
	}
}

// Several share the work, and each inspection is one's.
func TestSeveralInspectors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	repo, commit := s.git.Repo("good", gittest.Text(map[string]string{"main.tf": `variable "a" {}`}), "v0")
	const many = 6
	for n := range many {
		version := fmt.Sprintf("v%d", n)
		if n > 0 {
			repo.Tag(version, commit)
		}
		if err := s.admin.InspectTemplate(t.Context(), s.Org, repo.URL, version, ""); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	for range 2 {
		go func() {
			New(s.database, s.options).Run(ctx)
			ended <- struct{}{}
		}()
	}
	tick, deadline := time.NewTicker(50*time.Millisecond), patience.After(2*time.Minute)
	defer tick.Stop()
	for s.Text(t, "SELECT count(*) FILTER (WHERE status = 'done') FROM public.template_inspections") != fmt.Sprint(many) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("inspections = %s, want all done", s.Text(t, "SELECT jsonb_agg(to_jsonb(i)) FROM public.template_inspections i"))
		}
	}
	cancel()
	<-ended
	<-ended
}

// While one server after the other keeps a trellis busy, agents look at what waits.
func TestBusyInspectorHands(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	o := s.options
	o.Command, o.Timeout = []string{o.Command[0], "hang"}, -4*time.Second // and the five that a child has to end by itself
	for _, version := range []string{"v1", "v2"} {
		if err := s.admin.InspectTemplate(t.Context(), s.Org, s.git.URL+"/slow", version, ""); err != nil {
			t.Fatal(err)
		}
	}
	agent := queuetest.NewAgent("one")
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: s.URL, ListenURL: "off", Token: s.Token, Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "UPDATE public.template_inspections SET requested_at = now() - interval '2 minutes' WHERE version = 'v2'")
	if err := New(s.database, o).once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.Text(t, "SELECT concat_ws(' ', status, problem_code) FROM public.template_inspections WHERE version = 'v2'"); got != "queued" {
		t.Errorf("what has waited for two minutes is %s, want it queued for an agent, and not to have its turn here", got)
	}
}

// A repository with very many tags is looked at like any other; the newest of them
// are kept.
func TestManyTags(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	repo, commit := s.git.Repo("many", gittest.Text(map[string]string{"main.tf": `variable "a" {}`}), "v1")
	packed := []byte("# pack-refs with: peeled fully-peeled sorted\n")
	for n := range 40_000 {
		packed = fmt.Appendf(packed, "%s refs/tags/release-of-a-module-with-a-long-name-%06d\n", commit, n)
	}
	if err := os.WriteFile(filepath.Join(repo.Dir, "packed-refs"), packed, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := s.look(t, s.options, repo.URL, "v1"); got.Status != store.InspectionDone || len(got.Variables) != 1 {
		t.Errorf("inspection = %+v, want it done", got)
	}
	if got := s.Text(t, "SELECT jsonb_array_length(tags) FROM public.template_tags"); got != "500" {
		t.Errorf("%s tags are kept, want 500", got)
	}
}
