package console

import (
	"regexp"
	"strings"
)

// namedField is a field as SQL and agents name it at the beginning of a line: a function's
// parameter, or a path within a snapshot.
var namedField = regexp.MustCompile(`(?m)^(?:(p_[a-z_]+)((?:\.[a-z_]+)*)|(?:config_snapshot\.)?((?:terraform_vars|sealed_vars)\.[^:\s]+)|config_snapshot((?:\.[^:\s]+)?)): `)

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
