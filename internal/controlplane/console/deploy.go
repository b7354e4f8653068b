package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// wizard is a deploy that is being put together. What is chosen stands in the
// URL, so that back, forward and reload work and a link can be shared; what is
// filled in stays in the browser until it is sent.
type wizard struct {
	Step string // cluster, template, configure or review
	// Asked are the URL's own words.
	Asked url.Values

	Places    []store.Place
	Catalogue []store.Template

	Cluster *store.Place // chosen; nil: not yet
	// Entry is the template of the catalogue; nil where a repository is named.
	Entry  *store.Template
	Source provision.TemplateSource
	// From is the provision that is to be repeated or changed.
	From *store.Provision

	MayDeploy bool
	Missing   string // what the URL names and nobody knows

	Configure *configureStep
	Review    *reviewStep
}

// steps are the wizard's, in their order.
var steps = []string{"cluster", "template", "configure", "review"}

func (c *console) deployPages() {
	c.page("GET /deploy", c.deploy)
	c.page("POST /deploy/review", c.reviewed)
	c.page("POST /deploy", c.deployNow)
	c.page("POST /deploy/inspect", c.lookAt)
	c.page("GET /deploy/declared", c.declares)
}

// deploy is the page of a deploy's steps.
func (c *console) deploy(w http.ResponseWriter, r *request) error {
	z, err := c.wizard(r)
	if err != nil {
		return err
	}
	switch z.Step {
	case "configure":
		err = z.configure(r, "", nil)
	case "review":
		z.Review = &reviewStep{} // filled in by what the browser keeps: reviewed
	}
	if err != nil {
		return err
	}
	if r.Header.Get("HX-Request") != "" && (z.Step == "cluster" || z.Step == "template") {
		c.part(w, r, "deploy", "choices", z)
		return nil
	}
	c.showDeploy(w, r, http.StatusOK, z)
	return nil
}

func (c *console) showDeploy(w http.ResponseWriter, r *request, status int, z *wizard) {
	c.render(w, r, status, "deploy", view{Title: "Deploy", Nav: "deploy", Data: z})
}

// wizard reads the URL.
func (c *console) wizard(r *request) (z *wizard, err error) {
	asked := r.URL.Query()
	z = &wizard{Asked: asked, MayDeploy: may(r, "operator")}
	if z.Places, err = r.store.Places(r.Context(), r.org.ID); err != nil {
		return nil, err
	}
	if z.Catalogue, err = r.store.Catalogue(r.Context(), r.org.ID); err != nil {
		return nil, err
	}
	if from := asked.Get("from"); from != "" {
		found, err := r.store.Provision(r.Context(), from)
		if _, no := errors.AsType[*store.NotProvisionError](err); no {
			err = &store.RefusedError{Code: "PT404", Reason: "provision_not_found", Message: err.Error()}
		}
		if err != nil {
			return nil, err
		}
		z.From = &found
	}
	z.chooseCluster()
	z.chooseTemplate()
	z.Step = z.reached(asked.Get("step"))
	return z, nil
}

func (z *wizard) chooseCluster() {
	ref := z.Asked.Get("cluster")
	if ref == "" && z.From != nil {
		ref = z.From.Cluster
	}
	if ref == "" && len(z.Places) == 1 && z.Asked.Get("step") != "cluster" {
		z.Cluster = &z.Places[0]
		return
	}
	i := slices.IndexFunc(z.Places, func(p store.Place) bool { return p.Name == ref || p.ID.String() == ref })
	if i >= 0 {
		z.Cluster = &z.Places[i]
	} else if ref != "" {
		z.Missing = "There is no cluster " + strconv.Quote(ref) + " here."
	}
}

func (z *wizard) chooseTemplate() {
	name, repo := z.Asked.Get("template"), z.Asked.Get("repo")
	path, version := z.Asked.Get("path"), z.Asked.Get("version")
	if name == "" && repo == "" && z.From != nil {
		repo, path = z.From.Template.Repo, z.From.Template.Path
		version = cmp.Or(version, z.From.Template.Version)
		i := slices.IndexFunc(z.Catalogue, func(e store.Template) bool { return store.SameTemplate(e.Repo, e.Path, repo, path) })
		if i >= 0 {
			name = z.Catalogue[i].Name
		}
	}
	switch {
	case name != "":
		i := slices.IndexFunc(z.Catalogue, func(e store.Template) bool { return e.Name == name || e.ID.String() == name })
		if i < 0 {
			z.Missing = "There is no template " + strconv.Quote(name) + " in the catalogue."
			return
		}
		z.Entry = &z.Catalogue[i]
		z.Source = provision.TemplateSource{Repo: z.Entry.Repo, Path: z.Entry.Path, Version: cmp.Or(version, z.Entry.Version)}
	case repo != "" && version != "":
		z.Source = provision.TemplateSource{Repo: repo, Path: path, Version: version}
	}
}

// reached is the step that was asked for, or the first one before it that lacks
// something.
func (z *wizard) reached(asked string) string {
	switch {
	case z.Cluster == nil || asked == "cluster":
		return "cluster"
	case z.Source.Repo == "" || asked == "template":
		return "template"
	case asked == "review":
		return "review"
	}
	return "configure"
}

// URL is this page at a step, with other choices put in.
func (z *wizard) URL(step string, changes ...string) string {
	q := url.Values{}
	if z.Cluster != nil {
		q.Set("cluster", z.Cluster.Name)
	}
	if z.Entry != nil {
		q.Set("template", z.Entry.Name)
	} else if z.Source.Repo != "" {
		q.Set("repo", z.Source.Repo)
		if z.Source.Path != "" {
			q.Set("path", z.Source.Path)
		}
	}
	if z.Source.Version != "" {
		q.Set("version", z.Source.Version)
	}
	if z.From != nil {
		q.Set("from", strconv.FormatInt(z.From.Number, 10))
	}
	for i := 0; i+1 < len(changes); i += 2 {
		if changes[i] == "template" { // another one: nothing of this one's
			for _, name := range []string{"repo", "path", "version", "from"} {
				q.Del(name)
			}
		}
		q.Set(changes[i], changes[i+1])
	}
	q.Set("step", step)
	return "/deploy?" + q.Encode()
}

// stepLink is one step as the page's head shows it.
type stepLink struct {
	Name, Title, Chosen, URL string
	Now                      bool
}

// Steps are the links of the page's head; one without a URL cannot be reached
// yet.
func (z *wizard) Steps() []stepLink {
	links := make([]stepLink, len(steps))
	now := slices.Index(steps, z.Step)
	for i, name := range steps {
		links[i] = stepLink{Name: name, Title: strings.ToUpper(name[:1]) + name[1:], Now: i == now}
		if i < now {
			links[i].URL = z.URL(name)
		}
	}
	if z.Cluster != nil {
		links[0].Chosen = z.Cluster.Name
	}
	if z.Source.Repo != "" {
		links[1].Chosen = z.Title()
	}
	return links
}

// Title names the template and its version.
func (z *wizard) Title() string { return z.titleOf(z.Source) }

func (z *wizard) titleOf(source provision.TemplateSource) string {
	for _, e := range z.Catalogue {
		if store.SameTemplate(e.Repo, e.Path, source.Repo, source.Path) && (z.Entry == nil || z.Entry.ID == e.ID || source != z.Source) {
			return e.Name + " " + source.Version
		}
	}
	return strings.TrimSuffix(source.Repo[strings.LastIndexAny(source.Repo, "/:")+1:], ".git") + " " + source.Version
}

// Query is what is chosen, for the forms of this page to be sent with.
func (z *wizard) Query() template.URL {
	_, query, _ := strings.Cut(z.URL(z.Step), "?")
	return template.URL(query) //nolint:gosec // encoded by net/url
}

// SourceJSON is the template that was chosen, for the page's script.
func (z *wizard) SourceJSON() (string, error) {
	text, err := json.Marshal(z.Source)
	return string(text), err
}

// Repo is the repository in the form in which sealed values name it.
func (z *wizard) Repo() string { return canonical.Address(z.Source.Repo) }

// DraftKey is under which the browser keeps what is filled in: of one template,
// whatever its version and cluster.
func (z *wizard) DraftKey() string {
	key := z.Repo() + "//" + z.Source.Path
	if z.From != nil {
		key += " " + strconv.FormatInt(z.From.Number, 10)
	}
	return key
}

// Approvers says who may approve a plan there.
func (z *wizard) Approvers() string {
	who := "an operator or an admin"
	if z.Cluster.Approvers == "admin" {
		who = "an admin"
	}
	text := "A plan of this cluster is approved by " + who
	if z.Cluster.FourEyes {
		text += " who is not the one that asked"
	}
	return text + "."
}
