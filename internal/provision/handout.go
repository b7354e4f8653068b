package provision

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// HandOutOutput is the output in which a reveal leaves credentials, sealed: those of one
// machine by their names, or of all machines of the workspace as a list of HandedOut.
const HandOutOutput = "credentials"

// HandedOut is a machine and what signs in to it, for the person who gets it.
type HandedOut struct {
	Name     string `json:"name"`
	Address  string `json:"address"`
	Port     int    `json:"port"` // of SSH
	User     string `json:"user"`
	Password string `json:"password"`
	// Command signs in by SSH; "" where what is recorded of the machine makes none.
	Command string `json:"command"`
	// Others are credentials of other names than the user's and the password's.
	Others map[string]string `json:"others"`
}

// HandOut says of a machine what its user needs. A root_password is root's.
func HandOut(m Machine, credentials map[string]string) HandedOut {
	h := HandedOut{Name: m.Name, Port: cmp.Or(m.SSHPort, 22), User: m.SSHUser, Others: map[string]string{}}
	if len(m.IPAddresses) > 0 {
		h.Address = m.IPAddresses[0]
	}
	maps.Copy(h.Others, credentials)
	take := func(name string) (value string, there bool) {
		value, there = h.Others[name]
		delete(h.Others, name)
		return value, there
	}
	if user, there := take("user"); there {
		h.User = user
	}
	if password, there := take("password"); there {
		h.Password = password
	} else if password, there := take("root_password"); there {
		h.User, h.Password = "root", password
	}
	if to, err := NewSSH(h.Address, h.Port, h.User); err == nil {
		h.Command = to.Command()
	}
	return h
}

// HandOutCSV is the list as a file for spreadsheets: RFC 4180, with a column for each other
// credential that a machine has. Browsers make the same by handout.js.
func HandOutCSV(list []HandedOut) string {
	others := map[string]bool{}
	for _, h := range list {
		for name := range h.Others {
			others[name] = true
		}
	}
	more := slices.Sorted(maps.Keys(others))
	rows := [][]string{append([]string{"name", "address", "ssh_port", "user", "password", "ssh_command"}, more...)}
	for _, h := range list {
		row := []string{h.Name, h.Address, strconv.Itoa(h.Port), h.User, h.Password, h.Command}
		for _, name := range more {
			row = append(row, h.Others[name])
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(`"` + strings.ReplaceAll(plainCell(cell), `"`, `""`) + `"`)
		}
		b.WriteString("\r\n")
	}
	return b.String()
}

// plainCell is a cell that no spreadsheet takes for a formula: what would begin one gets an
// apostrophe before it. Names of machines are a template's words.
func plainCell(text string) string {
	if text != "" && strings.ContainsAny(text[:1], "=+-@\t\r\n") {
		return "'" + text
	}
	return text
}
