package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
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
		"bearer":    {Type: "http", Scheme: "bearer", Description: "An API token of your own, or a JWT of the issuer that this server trusts."},
		"signature": {Type: "http", Scheme: "signature", Description: "HTTP Message Signatures (RFC 9421) with the Ed25519 key of an agent that has joined, over method, authority, path and query."},
		"cookie":    {Type: "apiKey", In: "cookie", Name: "__Host-trellis", Description: "The session of a browser that has signed in. Over plain HTTP its name is trellis_ and the port."},
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

// complete puts into the document what the types do not say: what fields of package
// provision mean, that lists are never null, and what a snapshot is.
func complete(o *huma.OpenAPI) {
	for name, schema := range o.Components.Schemas.Map() {
		for key, field := range schema.Properties {
			if field.Description == "" {
				field.Description = fields[name][key]
			}
			if field.Type == huma.TypeArray {
				field.Nullable = false
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

// whole has a function read the document with what a snapshot is, which stands there
// alone: the database checks it, and names everything that is wrong at once.
func whole(o *huma.OpenAPI, read func(*huma.OpenAPI)) {
	for _, schema := range o.Components.Schemas.Map() {
		if field, ok := schema.Properties["config_snapshot"]; ok {
			schema.Properties["config_snapshot"] = &huma.Schema{Ref: "#/components/schemas/Snapshot", Description: field.Description}
			defer func() { schema.Properties["config_snapshot"] = field }()
		}
	}
	read(o)
}

// serveDocument serves the OpenAPI document, to anybody: it has nothing that is
// not in the source.
func serveDocument(mux *http.ServeMux, o *huma.OpenAPI) {
	documentSignIn(o)
	documentPending(o)
	complete(o)
	var asJSON, asYAML []byte
	whole(o, func(o *huma.OpenAPI) {
		var err1, err2 error
		asJSON, err1 = json.MarshalIndent(o, "", "  ")
		asYAML, err2 = o.YAML()
		if err := errors.Join(err1, err2); err != nil {
			panic(err) // made of our own types, at the start
		}
	})
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
}

// meaning is what a status says in every operation.
var meaning = map[string]string{
	"400": "The request cannot be read: its query, or its body, which is no JSON or broken off.",
	"401": "Nobody is signed in.",
	"403": "You may see this, but not do it.",
	"404": "Not found, or you have no access to it.",
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
	{Name: "Machines", Description: "The machines that runs have made, as they were last reported."},
	{Name: "Servers", Description: "Bare-metal servers of pools of kind ironic: provisioning, and how it stands."},
	{Name: "Pools", Description: "Where machines are made: what agents report, quotas, and the names of images."},
	{Name: "Clusters", Description: "Where agents live."},
	{Name: "Agents", Description: "What a program reads as an agent, by its key. Errors have the form of PostgREST's."},
	{Name: "Templates", Description: "The catalogue of what can be deployed."},
	{Name: "Notifications", Description: "Who is told by HTTP of what happens. Messages are signed as the Standard Webhooks specification says (webhook-id, webhook-timestamp, webhook-signature)."},
	{Name: "People", Description: "Who is signed in, who belongs to an organisation, who did what."},
}

const description = `Everything that the console and the command line do, for programs.

Every request runs as the person who is signed in, and sees and may do what their role in the organisation says: a viewer reads, an operator deploys, approves and cancels, an admin manages the rest. What belongs to others is answered as what does not exist.

**Errors** are problem documents (RFC 9457) with a stable word (reason) and the fields that are wrong (errors). **Lists** come in pages: give next_cursor as cursor to get the one that follows; only its absence is the end, for a page of a filtered list may have few entries, or none, before that. **What makes something** takes an Idempotency-Key, and everything else may be sent twice without harm. **Times** are RFC 3339 in UTC. Fields that are not known are refused.`

// fields says what the fields of package provision's types mean, for the document:
// agents and the database speak of these as well. A test finds what is missing.
var fields = map[string]map[string]string{
	"About":   {"title": "Its title.", "description": "What it is for.", "icon": "The icon that it names.", "provisioner": "What carries it out: terraform, script, manual or machine."},
	"Running": {"address": "The resource.", "action": "What is done to it: create, update, delete and the like.", "since": "Since when.", "step": "The label of the step that it is in.", "percent": "How much of that step is done."},
	"PlanSummary": {
		"add": "Resources to make.", "change": "To change in place.", "destroy": "To destroy.", "replace": "To destroy and create again.",
		"import": "To take into the state.", "move": "To call otherwise.", "forget": "To leave out of the state, and in the world.",
		"resources": "Each of them, at most 1,000, those that take something away first.", "truncated": "How many changes are not listed.",
	},
	"InputOutput": {"name": "The output.", "type": "string, number or bool.", "description": "What it is for.", "sensitive": "Its value must be sealed."},
	"InputMachine": {
		"name": "The machine.", "action": "What is to be done to it: create, change, replace or destroy.", "pool": "The pool that it is to be in.", "image": "What it is to be made from.",
		"address": "The IP address that it is to have.", "cores": "Its processor cores.", "memory_mib": "Its memory in MiB.", "disk_gib": "Its disk in GiB.", "known": "What is recorded of it.",
	},
	"InputFacts": {"external_id": "What it is known by where it is.", "address": "The IP address to reach it at.", "addresses": "All its IP addresses.", "ssh_port": "The port of its SSH server; left out: 22."},
	"PlannedChange": {
		"address": "The resource.", "action": "create, update, delete, replace, import, move or forget.", "from": "What a moved one was called before.",
		"id": "What an imported one is known by.", "reason": "Why, in the engine's word, such as replace_because_tainted.",
		"attributes": "What of it changes, at most 100.", "truncated": "How many attributes are not listed.",
	},
	"AttributeChange": {
		"path": "Such as tags.name or ports[0].", "before": "The value until now, as JSON. Absent where there is none, or it is not shown.",
		"after": "The value from then on.", "sensitive": "The values are not shown, for one of them is sensitive.",
		"unknown": "The value is known after the apply.", "long": "The values are not shown, for one is longer than 1 KiB.",
		"replaces": "This is why the resource is replaced.",
	},
	"Output": {
		"type": "The engine's type, as JSON.", "value": "The value, as JSON. Absent for a sensitive one.", "sensitive": "Its value is not shown.",
		"sealed":  "The value of a sensitive one, as JSON, in an armoured age message to the snapshot's requester_key.",
		"omitted": "The value was too large to be recorded.",
	},
	"Variable": {
		"name": "What it is called.", "type": "Its type, in the engine's words.", "description": "What it is for.", "default": "The value it has unless given, as JSON.", "required": "It must be given.",
		"sensitive": "It belongs into sealed_vars.", "nullable": "It may be null.", "ephemeral": "It is in no plan and no state.", "type_json": "Its type as JSON.",
	},
}

// snapshotSchema is what a config_snapshot is, for readers of the document. It is
// checked by the database alone.
var snapshotSchema = &huma.Schema{
	Type:        huma.TypeObject,
	Description: "What to deploy: which template, with which variables, into which workspace. At most 256 KiB. The database checks it when the provision is made, and names every field that is wrong.",
	Required:    []string{"template_source"},
	Examples: []any{map[string]any{
		"template_source": map[string]any{"repo": "https://git.example/acme/envtempl", "version": "v1.2.0"},
		"terraform_vars":  map[string]any{"project_name": "acme", "environment": "prod", "region": "eu-central-1"},
	}},
	Properties: map[string]*huma.Schema{
		"template_source": {
			Type: huma.TypeObject, Description: "The template, at one point of its history.", Required: []string{"repo", "version"},
			Properties: map[string]*huma.Schema{
				"repo":    text("https://HOST/PATH, ssh://[USER@]HOST/PATH, USER@HOST:PATH or file:///PATH. Credentials belong to the agents, not here."),
				"version": text("A tag or a full commit, never a branch."),
				"path":    text("The template's directory there; absent: the root."),
			},
		},
		"terraform_vars": {Type: huma.TypeObject, AdditionalProperties: true, Description: "The template's variables by their names. What is sensitive belongs into sealed_vars."},
		"sealed_vars":    {Type: huma.TypeObject, AdditionalProperties: text(`An armoured age message to the cluster's age_public_key. Inside is {"v": 2, "cluster": NAME, "workspace": NAME, "repo": URL, "name": VARIABLE, "value": VALUE}, as "trellis seal" makes it; repo is in its canonical form. It opens for that use only.`), Description: "Variables that only the cluster's agents can read, each for one cluster, workspace, template repository and variable."},
		"workspace":      text("The workspace: letters, digits and . _ / - , at most 128. Absent: project_name/environment, of the variables of those names."),
		"terraform": {
			Type: huma.TypeObject, Description: "The engine. What is not said is up to the template and the agent.",
			Properties: map[string]*huma.Schema{
				"engine":  {Type: huma.TypeString, Enum: []any{"terraform", "tofu"}, Description: "Which engine."},
				"version": text("Exactly which version, such as 1.11.4."),
			},
		},
		"targets":         {Type: huma.TypeArray, Items: text("A resource's address."), Description: "Only these resources, as -target has it."},
		"replace":         {Type: huma.TypeArray, Items: text("A resource's address."), Description: "Replace these, as with -replace."},
		"approval":        {Type: huma.TypeString, Enum: []any{"never", "destructive", "always"}, Description: "When the plan must be approved. Template and cluster may want more, never less."},
		"timeout_seconds": {Type: huma.TypeInteger, Description: "How long the run may take, in seconds. The agent's own limit counts as well."},
		"max_attempts":    {Type: huma.TypeInteger, Description: "How often to try, where it fails for a reason that may pass and before its apply has begun. Absent: once."},
		"requester_key":   text("The public key, age1… or ssh-ed25519 …, to which sensitive outputs and results are sealed, or a certificate of one. The agent seals to whom its policy.requester_keys name."),
		"power":           text("For the operation power: start, stop or restart the machines that targets names, or rescue (boot the rescue system of a bare-metal server, whose password is among the machine's credentials) or unrescue them."),
		"lock_id":         text("For the operation unlock: the lock to release."),
		"state": {
			Type: huma.TypeObject, Description: "For the operation state: what to do with it.", Required: []string{"command"},
			Properties: map[string]*huma.Schema{
				"command": {Type: huma.TypeString, Enum: []any{"pull", "push", "list", "rm", "mv", "import", "rollback", "adopt", "reveal"}, Description: "What to do."},
				"args":    {Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}, Description: "The addresses of rm, mv and reveal (none: all machines); address and id of import."},
				"upload":  text("The id of the upload that push takes."),
				"order":   text("The signed order without which an agent carries out no push and no rollback; the command line makes it."),
				"version": {Type: huma.TypeInteger, Description: "The state that rollback goes back to, or pull reads. Absent: the newest."},
			},
		},
		"meta": {Type: huma.TypeObject, AdditionalProperties: true, Description: "Your own: who, why. Nothing depends on it."},
	},
}

func text(description string) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: description}
}

// documentSignIn adds to the document what package signin answers below the prefix:
// no operation of this package, for nobody is signed in who asks for a token.
func documentSignIn(o *huma.OpenAPI) {
	schema := func(name string, of any) *huma.Schema {
		return o.Components.Schemas.Schema(reflect.TypeOf(of), true, name)
	}
	content := func(mediaType string, s *huma.Schema) map[string]*huma.MediaType {
		return map[string]*huma.MediaType{mediaType: {Schema: s}}
	}
	responses := func(own map[string]*huma.Response, problems ...int) map[string]*huma.Response {
		for _, status := range problems {
			text := strconv.Itoa(status)
			own[text] = &huma.Response{Description: meaning[text], Content: content(problemType, schema("Problem", Problem{}))}
		}
		return own
	}
	o.AddOperation(&huma.Operation{
		OperationID: "get-cli-token", Method: http.MethodPost, Path: prefix + "/cli/token", Tags: []string{"People"},
		Summary: "Change a code from the browser for an API token",
		Description: "How trellis login ends: it sends a browser to /cli/authorize with port, state, challenge and host; the person says yes there, and the browser brings a code to that port of 127.0.0.1. " +
			"What shows it needs not be signed in. A code that has been used, or is another's, is refused (403, code_invalid).",
		Security:    []map[string][]string{},
		RequestBody: &huma.RequestBody{Required: true, Content: content("application/json", schema("CLICode", wire.CliCode{}))},
		Responses: responses(map[string]*huma.Response{"200": {Description: "The token", Content: content("application/json", schema("CLIToken", wire.CliToken{}))}},
			http.StatusBadRequest, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable),
	})
	o.AddOperation(&huma.Operation{
		OperationID: "revoke-cli-token", Method: http.MethodDelete, Path: prefix + "/cli/token", Tags: []string{"People"},
		Summary: "Revoke the API token that asks", Description: "How trellis logout ends.",
		Security:  []map[string][]string{{"bearer": {}}},
		Responses: responses(map[string]*huma.Response{"204": {Description: "It has ended"}}, http.StatusUnauthorized, http.StatusServiceUnavailable),
	})
}

// documentPending describes what the gateway serves beside the functions of agents.
func documentPending(o *huma.OpenAPI) {
	schema := func(name string, of any) *huma.Schema {
		return o.Components.Schemas.Schema(reflect.TypeOf(of), true, name)
	}
	says := func(what, name string, of any) *huma.Response {
		return &huma.Response{Description: what, Content: map[string]*huma.MediaType{"application/json": {Schema: schema(name, of)}}}
	}
	o.AddOperation(&huma.Operation{
		OperationID: "list-pending-contracts", Method: http.MethodGet, Path: prefix + "/providers/{pubkey}/contracts/pending-provision", Tags: []string{"Agents"},
		Summary:     "What waits for the agent with this key",
		Description: "The most urgent first, at most 100. It takes nothing: an agent claims by fetch_next_provision. The request must be signed by that key.",
		Security:    []map[string][]string{{"signature": {}}},
		Parameters: []*huma.Param{{Name: "pubkey", In: "path", Required: true, Description: "The Ed25519 public key, as 64 hexadecimal digits.",
			Schema: &huma.Schema{Type: huma.TypeString, Pattern: "^[0-9A-Fa-f]{64}$"}}},
		Responses: map[string]*huma.Response{
			"200": says("What waits", "PendingContracts", []wire.PendingContract{}),
			"401": says("It is not signed by that key, or the key has not joined or is revoked.", "AgentError", wire.AgentError{}),
			"429": says("Too many requests from this address.", "AgentError", wire.AgentError{}),
			"503": says("The database is away or busy.", "AgentError", wire.AgentError{}),
		},
	})
}
