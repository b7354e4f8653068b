package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
)

// configuration is what all operations have in common in the document.
func configuration(version string) huma.Config {
	c := huma.DefaultConfig("Tendril", version)
	c.OpenAPIPath, c.DocsPath, c.SchemasPath = "", "", "" // served below; all in one document
	c.CreateHooks = nil                                   // no $schema in answers
	c.RejectUnknownQueryParameters = true
	c.Formats = formats()
	c.Transformers = []huma.Transformer{asProblem}
	c.Components.Schemas.RegisterTypeAlias(reflect.TypeFor[huma.ErrorModel](), reflect.TypeFor[Problem]())
	c.Components.Schemas.RegisterTypeAlias(reflect.TypeFor[uuid.UUID](), reflect.TypeFor[uuidText]())
	c.Info.Description = description
	c.Tags = tags
	c.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"bearer": {Type: "http", Scheme: "bearer", Description: "An API token of your own, or a JWT of the issuer that this server trusts."},
		"cookie": {Type: "apiKey", In: "cookie", Name: "__Host-trellis", Description: "The session of a browser that has signed in. Over plain HTTP its name is trellis_ and the port."},
	}
	c.Security = []map[string][]string{{"bearer": {}}, {"cookie": {}}}
	return c
}

// uuidText is what a UUID is in the document.
type uuidText struct{}

// Schema implements huma.SchemaProvider.
func (uuidText) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "uuid"}
}

// complete puts into the document what the types do not say: what fields of other
// packages mean, the values they may have, that lists are never null, and what a
// snapshot is.
func complete(o *huma.OpenAPI) {
	for name, schema := range o.Components.Schemas.Map() {
		for key, field := range schema.Properties {
			if field.Description == "" {
				field.Description = cmp.Or(fields[name][key], fields["Standing"][key], fields[""][key])
			}
			if field.Type == huma.TypeArray {
				field.Nullable = false
			}
			if possible := words[name+"."+key]; possible != nil {
				field.Enum = possible
				field.PrecomputeMessages() // which name them
			}
		}
	}
	o.Components.Schemas.Map()["Snapshot"] = snapshotSchema
	for _, path := range o.Paths {
		for _, op := range []*huma.Operation{path.Get, path.Put, path.Post, path.Patch, path.Delete} {
			if op == nil {
				continue
			}
			for status, response := range op.Responses {
				response.Description = cmp.Or(meaning[status], response.Description)
				if status == "503" {
					response.Headers = map[string]*huma.Param{"Retry-After": {Description: "When to try again, in seconds.", Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"2"}}}}
				}
			}
		}
	}
}

// rendered is the document as JSON and as YAML. What a snapshot is stands in the
// document alone: the database checks it, and names everything that is wrong at
// once.
func rendered(o *huma.OpenAPI) (asJSON, asYAML []byte) {
	for _, schema := range o.Components.Schemas.Map() {
		if field, ok := schema.Properties["config_snapshot"]; ok {
			schema.Properties["config_snapshot"] = &huma.Schema{Ref: "#/components/schemas/Snapshot", Description: field.Description}
			defer func() { schema.Properties["config_snapshot"] = field }()
		}
	}
	asJSON, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		panic(err) // made of our own types, at the start
	}
	if asYAML, err = o.YAML(); err != nil {
		panic(err)
	}
	return asJSON, asYAML
}

// serveDocument serves the OpenAPI document, to anybody: it has nothing that is
// not in the source. It returns it as JSON.
func serveDocument(mux *http.ServeMux, o *huma.OpenAPI) []byte {
	documentSignIn(o)
	complete(o)
	asJSON, asYAML := rendered(o)
	for path, document := range map[string]struct {
		mediaType string
		content   []byte
	}{
		"/openapi.json": {"application/openapi+json", asJSON},
		"/openapi.yaml": {"application/openapi+yaml", asYAML},
	} {
		mux.HandleFunc("GET "+prefix+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", document.mediaType)
			w.Header().Set("Cache-Control", "no-cache")
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(document.content))
		})
	}
	return asJSON
}

// meaning is what a status says in every operation.
var meaning = map[string]string{
	"400": "The request cannot be read: its query, or its body, which is no JSON or broken off.",
	"401": "Nobody is signed in.",
	"403": "You may see this, but not do it.",
	"404": "There is no such thing, or none that you may see or do this with.",
	"406": "The answer is JSON, which the Accept header does not take.",
	"408": "The body took too long to arrive.",
	"409": "It cannot be done as things are now; or a request with that Idempotency-Key is being carried out.",
	"411": "There is no Content-Length.",
	"413": "The body is larger than it may be.",
	"415": "The body has another media type than it must have.",
	"422": "Something in the request is not right: errors name the fields.",
	"429": "Too much of it: try again later.",
	"500": "Something went wrong that is not the request's fault. The instance is in the server's log.",
	"503": "The database is away or busy: try again.",
}

var tags = []*huma.Tag{
	{Name: "Provisions", Description: "Ask for a deploy and follow it: what it is waiting for, its plan, its log, how it ended."},
	{Name: "Logs", Description: "What a provision prints and what happens to it: so far, and while it happens."},
	{Name: "Decisions", Description: "Approve, reject, cancel, try again."},
	{Name: "Workspaces", Description: "One Terraform state each: what exists there, what has drifted, who has locked it."},
	{Name: "Clusters", Description: "Where agents live."},
	{Name: "Templates", Description: "The catalogue of what can be deployed."},
	{Name: "Notifications", Description: "Who is told by HTTP of what happens. Messages are signed as the Standard Webhooks specification says (webhook-id, webhook-timestamp, webhook-signature)."},
	{Name: "People", Description: "Who is signed in, who belongs to an organisation, who did what."},
}

const description = `Everything that the console and the command line do, for programs.

Every request runs as the person who is signed in, and sees and may do what their role in the organisation says: a viewer reads, an operator deploys, approves and cancels, an admin manages the rest. What belongs to others is answered as what does not exist.

**Errors** are problem documents (RFC 9457) with a stable word (reason) and the fields that are wrong (errors). **Lists** come in pages: give next_cursor as cursor to get the one that follows; only its absence is the end, for a page of a filtered list may have few entries, or none, before that. **What makes something** takes an Idempotency-Key, and everything else may be sent twice without harm. **Times** are RFC 3339 in UTC. Fields that are not known are refused.`
