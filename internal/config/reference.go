package config

import (
	"fmt"
	"strings"
)

// Reference is the table of all keys, in Markdown.
func Reference() string {
	var table strings.Builder
	table.WriteString("| key | environment | default | what it is |\n|---|---|---|---|\n")
	preset := defaults(environment{})
	for _, k := range keys() {
		usually := k.usually
		if text := k.text(preset); usually == "" && text != "" {
			usually = "`" + text + "`"
		}
		fmt.Fprintf(&table, "| `%s` | `%s` | %s | %s Must be %s. |\n", k.name, k.env(), usually, k.about,
			strings.ReplaceAll(k.allowed, "*", `\*`))
	}
	fmt.Fprintf(&table, "| | `%s` | | The cluster's token itself; never in the file. |\n", tokenEnv)
	return table.String()
}
