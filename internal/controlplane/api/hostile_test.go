package api_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// hostile are texts that a field or a name may be given.
var hostile = []string{"\x00", "\xff", "..", "99999999999999999999", "\U0001f642\u202e", strings.Repeat("x", 300)}

// escaped is a text as one segment of a path, and nothing of it left to be cleaned.
var escaped = strings.NewReplacer("+", "%20", ".", "%2E")

// Whatever is sent to an operation, by who may do it or by a stranger: it is the
// sender's fault, is said so, and is nothing for the server's log.
func TestWhatIsHostileIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.scene(t)
	methods, lists := map[string]string{}, map[string]bool{}
	for _, of := range newChecker(w.handler).paths {
		for method, op := range of {
			methods[op.OperationID] = strings.ToUpper(method)
			for _, p := range op.Parameters {
				lists[op.OperationID] = lists[op.OperationID] || p.Name == "cursor"
			}
		}
	}
	send := func(who, method, path, body string) {
		t.Helper()
		if got := w.as(t, who, method, path, body); got.status >= 500 || got.text("reason") == "too_many_tries" {
			t.Errorf("%s: %s %.300s %.300s = %d %s, want no fault of the server's", who, method, path, body, got.status, got.body)
		}
	}
	for name, r := range rules {
		if r.streams || r.least == nobody {
			continue
		}
		body := r.fill(r.body, ids)
		for _, text := range hostile {
			for key := range ids {
				if strings.Contains(r.path, "<"+key+">") {
					path := r.fill(strings.ReplaceAll(r.path, "<"+key+">", escaped.Replace(url.QueryEscape(text))), ids)
					send("admin", methods[name], path, body)
				}
			}
			for _, changed := range withText(body, text) {
				send("admin", methods[name], r.fill(r.path, ids), changed)
			}
		}
		if !lists[name] {
			continue
		}
		separator := "?"
		if strings.Contains(r.path, "?") {
			separator = "&"
		}
		for _, list := range []string{"provisions", "workspaces", "clusters", "templates", "resources", "machines", "members", "audit", "deliveries"} {
			for _, key := range []string{`-1`, `9223372036854775807`, `1e400`, `"\u0000"`, `null`, `{}`, `"0001-01-01T00:00:00Z"`, `"` + strings.Repeat("x", 1000) + `"`} {
				switch list {
				case "workspaces":
					key += "," + key
				case "machines":
					key += `,"00000000-0000-0000-0000-000000000001"`
				}
				send("admin", http.MethodGet, r.fill(r.path, ids)+separator+"cursor="+base64.RawURLEncoding.EncodeToString([]byte(`["`+list+`",`+key+`]`)), "")
			}
		}
	}
	for _, deep := range []string{strings.Repeat(`[`, 9_000) + strings.Repeat(`]`, 9_000), strings.Repeat(`{"a":`, 9_000) + `1` + strings.Repeat(`}`, 9_000), strings.Repeat(`[`, 500_000)} {
		for _, field := range []string{"terraform_vars", "meta", "sealed_vars", "targets"} {
			send("admin", http.MethodPost, "/provisions", `{"cluster": "prod", "config_snapshot": {"template_source": {"repo": "https://git.example/a/b", "version": "v1"}, "workspace": "deep", "`+field+`": {"a": `+deep+`}}}`)
		}
	}
	if said := w.logged.String(); said != "" {
		t.Errorf("the log has %.2000q, want nothing", said)
	}
}

// withText are a body's variants in which one text is another.
func withText(body, text string) (variants []string) {
	var fields map[string]any
	if json.Unmarshal([]byte(body), &fields) != nil {
		return nil
	}
	for name, value := range fields {
		if _, ok := value.(string); !ok {
			continue
		}
		fields[name] = text
		changed, _ := json.Marshal(fields) // it was JSON before
		variants = append(variants, string(changed))
		fields[name] = value
	}
	return variants
}
