package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/yuin/goldmark"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

// Instructions are what a person is to do, as HTML. Their author is a template's: neither
// HTML of theirs nor links that are scripts come through.
func (p *runPage) Instructions() (template.HTML, error) {
	if p.Input == nil {
		return "", nil
	}
	var html bytes.Buffer
	if err := goldmark.Convert([]byte(printable.Text(p.Input.Instructions)), &html); err != nil {
		return "", fmt.Errorf("read the instructions of run %d: %w", p.Number, err)
	}
	return template.HTML(html.String()), nil //nolint:gosec // goldmark leaves out HTML and dangerous links
}

// MayAnswer: operators say that the work is done.
func (p *runPage) MayAnswer() bool { return p.operator() && p.Status == provision.AwaitingInput }

// Repo is the template's repository in the form that values are sealed for.
func (p *runPage) Repo() string { return canonical.Address(p.Template.Repo) }

// Asks reports whether the answer has something secret.
func (p *runPage) Asks() bool {
	for _, m := range p.Input.Machines {
		if m.Action != "destroy" {
			return true
		}
	}
	for _, o := range p.Input.Outputs {
		if o.Sensitive {
			return true
		}
	}
	return false
}

// Wanted is what is wanted of a machine, in short.
func (p *runPage) Wanted(m provision.InputMachine) (facts []string) {
	add := func(is bool, format string, value any) {
		if is {
			facts = append(facts, fmt.Sprintf(format, value))
		}
	}
	add(m.Cores > 0, "%d cores", m.Cores)
	add(m.Memory > 0, "%d MiB", m.Memory)
	add(m.Disk > 0, "%d GiB disk", m.Disk)
	add(m.Image != "", "image %s", m.Image)
	add(m.Pool != "", "pool %s", m.Pool)
	add(m.Address != "", "address %s", m.Address)
	if m.Known != nil {
		add(true, "now %s", strings.TrimSpace(m.Known.ExternalID+" "+m.Known.Address))
	}
	return facts
}

// Said is what was typed into a field before it was refused; of a machine's facts, else,
// what is known or wanted.
func (p *runPage) Said(field string) string {
	if p.typed != nil {
		return p.typed.Get(field)
	}
	for _, m := range p.Input.Machines {
		fact, is := strings.CutPrefix(field, "machine."+m.Name+".")
		switch {
		case !is:
		case fact == "address" && m.Known != nil:
			return m.Known.Address
		case fact == "address":
			return m.Address
		case fact == "external_id" && m.Known != nil && m.Known.ExternalID != m.Known.Address:
			return m.Known.ExternalID
		case fact == "ssh_port" && m.Known != nil && m.Known.SSHPort > 0:
			return strconv.Itoa(m.Known.SSHPort)
		}
	}
	return ""
}

// IsFor reports whether the work is somebody's.
func (p *runPage) IsFor(user uuid.UUID) bool {
	return p.Input.AssignedTo != nil && *p.Input.AssignedTo == user
}

// Answerer is who has answered.
func (p *runPage) Answerer() actor { return actorOf(deref(p.Input.AnsweredByName), p.Input.AnsweredBy) }

// giveInput takes a person's answer. One that is refused is shown again.
func (c *console) giveInput(w http.ResponseWriter, r *request) error {
	p, err := provisionOf(r)
	if err != nil {
		return err
	}
	asked := p.Input
	if asked == nil {
		asked = &store.Input{} // the database says that nothing is asked
	}
	_, err = r.store.GiveInput(r.Context(), p.ID, answerOf(r, asked))
	if refused := refusal(err); refused != nil {
		page, err := c.runPage(r, true)
		if err != nil {
			return err
		}
		page.InputError, page.typed = refused.Message, r.PostForm
		if page.Status != provision.AwaitingInput {
			c.redirect(w, r, runPath(p.Number), refusedFlash(refused))
			return nil
		}
		c.render(w, r, refused.Status(), "provision", view{Nav: "provisions", Data: page})
		return nil
	}
	if err != nil {
		return err
	}
	c.redirect(w, r, runPath(p.Number), done("input-given"))
	return nil
}

// answerOf is the answer that the form has; whether it is one, the database says.
func answerOf(r *request, asked *store.Input) provision.Input {
	answer := provision.Input{
		Done: r.PostFormValue("done") == "true", Outputs: map[string]json.RawMessage{}, Machines: map[string]provision.InputFacts{}, Sealed: map[string]string{},
	}
	if !answer.Done {
		answer.Reason = r.PostFormValue("reason")
	}
	for _, o := range asked.Outputs {
		if sealed := r.PostFormValue("sealed." + provision.SealedOutput(o.Name)); sealed != "" {
			answer.Sealed[provision.SealedOutput(o.Name)] = sealed
		}
		text := r.PostFormValue("output." + o.Name)
		value, err := json.Marshal(text)
		switch {
		case o.Sensitive || text == "" || err != nil: // what is missing the database says
		case o.Type != "string" && json.Valid([]byte(text)):
			answer.Outputs[o.Name] = json.RawMessage(text)
		default:
			answer.Outputs[o.Name] = value
		}
	}
	for _, m := range asked.Machines {
		field := func(name string) string { return strings.TrimSpace(r.PostFormValue("machine." + m.Name + "." + name)) }
		facts := provision.InputFacts{Address: field("address"), ExternalID: field("external_id")}
		if port, err := strconv.Atoi(field("ssh_port")); err == nil {
			facts.SSHPort = port
		}
		if m.Action == "destroy" || !answer.Done && field("exists") == "" {
			continue
		}
		answer.Machines[m.Name] = facts
		if sealed := r.PostFormValue("sealed." + provision.SealedMachine(m.Name)); sealed != "" {
			answer.Sealed[provision.SealedMachine(m.Name)] = sealed
		}
	}
	return answer
}

func assign(r *request, p store.Provision) (string, flash, error) {
	var user *uuid.UUID
	if id, err := uuid.Parse(r.PostFormValue("user")); err == nil {
		user = &id
	}
	return runPath(p.Number), done("input-assigned"), r.store.AssignInput(r.Context(), p.ID, user)
}

func comment(r *request, p store.Provision) (string, flash, error) {
	return runPath(p.Number), done("run-commented"), r.store.Comment(r.Context(), p.ID, r.PostFormValue("text"))
}
