package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
)

// FirstRelease is the version that brought every key that names no other.
const FirstRelease = "0.1.0"

// Reference is the Markdown reference of all keys: a section and a table for
// each TOML table.
func Reference() string {
	var page strings.Builder
	preset, section := defaults(environment{}), "none yet"
	for _, k := range keys() {
		if title := k.title(); title != section {
			section = title
			fmt.Fprintf(&page, "\n## Agent: %s\n\n| key | type | default | environment | since | description |\n|---|---|---|---|---|---|\n", section)
		}
		usually := k.usually
		if text := k.text(preset); usually == "" && text != "" {
			usually = "`" + text + "`"
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s | `%s` | %s | %s Must be %s. |\n", k.name, k.kind(), cmp.Or(usually, "none"), k.env(), cmp.Or(k.since, FirstRelease), k.about,
			strings.ReplaceAll(k.allowed, "*", `\*`))
	}
	page.WriteString("\n## Agent: variables without a key\n\n| variable | type | default | since | description |\n|---|---|---|---|---|\n")
	for _, v := range [][3]string{
		{tokenEnv, "string", "The cluster's token. It is never in the file; `queue.token_file` may name a file with it."},
		{joinTokenEnv, "string", "A one-time join token. It is never in the file; `queue.join_token_file` may name a file with it."},
		{fileEnv, "path", "The configuration file, where `--config` does not name one."},
		{supabaseURL, "string", "The queue's URL, where `queue.url` and `queue.url_file` are not set."},
		{supabaseKey, "string", "The project's public key, where `queue.api_key` is not set."},
	} {
		fmt.Fprintf(&page, "| `%s` | %s | none | %s | %s |\n", v[0], v[1], FirstRelease, v[2])
	}
	return page.String()
}

// title names the section of the reference that a key is in.
func (k key) title() string {
	switch table, _, dotted := strings.Cut(k.name, "."); {
	case dotted:
		return "`[" + table + "]`"
	case strings.HasPrefix(k.name, "credentials"):
		return "`[[credentials]]`"
	case k.name == "pools":
		return "`[[pools]]`"
	default:
		return "keys outside of tables"
	}
}

// kind is the type of a key's value in TOML.
func (k key) kind() string {
	switch k.field(&Config{}).(type) {
	case *int:
		return "number"
	case *bool:
		return "boolean"
	case *[]string:
		return "list"
	case *Duration:
		return "duration"
	case *Size:
		return "size"
	case *string, *slog.Level:
		if k.path {
			return "path"
		}
		return "string"
	default:
		return "table"
	}
}
