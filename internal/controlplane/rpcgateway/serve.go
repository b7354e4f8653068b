package rpcgateway

import (
	"encoding/json"
	"mime"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/postgrest"
)

// unknown stands in the log for what is none of the functions served.
const unknown = "-"

// serve takes a request through all steps. It has written the answer if it
// returns no refusal. The name is for the log.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, address netip.Addr) (name string, no *refusal) {
	name = unknown
	if wait, ok := g.rates.Allow(address); !ok {
		return name, tooMany(wait)
	}
	if no := g.checkKey(r.Header); no != nil {
		return name, no
	}
	function, isCall := postgrest.FunctionOf(r.URL.Path)
	if !isCall {
		return name, noPlace(r.URL.Path)
	}
	if slices.Contains(g.options.Functions, function) {
		name = function
	}
	if no := checkMethod(r.Method, function, name != unknown); no != nil {
		return name, no
	}
	if r.Method == http.MethodOptions {
		w.Header().Set("Allow", allowed)
		w.WriteHeader(http.StatusOK)
		return name, nil
	}
	if no := checkRequest(r, function); no != nil {
		return name, no
	}
	preferred, no := preferencesOf(r.Header)
	if no != nil {
		return name, no
	}
	share, leave := g.shares.of(address)
	defer leave()
	body, done, no := g.readBody(w, r, share)
	defer done()
	if no != nil {
		return name, no
	}
	fields, no := parseArguments(body)
	if no != nil {
		return name, no
	}
	return name, g.answer(w, r, share, function, fields, preferred)
}

// answer calls the function and writes what it answers. While that is written
// the call is over: who reads slowly holds nothing that others need.
func (g *Gateway) answer(w http.ResponseWriter, r *http.Request, share *share, function string, fields map[string]json.RawMessage, preferred preferences) *refusal {
	answer, no := g.callInTurn(r, share, function, fields)
	if no != nil {
		return no
	}
	preferred.apply(w.Header(), answer.rows)
	if answer.json == nil {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	w.Header().Set("Content-Type", postgrest.AnswerContentType)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(answer.json) // JSON that the database wrote; a client that is gone is not told
	return nil
}

// callInTurn is call within the bounds of calls at once.
func (g *Gateway) callInTurn(r *http.Request, share *share, function string, fields map[string]json.RawMessage) (answered, *refusal) {
	if !share.calls.TryAcquire(1) {
		return answered{}, sqlRefusal("PT503", "too many calls at once from one address", "busy", "try again")
	}
	defer share.calls.Release(1)
	if !g.calls.TryAcquire(1) {
		return answered{}, sqlRefusal("PT503", "too many calls at once", "busy", "try again")
	}
	defer g.calls.Release(1)
	answer, no := g.call(r, share, function, fields)
	if no != nil && no.code() == undefinedFunction {
		// It was changed a moment ago, and the notice is still on its way.
		g.catalogue.changed()
		answer, no = g.call(r, share, function, fields)
	}
	return answer, no
}

const undefinedFunction = "42883"

func (g *Gateway) call(r *http.Request, share *share, function string, fields map[string]json.RawMessage) (answered, *refusal) {
	f, no := g.catalogue.find(r.Context(), function, names(fields))
	if no != nil {
		return answered{}, no
	}
	return g.caller.call(r.Context(), share.conns, f, fields)
}

// noPlace tells of a path that calls nothing, in PostgREST's words.
func noPlace(path string) *refusal {
	no := &refusal{status: http.StatusNotFound}
	rest, under := strings.CutPrefix(path, "/rest/v1/")
	switch {
	case under && rest == "", path == "/rest/v1":
		no.body = postgrest.NewError(postgrest.CodeNoRoot, "Root endpoint metadata is disabled", "", "")
	case under && !strings.Contains(rest, "/"):
		no.body = postgrest.NewError(postgrest.CodeNoTable,
			"Could not find the table '"+postgrest.Schema+"."+shortened(rest)+"' in the schema cache", "", "")
	default:
		no.body = postgrest.NewError(postgrest.CodeBadPath, "Invalid path specified in request URL", "", "")
	}
	return no
}

// allowed is what a function can be asked by here.
const allowed = "OPTIONS,POST"

func checkMethod(method, function string, known bool) *refusal {
	no := &refusal{status: http.StatusMethodNotAllowed, header: map[string]string{"Allow": allowed}}
	switch method {
	case http.MethodPost:
		return nil
	case http.MethodOptions:
		if known {
			return nil
		}
		return noFunction(function, nil, "")
	case http.MethodGet, http.MethodHead:
		if !known {
			return noFunction(function, nil, "")
		}
		// PostgREST calls in a read-only transaction then, with what is in the
		// query, and refuses what changes something in these words. A token hash
		// does not belong into a query, so what only reads is refused as well.
		no.body = postgrest.NewError("25006", "cannot execute "+function+" in a read-only transaction", "", "use POST")
	default:
		no.body = postgrest.NewError(postgrest.CodeBadMethod, "Cannot use the "+shortened(method)+" method on RPC", "", "")
	}
	return no
}

// checkRequest refuses what is odd about a POST besides its body.
func checkRequest(r *http.Request, function string) *refusal {
	if r.URL.RawQuery != "" {
		return badRequest(postgrest.CodeBadQuery, "Query parameters are not taken; arguments belong into the body")
	}
	if profile := r.Header.Get(postgrest.ContentProfile); profile != "" && profile != postgrest.Schema {
		return &refusal{status: http.StatusNotAcceptable, body: postgrest.NewError(postgrest.CodeNoSuchProfile,
			"Invalid schema: "+shortened(profile), "", "Only the following schemas are exposed: "+postgrest.Schema)}
	}
	if accept := strings.Join(r.Header.Values("Accept"), ", "); accept != "" && !acceptsJSON(accept) {
		return &refusal{status: http.StatusNotAcceptable, body: postgrest.NewError(postgrest.CodeNotAcceptable,
			"None of these media types are available: "+shortened(accept), "", "")}
	}
	sent := r.Header.Get("Content-Type")
	kind, _, err := mime.ParseMediaType(sent)
	switch {
	case sent == "", err == nil && kind == postgrest.ContentType:
		return nil
	case kind == "text/plain":
		return noRawFunction(function, "text")
	case kind == "text/xml":
		return noRawFunction(function, "xml")
	case kind == "application/octet-stream":
		return noRawFunction(function, "bytea")
	}
	return badRequest(postgrest.CodeBadBody, "Content-Type not acceptable: "+shortened(sent))
}

func acceptsJSON(accept string) bool {
	for one := range strings.SplitSeq(accept, ",") {
		kind, more, err := mime.ParseMediaType(one)
		if err == nil && more["nulls"] == "" && slices.Contains([]string{postgrest.ContentType, "application/vnd.pgrst.array+json", "application/*", "*/*"}, kind) {
			return true
		}
	}
	return false
}
