package console

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// refusal is the database's no to what a form asked for, to be shown next to the
// form: nil for anything else. One that is our fault or passes is not among them.
func refusal(err error) *store.RefusedError {
	refused, ok := errors.AsType[*store.RefusedError](err)
	if !ok || refused.Status() >= 500 {
		return nil
	}
	return refused
}

// ownRefusals are those that pages make before they ask the database: by reason the
// status, the message and the hint, worded as SQL words its own.
var ownRefusals = map[string][3]string{
	"page_not_found":       {"PT404", "there is no page %s", ""},
	"org_not_found":        {"PT404", "organisation not found, or you are no longer a member of it; nothing was done", "reload the page"},
	"provision_not_found":  {"PT404", "run %s not found, or you have no access to it", ""},
	"cluster_not_found":    {"PT404", "cluster %s not found, or you have no access to it", "choose one from the list of clusters"},
	"credential_not_found": {"PT404", "token or session not found", ""},
	"invitation_not_found": {"PT404", "invitation not found", ""},
	"member_not_found":     {"PT404", "member not found", ""},
	"webhook_not_found":    {"PT404", "webhook %s not found", ""},
	"delivery_not_found":   {"PT404", "delivery not found", ""},

	"template_exists":    {"PT409", "a template with that name exists", ""},
	"template_not_saved": {"PT422", "it can't be saved yet", ""},

	"pool_not_found":       {"PT404", "pool %s not found, or you have no access to it", ""},
	"bad_number":           {"PT422", "%s: enter a whole number from 0, or leave it blank", ""},
	"too_large":            {"PT413", "the form can't be read, or is larger than a snapshot may be", ""},
	"no_text":              {"PT400", "the request contains bytes that are not text", "check the address and what you pasted"},
	"no_token":             {"PT422", "this form is not complete", "reload the page"},
	"not_chosen":           {"PT422", "choose a cluster and a template first", ""},
	"machine_refused":      {"PT422", "%s", "the machine's page shows what can be done"},
	"not_planned":          {"PT409", "machine %s is no longer planned", "the machine's page shows what it is now"},
	"none_to_power":        {"PT409", "no machine of workspace %s can be started or stopped", "reload the page"},
	"many_to_power":        {"PT413", "%s machines are too many for one run; at most 100 are allowed", "start or stop them one by one"},
	"no_handout":           {"PT404", "run %s hands out no credentials of all machines", ""},
	"no_requester_key":     {"PT422", "you have no key in this browser to seal the credentials to", "create one on the page Your account, and have agents trust it"},
	"none_planned":         {"PT404", "no machine is planned in workspace %s", "plan one"},
	"many_planned":         {"PT413", "more than 500 machines are planned in workspace %s", "provision some by trellis machines provision"},
	"bad_plan":             {"PT422", "%s", ""},
	"not_confirmed":        {"PT422", "the typed name does not match, so nothing was destroyed", "type %s"},
	"no_such_code":         {"PT404", "no agent waits with this code", "codes are valid for ten minutes: read it again on the agent's machine, or start tendril join there once more"},
	"calls_of_whole_token": {"PT422", "only a token that reads or proposes can have a limit of calls a minute", "choose what it may do, or leave the limit empty"},
	"bad_overlap":          {"PT422", "enter how many hours older tokens stay valid, 0 to 720", ""},
	"token_missing":        {"PT422", "choose which token to revoke", ""},
	"bad_interval":         {"PT422", "choose a drift schedule", ""},
	"bad_snapshot":         {"PT422", "the latest deploy can't be repeated: %s", "deploy it again"},
}

// refuse is one of them; what it names is put in.
func refuse(reason string, named ...any) *store.RefusedError {
	r := ownRefusals[reason]
	e := &store.RefusedError{Code: r[0], Reason: reason, Message: r[1], Hint: r[2]}
	if len(named) > 0 && reason == "not_confirmed" {
		e.Hint = fmt.Sprintf(e.Hint, named...)
	} else if len(named) > 0 {
		e.Message = fmt.Sprintf(e.Message, named...)
	}
	return e
}

// namedField is a field as SQL and agents name it at the beginning of a line: a function's
// parameter, or a path within a snapshot.
var namedField = regexp.MustCompile(`(?m)^(?:(p_[a-z_]+)((?:\.[A-Za-z0-9_-]+)*)|(?:config_snapshot\.)?((?:terraform_vars|sealed_vars)\.[^:\s]+)|config_snapshot((?:\.[^:\s]+)?)): `)

// fieldLabels are the labels of fields on pages, for what is not the name in other letters.
var fieldLabels = map[string]string{
	"p_age_public_key": "Public key", "p_email": "E-mail address", "p_every": "Schedule", "p_lasts": "Valid for", "p_org": "Organisation",
	"p_overlap": "Older tokens stay valid for", "p_repo": "Repository", "p_user": "User", "p_key": "Key",
	"p_policy.approval": "Approval", "p_policy.approvers": "Who approves", "p_policy.four_eyes": "Four eyes", "p_policy.approval_expiry": "Plans wait for",
	".template_source.repo": "Repository", ".template_source.version": "Version", ".template_source.path": "Path", ".template_source": "Template",
	".terraform.engine": "Engine", ".terraform.version": "Engine version", ".workspace": "Workspace", ".approval": "Approval",
	".timeout_seconds": "Time-out", ".max_attempts": "Attempts", "": "Configuration",
}

// labelled names fields by the labels that pages give them, where a message names them as
// SQL or an agent does: "p_email: …" is "E-mail address: …".
func labelled(message string) string {
	return namedField.ReplaceAllStringFunc(message, func(named string) string {
		m := namedField.FindStringSubmatch(named)
		parameter, below, variable, path := m[1], m[2], m[3], m[4]
		switch {
		case variable != "":
			_, name, _ := strings.Cut(variable, ".")
			return name + ": "
		case parameter == "p_answer" && strings.Count(below, ".") > 1: // an output, or a fact of a machine
			_, name, _ := strings.Cut(below[1:], ".")
			return strings.ReplaceAll(name, ".", " ") + ": "
		case parameter != "":
			for _, name := range []string{parameter + below, parameter} {
				if label, known := fieldLabels[name]; known {
					return label + ": "
				}
			}
			if below != "" {
				return spoken(below[strings.LastIndex(below, ".")+1:]) + ": "
			}
			return spoken(strings.TrimPrefix(parameter, "p_")) + ": "
		}
		if label, known := fieldLabels[path]; known {
			return label + ": "
		}
		return spoken(path[strings.LastIndex(path, ".")+1:]) + ": "
	})
}

// spoken makes a label of a name: "display_name" is "Display name".
func spoken(name string) string { return capital(strings.ReplaceAll(name, "_", " ")) }
