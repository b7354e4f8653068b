package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/provisioner"
)

// answers says which messages may answer a request, besides log and result.
var answers = map[string][]string{
	"describe": {},
	"plan":     {"step", "change"},
	"apply":    {"step", "intent", "machine", "output", "state"},
	"destroy":  {"step", "intent", "machine", "output", "state"},
	"refresh":  {"step", "change", "machine", "output", "state"},
	"power":    {"step", "machine", "state"},
	"rebuild":  {"step", "intent", "machine", "output", "state"},
	"health":   {"step"},
}

// may says which intents an approved change allows.
var may = map[provisioner.Action][]provisioner.Action{
	provisioner.ActionCreate:  {provisioner.ActionCreate},
	provisioner.ActionReplace: {provisioner.ActionReplace, provisioner.ActionDestroy, provisioner.ActionCreate},
	provisioner.ActionDestroy: {provisioner.ActionDestroy},
}

// rules knows what a program may say next.
type rules struct {
	request provisioner.Request
	// only is the id of the one machine that the request is about; "" for all of them.
	only string
	// approved has the approved action of each machine.
	approved map[string]provisioner.Action

	changed  map[string]bool // machines and resources that a change was about
	intents  map[string]bool // by id, and by machine and action
	made     map[string]bool // machines with an acknowledged intent to create or replace
	percents map[string]float64
	// unsettled are acknowledged intents whose machine was not heard from since.
	unsettled []provisioner.Intent
}

func newRules(request provisioner.Request) *rules {
	r := &rules{
		request: request, approved: map[string]provisioner.Action{}, changed: map[string]bool{},
		intents: map[string]bool{}, made: map[string]bool{}, percents: map[string]float64{},
	}
	switch request := request.(type) {
	case *provisioner.Apply:
		r.approve(request.Changes)
	case *provisioner.Destroy:
		r.approve(request.Changes)
	case *provisioner.Rebuild:
		r.only = request.Machine
		r.approved[request.Machine] = provisioner.ActionReplace
	case *provisioner.Power:
		r.only = request.Machine
	case *provisioner.Health:
		r.only = request.Machine
	}
	if job := request.Job(); job != nil {
		for _, intent := range job.Intents {
			r.made[intent.Machine] = r.made[intent.Machine] || intent.Action != provisioner.ActionDestroy
		}
	}
	return r
}

func (r *rules) approve(changes []provisioner.Change) {
	for _, change := range changes {
		if change.Machine != "" {
			r.approved[change.Machine] = change.Action
		}
	}
}

// maxIntents is how many intents can pass, at most.
func (r *rules) maxIntents() (most int) {
	for _, action := range r.approved {
		most += len(may[action])
	}
	return most
}

// acknowledged notes that an intent was recorded.
func (r *rules) acknowledged(intent provisioner.Intent) {
	r.unsettled = append(r.unsettled, intent)
	if intent.Action != provisioner.ActionDestroy {
		r.made[intent.Machine] = true
	}
}

func broken(kind Kind, action, problem string, args ...any) *ViolationError {
	return &ViolationError{Kind: kind, Problem: printable.Text(fmt.Sprintf(problem, args...)), Action: action}
}

// check holds a message to the rules. It makes texts for people printable.
func (r *rules) check(m provisioner.Message) *ViolationError {
	kind := m.Type()
	if kind != "log" && kind != "result" && !slices.Contains(answers[r.request.Type()], kind) {
		return broken(Unexpected, "send it in answer to another request", "%s can't have the message %s", r.request.Type(), kind)
	}
	switch m := m.(type) {
	case *provisioner.Log:
		if !slices.Contains([]provisioner.Level{provisioner.LevelDebug, provisioner.LevelWarn, provisioner.LevelError}, m.Level) {
			m.Level = provisioner.LevelInfo
		}
		m.Message = cut(m.Message)
		return nil
	case *provisioner.Step:
		return r.step(m)
	case *provisioner.Change:
		return r.change(m)
	case *provisioner.Intent:
		return r.intent(m)
	case *provisioner.Machine:
		return r.machine(m)
	case *provisioner.Output:
		return r.output(m)
	case *provisioner.State:
		if len(m.Value) > provisioner.MaxState {
			return broken(StateTooLarge, "keep less in the state", "the state has %d bytes; %d are possible", len(m.Value), provisioner.MaxState)
		}
		return storable("state", m.Value)
	case *provisioner.Result:
		return r.result(m)
	}
	return nil
}

func (r *rules) step(m *provisioner.Step) *ViolationError {
	if v := names("step", "id", m.ID); v != nil {
		return v
	}
	if m.ID == "" {
		return missing("step", "id")
	}
	if m.Percent < 0 || m.Percent > 100 {
		return broken(BadValue, "send a number from 0 to 100", "step %q is at %v percent", m.ID, m.Percent)
	}
	if m.Machine != "" {
		if v := r.known(m.Machine); v != nil {
			return v
		}
	}
	m.Label = cut(m.Label)
	key := m.Machine + "\x00" + m.ID
	m.Percent = max(m.Percent, r.percents[key])
	r.percents[key] = m.Percent
	return nil
}

func (r *rules) change(m *provisioner.Change) *ViolationError {
	switch {
	case (m.Machine == "") == (m.Resource == ""):
		return broken(BadValue, "name the machine by its id, or the resource by its name", "a change needs either machine or resource")
	case !slices.Contains([]provisioner.Action{provisioner.ActionCreate, provisioner.ActionChange, provisioner.ActionReplace, provisioner.ActionDestroy, provisioner.ActionNone}, m.Action):
		return broken(BadValue, "send create, change, replace, destroy or none", "the change has the action %.40q", m.Action)
	}
	if m.Machine != "" {
		if v := r.known(m.Machine); v != nil {
			return v
		}
		if machine := r.request.Job().Find(m.Machine); m.Action != provisioner.ActionNone && !r.request.Job().Targeted(machine.Name) {
			return broken(NotTargeted, "leave alone every machine that isn't among the targets", "the change is about machine %s, which is not among the targets", m.Machine)
		}
	}
	if v := names("change", "resource", m.Resource); v != nil {
		return v
	}
	key := "machine " + m.Machine + ", resource " + m.Resource
	if r.changed[key] {
		return broken(DuplicateChange, "send one change with all its attributes", "there are two changes of %s%s", m.Machine, m.Resource)
	}
	r.changed[key] = true
	m.Why = cut(m.Why)
	for i, a := range m.Attributes {
		if v := names("change", "attributes.name", a.Name); v != nil {
			return v
		}
		if a.Name == "" {
			return missing("change", "attributes.name")
		}
		for _, value := range []json.RawMessage{a.Before, a.After} {
			if v := storable("attribute "+a.Name, value); v != nil {
				return v
			}
		}
		m.Attributes[i] = a
	}
	return nil
}

func (r *rules) intent(m *provisioner.Intent) *ViolationError {
	for field, value := range map[string]string{"id": m.ID, "external_id": m.ExternalID, "name": m.Name} {
		if v := names("intent", field, value); v != nil {
			return v
		}
	}
	if m.ID == "" {
		return missing("intent", "id")
	}
	if v := r.known(m.Machine); v != nil {
		return v
	}
	pair := string(m.Action) + " of machine " + m.Machine
	switch {
	case !slices.Contains(may[provisioner.ActionReplace], m.Action):
		return broken(BadValue, "send create, replace or destroy", "the intent has the action %.40q", m.Action)
	case !slices.Contains(may[r.approved[m.Machine]], m.Action):
		return broken(NotApproved, "do what the field changes of the request says, and nothing else", "the %s was not approved", pair)
	case r.intents["id "+m.ID]:
		return broken(DuplicateIntent, "give each intent an id of its own", "two intents have the id %q", m.ID)
	case r.intents[pair]:
		return broken(DuplicateIntent, "send one intent for it and wait for its ack", "there are two intents for the %s", pair)
	}
	r.intents["id "+m.ID], r.intents[pair] = true, true
	return nil
}

func (r *rules) machine(m *provisioner.Machine) *ViolationError {
	if v := r.known(m.ID); v != nil {
		return v
	}
	for field, value := range map[string]string{"name": m.Name, "external_id": m.ExternalID, "node": m.Node} {
		if v := names("machine", field, value); v != nil {
			return v
		}
	}
	for key := range m.Credentials {
		if v := names("machine", "credentials", key); v != nil {
			return v
		}
	}
	addresses := m.Addresses
	if m.Address != "" {
		addresses = append([]string{m.Address}, addresses...)
	}
	for _, address := range addresses {
		if _, err := netip.ParseAddr(address); err != nil {
			return broken(BadValue, "send it as 192.0.2.1 or 2001:db8::1", "machine %s has the address %.60q, which is no IP address", m.ID, address)
		}
	}
	if len(m.Addresses) > 64 {
		return broken(BadValue, "send those that people use", "machine %s has %d addresses; 64 are possible", m.ID, len(m.Addresses))
	}
	if m.SSHPort < 0 || m.SSHPort > 65535 {
		return broken(BadValue, "send a port from 1 to 65535, or leave it out", "machine %s has the SSH port %d", m.ID, m.SSHPort)
	}
	switch m.Status {
	case provisioner.StatusUnknown, provisioner.StatusGone:
	case provisioner.StatusCreating, provisioner.StatusRunning, provisioner.StatusStopped, provisioner.StatusFailed:
		approved := r.approved[m.ID]
		if (approved == provisioner.ActionCreate || approved == provisioner.ActionReplace) && r.only == "" && !r.made[m.ID] {
			return broken(NoIntent, "send an intent and wait for its ack before you create anything", "machine %s was made without an acknowledged intent", m.ID)
		}
	default:
		return broken(BadValue, "send creating, running, stopped, failed, unknown or gone", "machine %s has the status %.40q", m.ID, m.Status)
	}
	r.unsettled = slices.DeleteFunc(r.unsettled, func(i provisioner.Intent) bool { return i.Machine == m.ID })
	return nil
}

func (r *rules) output(m *provisioner.Output) *ViolationError {
	if v := names("output", "name", m.Name); v != nil {
		return v
	}
	if m.Name == "" {
		return missing("output", "name")
	}
	if m.Value == nil {
		return missing("output", "value")
	}
	if len(m.Value) > provisioner.MaxOutput {
		return broken(OutputTooLarge, "put large values into a file or a service, and its address into the output", "the output %s has %d bytes; %d are possible", m.Name, len(m.Value), provisioner.MaxOutput)
	}
	return storable("output "+m.Name, m.Value)
}

var code = lazyregexp.New(`^[a-z][a-z0-9_]{0,63}$`)

func (r *rules) result(m *provisioner.Result) *ViolationError {
	m.Message = cut(m.Message)
	if !m.OK && m.Code == "" {
		m.Code = provisioner.CodeFailed
	}
	switch {
	case m.Code != "" && !code.MatchString(m.Code):
		return broken(BadValue, "send a short word of a to z, 0 to 9 and _", "the result has the code %.64q", m.Code)
	case len(m.Plan) > provisioner.MaxPlan:
		return broken(PlanTooLarge, "keep less in the plan", "the plan has %d bytes; %d are possible", len(m.Plan), provisioner.MaxPlan)
	case !slices.Contains([]provisioner.ResultStatus{"", provisioner.ResultCompleted, provisioner.ResultPartial}, m.Status):
		return broken(BadValue, "send completed or partial, or leave it out", "the result has the status %.40q", m.Status)
	case !m.OK:
		return nil
	}
	switch request := r.request.(type) {
	case *provisioner.Health:
		if !slices.Contains([]provisioner.HealthStatus{provisioner.Healthy, provisioner.Unhealthy, provisioner.HealthUnknown}, m.Health) {
			return broken(BadValue, "send healthy, unhealthy or unknown", "the result has the health %.40q", m.Health)
		}
	case *provisioner.Describe:
		if !slices.Contains(request.Protocols, m.Protocol) {
			return broken(BadValue, "pick one of the field protocols, or send the code "+provisioner.CodeUnsupportedProtocol, "the result has the protocol %.64q, which was not offered", m.Protocol)
		}
		for _, action := range []string{"plan", "apply", "destroy"} {
			if !slices.Contains(m.Actions, action) {
				return broken(BadValue, "carry out plan, apply and destroy, and name them in actions", "the actions don't have %s", action)
			}
		}
		for field, value := range map[string]string{"name": m.Name, "version": m.Version} {
			if v := names("result", field, value); v != nil {
				return v
			}
		}
	}
	return nil
}

// known refuses a machine that the request isn't about.
func (r *rules) known(id string) *ViolationError {
	switch {
	case r.request.Job().Find(id) == nil:
		return broken(UnknownMachine, "use the ids of the request's machines", "the machine %.64q is not one of the request's", id)
	case r.only != "" && id != r.only:
		return broken(NotTargeted, "leave the other machines alone", "the request is about machine %s, and the message about %s", r.only, id)
	}
	return nil
}

func missing(message, field string) *ViolationError {
	return broken(BadValue, "send it", "%s has no field %s", message, field)
}

// names refuses a name that is too long or can't be shown.
func names(message, field, value string) *ViolationError {
	switch {
	case len(value) > provisioner.MaxName:
		return broken(BadValue, "send a shorter one", "the field %s of %s has %d bytes; %d are possible", field, message, len(value), provisioner.MaxName)
	case printable.Text(value) != value || strings.ContainsAny(value, "\t\n"):
		return broken(BadValue, "send letters, digits and punctuation only", "the field %s of %s has control characters", field, message)
	}
	return nil
}

// storable refuses JSON with the character 0, which PostgreSQL doesn't store.
func storable(what string, value json.RawMessage) *ViolationError {
	for at := value; ; {
		i := bytes.Index(at, []byte(`\u0000`))
		if i < 0 {
			return nil
		}
		slashes := 0
		for i-slashes > 0 && at[i-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return broken(BadValue, "leave the character out", "the %s has the character U+0000", what)
		}
		at = at[i+len(`\u0000`):]
	}
}

// cut makes a text printable, and as long as it may be.
func cut(text string) string {
	text = printable.Text(text)
	if len(text) <= provisioner.MaxText {
		return text
	}
	end := provisioner.MaxText - len("…")
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// secretsOf are the values of a message that nobody may see.
func secretsOf(m provisioner.Message) (secrets []string) {
	add := func(value json.RawMessage) {
		var v any
		decoder := json.NewDecoder(bytes.NewReader(value))
		decoder.UseNumber() // a number is masked as it is written
		if decoder.Decode(&v) == nil {
			secrets = leaves(secrets, v)
		}
	}
	switch m := m.(type) {
	case *provisioner.Machine:
		for _, value := range m.Secrets() {
			secrets = leaves(secrets, value)
		}
	case *provisioner.Output:
		if m.Sensitive {
			add(m.Value)
		}
	case *provisioner.Change:
		for _, a := range m.Attributes {
			if a.Sensitive {
				add(a.Before)
				add(a.After)
			}
		}
	}
	slices.Sort(secrets)
	return slices.Compact(secrets)
}

// leaves adds the texts and numbers within a value.
func leaves(all []string, value any) []string {
	switch value := value.(type) {
	case string:
		if value != "" {
			all = append(all, value)
		}
	case json.Number:
		all = append(all, value.String())
	case []any:
		for _, v := range value {
			all = leaves(all, v)
		}
	case map[string]any:
		for _, v := range value {
			all = leaves(all, v)
		}
	}
	return all
}

// withoutSecrets hides the values of sensitive attributes.
func withoutSecrets(c provisioner.Change) provisioner.Change {
	c.Attributes = slices.Clone(c.Attributes)
	for i := range c.Attributes {
		if c.Attributes[i].Sensitive {
			c.Attributes[i].Before, c.Attributes[i].After = nil, nil
		}
	}
	return c
}
