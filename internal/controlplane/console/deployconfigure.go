package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

const (
	// searchedFrom is how many there are before a search is offered: fewer are seen
	// at once.
	searchedFrom = 9
	// mostChoices are listed; the search finds the others.
	mostChoices = 60
)

// choices are the clusters or templates of a step that meet the words searched
// for, as many as are listed.
type choices struct {
	Words   string
	Places  []store.Place
	Entries []store.Template
	All     int // there are without the words
	Search  bool
	More    bool // than are listed
}

// Count is how many are listed.
func (c choices) Count() int { return len(c.Places) + len(c.Entries) }

// wordsOf is what a template is found by: its name, and its other fields.
func wordsOf(e store.Template) (name, rest string) {
	return e.Name, strings.Join([]string{e.Version, e.Description, e.Repo, e.Path}, "\n")
}

// choose finds those in which every word stands, whatever its case: first those
// that have them in their name, else in their order.
func choose[T any](all []T, words string, says func(T) (name, rest string)) (found []T) {
	wanted := strings.Fields(strings.ToLower(words))
	var behind []T
	for _, one := range all {
		name, rest := says(one)
		name = strings.ToLower(name)
		text := name + "\n" + strings.ToLower(rest)
		switch {
		case !slices.ContainsFunc(wanted, func(w string) bool { return !strings.Contains(name, w) }):
			found = append(found, one)
		case !slices.ContainsFunc(wanted, func(w string) bool { return !strings.Contains(text, w) }):
			behind = append(behind, one)
		}
	}
	return append(found, behind...)
}

// mostWorkspaces are offered to be chosen from; any other can be typed.
const mostWorkspaces = 100

// configureStep is the form of a deploy. Without script it is the snapshot as
// JSON; with it, deploy.js draws a form from what is declared, next to the JSON.
type configureStep struct {
	Snapshot string // JSON, for people
	// Posted is true when the snapshot is what has just been sent and refused: it
	// goes before what the browser has kept.
	Posted   bool
	Problems []problem
	// Key is what variables are sealed to, with its fingerprint; "" for none yet.
	Key, Fingerprint string
	Workspaces       []string
	Versions         []store.TemplateVersion
	declared
	// Places is where the machines of the template can be made; nil where it makes none.
	Places *poolOffers
}

// Previewed reports whether the form shows where machines would go.
func (s *configureStep) Previewed(z *wizard) bool {
	return s.Places != nil && z.MayDeploy && s.Inspected
}

// poolOffers are the pools that a template's machines can be made in, and their images.
type poolOffers struct {
	Pools  []store.Pool
	Images []string // that any reachable pool has, as templates name them
	Rooms  []store.Room
}

// Room says which machine a pool has room for now.
func (o poolOffers) Room(pool uuid.UUID) string {
	i := slices.IndexFunc(o.Rooms, func(r store.Room) bool { return r.PoolID == pool })
	if i < 0 {
		return "No machine fits now."
	}
	return fmt.Sprintf("Largest machine that fits now: %s, %s GiB", plural(o.Rooms[i].Cores, "core"), decimal(float64(o.Rooms[i].MemoryMiB)/1024))
}

// offeredSize is a size that fits now, with what people are told of it.
type offeredSize struct {
	Size int
	Says string
}

// CoreSizes and MemorySizes are sizes that fit now, the largest of each pool last.
func (o poolOffers) CoreSizes() []offeredSize {
	return o.sizes(1, func(r store.Room) int { return r.Cores }, func(int) string { return "" })
}
func (o poolOffers) MemorySizes() []offeredSize {
	return o.sizes(512, func(r store.Room) int { return r.MemoryMiB }, func(n int) string { return decimal(float64(n)/1024) + " GiB" })
}

func (o poolOffers) sizes(least int, of func(store.Room) int, says func(int) string) (all []offeredSize) {
	most := 0
	for _, r := range o.Rooms {
		most = max(most, of(r))
	}
	for n := least; n < most; n *= 2 {
		all = append(all, offeredSize{n, says(n)})
	}
	for _, r := range o.Rooms {
		all = append(all, offeredSize{of(r), strings.TrimPrefix(says(of(r))+": the largest that fits now in "+r.Pool, ": ")})
	}
	return all
}

// Reachable reports whether any pool is.
func (o poolOffers) Reachable() bool {
	return slices.ContainsFunc(o.Pools, func(p store.Pool) bool { return p.State == store.PoolReachable })
}

// offeredPools reads what agents of a cluster have reported.
func offeredPools(r *request, cluster uuid.UUID) (o *poolOffers, err error) {
	o = &poolOffers{}
	if o.Pools, err = r.store.ListPools(r.Context(), r.org.ID, cluster); err != nil {
		return nil, err
	}
	if o.Rooms, err = r.store.PoolRooms(r.Context(), r.org.ID, cluster); err != nil {
		return nil, err
	}
	o.Rooms = slices.DeleteFunc(o.Rooms, func(room store.Room) bool {
		return !slices.ContainsFunc(o.Pools, func(p store.Pool) bool { return p.ID == room.PoolID && p.State == store.PoolReachable })
	})
	for _, p := range o.Pools {
		if p.State == store.PoolReachable {
			o.Images = append(o.Images, p.Images...)
		}
	}
	named, err := r.store.ImageNames(r.Context(), cluster)
	o.Images = slices.Compact(slices.Sorted(slices.Values(append(o.Images, named...))))
	return o, err
}

// declared is what is known of the variables of a template's version.
type declared struct{ store.Inspection }

// Handed reports whether an agent is to scan it, for this server could not.
func (d declared) Handed() bool {
	return d.Status == store.InspectionHanded || d.Status == store.InspectionQueued
}

// Soon is true while it is being scanned.
func (d declared) Soon() bool { return soon(d.Status, d.Inspected) }

func soon(status string, inspected bool) bool {
	return !inspected && (status == store.InspectionWanted || status == store.InspectionQueued || status == store.InspectionHanded)
}

// Failed is true where it could not be looked at, and nothing is known.
func (d declared) Failed() bool { return !d.Inspected && d.Status == store.InspectionFailed }

// VariablesJSON is for the page's script.
func (d declared) VariablesJSON() (string, error) {
	if !d.Inspected {
		return "", nil
	}
	text, err := json.Marshal(d.Variables)
	return string(text), err
}

// ProblemsJSON is for the page's script, which puts each next to its field.
func (s *configureStep) ProblemsJSON() (string, error) {
	text, err := json.Marshal(s.Problems)
	return string(text), err
}

// lookAt has a template inspected that is not in the catalogue.
func (c *console) lookAt(w http.ResponseWriter, r *request) error {
	z, _, err := c.sent(w, r)
	if err != nil {
		return err
	}
	if err := r.store.InspectTemplate(r.Context(), r.org.ID, z.Source.Repo, z.Source.Version, z.Source.Path); err != nil {
		return err
	}
	http.Redirect(w, r.Request, z.URL("configure"), http.StatusSeeOther)
	return nil
}

// declares answers whether a template's version has been looked at by now, for
// the page that waits for it.
func (c *console) declares(w http.ResponseWriter, r *request) error {
	z, err := c.wizard(r)
	if err != nil {
		return err
	}
	d, err := z.variablesOf(r, z.Source)
	if err != nil {
		return err
	}
	return answerJSON(w, map[string]any{"soon": d.Soon()})
}

// may tells whether a role is that or above. It only decides what is shown or
// tried: what may be done is the database's to say.
func may(r *request, least string) bool { return atLeast(r.org.Role, least) }

// sealedFor is for what a message of an earlier run was sealed.
type sealedFor struct {
	Cluster   string `json:"cluster"`
	Workspace string `json:"workspace"`
	Repo      string `json:"repo"`
	Message   string `json:"message"`
}

// pretty writes JSON for people; numbers stay as they are.
func pretty(value any) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(value) // what was read as JSON can be written
	return strings.TrimSuffix(out.String(), "\n")
}

// checkSnapshot reads what a form has sent, by the rules that the database keeps.
func checkSnapshot(text string, operation provision.Operation) (s provision.Snapshot, workspace string, problems []problem) {
	s, err := provision.ParseSnapshot([]byte(text))
	if err == nil {
		err = s.CheckOperation(operation)
	}
	if err == nil {
		workspace, err = s.WorkspaceName()
	}
	if failure, ok := errors.AsType[*provision.Failure](err); ok {
		return s, "", problemsOf(failure.Message)
	} else if err != nil {
		return s, "", []problem{{Message: err.Error()}}
	}
	return s, workspace, nil
}

// problemsOf takes apart what is told a line for each problem, PATH: MESSAGE.
func problemsOf(text string) (all []problem) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		path, message, found := strings.Cut(line, ": ")
		switch {
		case line == "":
		case found && (strings.HasPrefix(path, "config_snapshot") || path == "operation"):
			all = append(all, problem{path, message})
		case found && (strings.HasPrefix(path, "terraform_vars.") || strings.HasPrefix(path, "sealed_vars.")): // as an agent says it
			all = append(all, problem{"config_snapshot." + path, message})
		default:
			all = append(all, problem{"", line})
		}
	}
	return all
}

// failedAt are the problems for which a provision failed, if its variables were
// to blame.
func failedAt(p *store.Provision) []problem {
	if p == nil || p.ErrorCode == nil || provision.Code(*p.ErrorCode) != provision.CodeVariablesInvalid || p.ErrorMessage == nil {
		return nil
	}
	return problemsOf(*p.ErrorMessage)
}
