package notify

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"github.com/google/uuid"
)

// payload is what the database has put together of what happened.
type payload struct {
	Type      string `json:"type"`
	Timestamp string `json:"timestamp"`
	Data      struct {
		Org       uuid.UUID    `json:"org_id"`
		Cluster   *named       `json:"cluster,omitempty"`
		Workspace *named       `json:"workspace,omitempty"`
		Provision *told        `json:"provision,omitempty"`
		Drift     *toldDrift   `json:"drift,omitempty"`
		Machine   *toldMachine `json:"machine,omitempty"`
		Webhook   *named       `json:"webhook,omitempty"`
		URL       string       `json:"url,omitempty"` // the page to look at
	} `json:"data"`
}

type named struct {
	ID   uuid.UUID `json:"id"`
	Name string    `json:"name"`
}

type told struct {
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

type toldDrift struct {
	Count int    `json:"count"`
	At    string `json:"at"`
}

type toldMachine struct {
	ID     uuid.UUID `json:"id"`
	Name   string    `json:"name"`
	Health string    `json:"health"`
	Was    string    `json:"was,omitempty"`
	Why    string    `json:"why,omitempty"`
}

// message is the body for a webhook of its kind.
func (s *sender) message(d delivery) ([]byte, error) {
	var p payload
	if err := json.Unmarshal(d.Payload, &p); err != nil {
		return nil, fmt.Errorf("the message cannot be read: %w", err)
	}
	if s.base != "" {
		switch {
		case p.Data.Provision != nil:
			p.Data.URL = fmt.Sprintf("%s/provisions/%d", s.base, p.Data.Provision.Number)
		case p.Data.Machine != nil:
			p.Data.URL = s.base + "/machines/" + p.Data.Machine.ID.String()
		case p.Data.Workspace != nil:
			p.Data.URL = s.base + "/workspaces/" + p.Data.Workspace.ID.String()
		default:
			p.Data.URL = s.base + "/notifications"
		}
	}
	if d.Kind == "slack" {
		return json.Marshal(slack(p))
	}
	return json.Marshal(p)
}

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

func slack(p payload) slackMessage {
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
func summary(p payload) (head, more string) {
	where := ""
	if p.Data.Workspace != nil && p.Data.Cluster != nil {
		where = fmt.Sprintf("%s on %s", p.Data.Workspace.Name, p.Data.Cluster.Name)
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
