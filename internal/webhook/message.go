package webhook

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"github.com/google/uuid"
)

// Message is what happened. The database has put it together, or an agent.
type Message struct {
	Type      string `json:"type"`
	Timestamp string `json:"timestamp"`
	Data      Data   `json:"data"`
}

// Data is what a message is about.
type Data struct {
	Org       uuid.UUID  `json:"org_id,omitzero"`
	Cluster   *Named     `json:"cluster,omitempty"`
	Workspace *Named     `json:"workspace,omitempty"`
	Provision *Provision `json:"provision,omitempty"`
	Drift     *Drift     `json:"drift,omitempty"`
	Machine   *Machine   `json:"machine,omitempty"`
	Webhook   *Named     `json:"webhook,omitempty"`
	URL       string     `json:"url,omitempty"` // the page to open
}

// Named is something with a name.
type Named struct {
	ID   uuid.UUID `json:"id"`
	Name string    `json:"name"`
}

// Provision is a run.
type Provision struct {
	ID           uuid.UUID      `json:"id"`
	Number       int64          `json:"number"`
	Operation    string         `json:"operation"`
	Status       string         `json:"status"`
	RequestedBy  *uuid.UUID     `json:"requested_by,omitempty"`
	ErrorCode    string         `json:"error_code,omitempty"`
	ErrorMessage string         `json:"error_message,omitempty"`
	Plan         map[string]int `json:"plan,omitempty"`
	CreatedAt    string         `json:"created_at,omitempty"`
	StartedAt    string         `json:"started_at,omitempty"`
	FinishedAt   string         `json:"finished_at,omitempty"`
}

// Drift is what has changed outside.
type Drift struct {
	Count int    `json:"count"`
	At    string `json:"at"`
}

// Machine is a machine whose health has changed.
type Machine struct {
	ID     uuid.UUID `json:"id"`
	Name   string    `json:"name"`
	Health string    `json:"health"`
	Was    string    `json:"was,omitempty"`
	Why    string    `json:"why,omitempty"`
}

// Body is what a receiver of a kind gets: "slack", or else the message as JSON. The base is
// the console's URL, for links; "" for none.
func (m Message) Body(kind, base string) ([]byte, error) {
	if base != "" {
		switch {
		case m.Data.Provision != nil:
			m.Data.URL = fmt.Sprintf("%s/provisions/%d", base, m.Data.Provision.Number)
		case m.Data.Machine != nil:
			m.Data.URL = base + "/machines/" + m.Data.Machine.ID.String()
		case m.Data.Workspace != nil:
			m.Data.URL = base + "/workspaces/" + m.Data.Workspace.ID.String()
		default:
			m.Data.URL = base + "/notifications"
		}
	}
	if kind == Slack {
		return json.Marshal(slack(m))
	}
	return json.Marshal(m)
}

// The kinds of receivers.
const (
	Generic = "generic"
	Slack   = "slack"
)

// Slack's form, which others understand, too (Mattermost, Rocket.Chat).
type slackMessage struct {
	Text   string       `json:"text"` // for notifications and those without blocks
	Blocks []slackBlock `json:"blocks"`
}

type slackBlock struct {
	Type string    `json:"type"`
	Text slackText `json:"text"`
}

type slackText struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Verbatim bool   `json:"verbatim"` // true: names of people and channels in it call nobody
}

// slackBytes is the most that Slack takes in a block, with room for the rest.
const slackBytes = 2500

func slack(p Message) slackMessage {
	head, more := summary(p)
	text := escape(head, 300)
	body := "*" + text + "*"
	if more != "" {
		body += "\n" + escape(more, slackBytes)
	}
	if p.Data.URL != "" {
		body += "\n<" + p.Data.URL + "|Open it in the console>"
	}
	return slackMessage{Text: text, Blocks: []slackBlock{{Type: "section", Text: slackText{Type: "mrkdwn", Text: body, Verbatim: true}}}}
}

// escape makes plain text of what others have written: nothing in it can call
// everybody (<!channel>), look like a link, or turn the line around.
func escape(text string, most int) string {
	var b strings.Builder
	for _, r := range text {
		if b.Len() > most {
			b.WriteString("…")
			break
		}
		switch {
		case r == '&':
			b.WriteString("&amp;")
		case r == '<':
			b.WriteString("&lt;")
		case r == '>':
			b.WriteString("&gt;")
		case strings.ContainsRune("*_~`", r):
			b.WriteRune('\u200b') // takes its meaning and not its look
			b.WriteRune(r)
		case r == '\n' || !unicode.IsControl(r) && !unicode.Is(unicode.Cf, r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

// summary says in a line what happened, and what else is worth reading.
func summary(p Message) (head, more string) {
	where := ""
	if p.Data.Workspace != nil {
		where = p.Data.Workspace.Name
		if p.Data.Cluster != nil {
			where += " on " + p.Data.Cluster.Name
		}
	}
	switch t := p.Data.Provision; {
	case p.Type == "drift" && p.Data.Drift != nil:
		return fmt.Sprintf("%d resources have drifted: %s", p.Data.Drift.Count, where), ""
	case p.Type == "health" && p.Data.Machine != nil:
		return fmt.Sprintf("Machine %s is %s: %s", p.Data.Machine.Name, p.Data.Machine.Health, where), p.Data.Machine.Why
	case t == nil:
		return "Test message from Tendril", "The webhook works."
	case p.Type == "awaiting_approval":
		return fmt.Sprintf("Run %d (%s) needs approval: %s", t.Number, t.Operation, where), counts(t.Plan)
	case p.Type == "awaiting_input":
		return fmt.Sprintf("Run %d (%s) waits for a person to do its work: %s", t.Number, t.Operation, where), counts(t.Plan)
	case p.Type == "failure":
		if t.ErrorCode != "" {
			more = t.ErrorCode + ": "
		}
		return fmt.Sprintf("Run %d (%s) failed: %s", t.Number, t.Operation, where), more + t.ErrorMessage
	case p.Type == "cancelled":
		return fmt.Sprintf("Run %d (%s) was cancelled: %s", t.Number, t.Operation, where), t.ErrorMessage
	default:
		return fmt.Sprintf("Run %d (%s) succeeded: %s", t.Number, t.Operation, where), counts(t.Plan)
	}
}

func counts(plan map[string]int) string {
	var parts []string
	for _, what := range []string{"add", "change", "replace", "destroy", "import", "move", "forget"} {
		if plan[what] > 0 {
			parts = append(parts, fmt.Sprintf("%d to %s", plan[what], what))
		}
	}
	return strings.Join(parts, ", ")
}
