package rpcgateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
)

// specified is one request of PostgREST's specification of RPC calls, on functions of
// documented.sql and testdata/specification.sql, and what the gateway answers.
//
// The specification calls most functions by GET. Here those calls are POSTs with the query's
// arguments in the body; the group "methods" is about GET itself.
type specified struct {
	name   string
	call   string // the function, with a query; or method, space, function. No method: POST
	header string // "Name: value", one a line
	body   string
	want   wanted
}

// wanted is the gateway's answer. It is PostgREST's own unless refused or differs names the row
// of the table in docs/GATEWAY.md that says how it differs.
type wanted struct {
	status           int
	body             string            // JSON; "" with an error: see code
	code, message    string            // of an error; message "": any. Details and hint are for people
	header           map[string]string // "" for one that must not be there
	refused, differs string
}

func (w wanted) with(name, value string) wanted {
	header := map[string]string{name: value}
	for n, v := range w.header {
		header[n] = v
	}
	w.header = header
	return w
}

func answers(body string) wanted { return wanted{status: http.StatusOK, body: body} }

func rows(body, contentRange string) wanted {
	return answers(body).with("Content-Range", contentRange).with("Content-Type", postgrest.AnswerContentType)
}

func fails(status int, code, message string) wanted {
	return wanted{status: status, code: code, message: message}
}

func differs(row string, w wanted) wanted {
	w.differs = row
	return w
}

// Refusals, each with the status and code that PostgREST has for its kind.
func refused(row string) wanted {
	w := map[string]wanted{
		"`GET`, `HEAD`":                          fails(405, "25006", ""),
		"a query string":                         fails(400, "PGRST100", ""),
		"`Accept` without JSON":                  fails(406, "PGRST107", ""),
		"`Content-Type` of a form or of CSV":     fails(400, "PGRST102", ""),
		"an array as the body":                   fails(400, "PGRST102", ""),
		"a parameter without a name":             fails(404, "PGRST202", ""),
		"preferences under `handling=strict`":    fails(400, "PGRST122", ""),
		"`RAISE SQLSTATE 'PGRST'` in a function": fails(500, "PGRST121", ""),
		"a schema other than `public`":           fails(406, "PGRST106", ""),
	}[row]
	if w.status == 0 {
		panic("no refusal is called " + row)
	}
	w.refused = row
	return w
}

const (
	byGet        = "`GET`, `HEAD`"
	byQuery      = "a query string"
	byAccept     = "`Accept` without JSON"
	byType       = "`Content-Type` of a form or of CSV"
	byArray      = "an array as the body"
	byUnnamed    = "a parameter without a name"
	byPreference = "preferences under `handling=strict`"
	byRaise      = "`RAISE SQLSTATE 'PGRST'` in a function"
	bySchema     = "a schema other than `public`"
	// Differences that are no refusals.
	ofRequest  = "`request.headers`, `request.cookies`, `request.method`, `request.path`"
	ofResponse = "`response.headers`, `response.status`"
	ofOptions  = "`OPTIONS` of a function that only reads"
	ofToken    = "`Authorization`"
)

const (
	form       = "Content-Type: application/x-www-form-urlencoded"
	exactly    = "Prefer: count=exact"
	range11    = "Range-Unit: items\nRange: 1-1"
	singular   = "Accept: application/vnd.pgrst.object+json"
	allRegions = `[{"id":1},{"id":2},{"id":3},{"id":4}]`
	region1    = `{"id":1,"name":"region 1","provider_id":7}`
	varied     = `{"load":0.75,"label":"build","locked":true,"since":"20260314","zones":["north","south"],"slots":12,"settings":{"size":"small"},"sizes":{"disks":[8,16,"auto"]}}`
	variedForm = "load=0.75&label=build&locked=true&since=20260314&zones=%7Bnorth,south%7D&slots=12&settings={}&sizes={}"
	attempts12 = `[{"attempt":1},{"attempt":2},{"attempt":3},{"attempt":4},{"attempt":5},{"attempt":6},{"attempt":7},{"attempt":8},{"attempt":9},{"attempt":10},{"attempt":11},{"attempt":12}]`
	seatTaken  = `duplicate key value violates unique constraint "seats_number_key"`
	noneOf     = "None of these media types are available: "
	noneFound  = "Could not find the function public."
)

func specification() map[string][]specified {
	return map[string][]specified{
		"sets": {
			{"rows", "attempts_after", "", `{"seen":6,"latest":8}`, rows(`[{"attempt":7},{"attempt":8}]`, "0-1/*")},
			{"no rows", "attempts_after", "", `{"seen":6,"latest":6}`, rows(`[]`, "*/*")},
			{"no rows, counted", "attempts_after", exactly, `{"seen":6,"latest":6}`, rows(`[]`, "*/0").with("Preference-Applied", "count=exact")},
			{"all rows of many", "attempts_after", "", `{"seen":0,"latest":12}`, rows(attempts12, "0-11/*")},
			{"no rows of scalars", "none_waiting", "", `{}`, rows(`[]`, "*/*")},
			{"a Range is for GET", "attempts_after", range11, `{"seen":6,"latest":8}`, rows(`[{"attempt":7},{"attempt":8}]`, "0-1/*")},
			{"a Range is for GET, counted", "attempts_after", range11 + "\n" + exactly, `{"seen":6,"latest":8}`, rows(`[{"attempt":7},{"attempt":8}]`, "0-1/2")},
			{"limit and offset", "attempts_after?limit=1&offset=1", "", `{"seen":6,"latest":8}`, refused(byQuery)},
			{"limit and offset, counted", "attempts_after?limit=1&offset=1", exactly, `{"seen":6,"latest":8}`, refused(byQuery)},
			{"limit and offset beside a Range", "attempts_after?limit=2&offset=1", range11 + "\n" + exactly, `{"seen":6,"latest":9}`, refused(byQuery)},
			{"limit and offset beside a Range before them", "attempts_after?limit=2&offset=1", "Range: 0-0\n" + exactly, `{"seen":6,"latest":9}`, refused(byQuery)},
			{"offset without rows", "attempts_after?offset=1", exactly, `{"seen":6,"latest":6}`, refused(byQuery)},
			{"offset past the rows", "attempts_after?offset=100", exactly, `{"seen":0,"latest":12}`, refused(byQuery)},
			{"order", "attempts_after?order=attempt", "", `{"seen":0,"latest":12}`, refused(byQuery)},
			{"counted", "all_regions", exactly, `{}`, rows(allRegions, "0-3/4").with("Preference-Applied", "count=exact")},
			{"counted with what is embedded", "all_regions?select=*,providers!inner(*)&providers.id=eq.7", exactly, `{}`, refused(byQuery)},
			{"a scalar counts as one", "slots_together", exactly, `{"large":2,"small":5}`, rows(`7`, "0-0/1")},
			{"a domain counts as one", "as_slots", exactly, `{"number":6}`, rows(`6`, "0-0/1")},
			{"a composite counts as one", "where_it_is", exactly, `{}`, rows(`{"rack":3,"unit":12}`, "0-0/1")},
			{"CSV", "attempts_after", "Accept: text/csv", `{"seen":6,"latest":8}`, refused(byAccept)},
		},
		"unknown functions and arguments": {
			{"no such function", "undeployed", "", `{}`, fails(404, "PGRST202", noneFound+"undeployed without parameters in the schema cache")},
			{"a name like another", "greeting_fo", "", `{}`, fails(404, "PGRST202", noneFound+"greeting_fo without parameters in the schema cache")},
			{"an argument is missing", "greeting_for", "", `{}`, fails(404, "PGRST202", noneFound+"greeting_for without parameters in the schema cache")},
			{"another argument", "greeting_for", "", `{"wish":"more"}`, fails(404, "PGRST202", noneFound+"greeting_for(wish) in the schema cache")},
			{"an argument's name like another", "greeting_for", "", `{"nme":"Ben"}`, fails(404, "PGRST202", noneFound+"greeting_for(nme) in the schema cache")},
			{"one argument more", "slots_together", "", `{"large":2,"small":5,"spare":"unused"}`, fails(404, "PGRST202", noneFound+"slots_together(large, small, spare) in the schema cache")},
			{"another argument than any of one name", "of_several", "", `{"wish":"more"}`, fails(404, "PGRST202", noneFound+"of_several(wish) in the schema cache")},
			{"one argument more than any of one name", "of_several", "", `{"large":2,"small":5,"wish":"more"}`, fails(404, "PGRST202", noneFound+"of_several(large, small, wish) in the schema cache")},
			{"by GET", "GET undeployed", "", "", fails(404, "PGRST202", "")},
			{"by GET, a name like another", "GET greeting_fo", "", "", fails(404, "PGRST202", noneFound+"greeting_fo without parameters in the schema cache")},
		},
		"functions of one name": {
			{"none of the arguments", "of_several", "", `{}`, rows(`[7,8,9]`, "0-2/*")},
			{"two", "of_several", "", `{"large":2,"small":5}`, answers(`7`)},
			{"three", "of_several", "", `{"large":"2","small":"5","unit":"GiB"}`, answers(`"25GiB"`)},
			{"of two types", "of_two_types", "", `{"which":"4"}`, fails(300, "PGRST203",
				"Could not choose the best candidate function between: public.of_two_types(which => integer), public.of_two_types(which => text, serial => integer)")},
			{"none, from a form", "of_several", form, "", refused(byType)},
			{"two, from a form", "of_several", form, "large=2&small=5", refused(byType)},
			{"three, from a form", "of_several", form, "large=2&small=5&unit=GiB", refused(byType)},
			{"a default, embedded", "with_default?select=id,name,owners(name)", "", `{}`, refused(byQuery)},
			{"a default", "with_default", "", `{}`, answers(`[{"id":3}]`)},
			{"no default", "with_default", "", `{"needed":6}`, answers(`{"given":6}`)},
			{"one and a default, embedded", "with_default?select=id,name,owners(name)", "", `{"region":4}`, refused(byQuery)},
			{"one and a default", "with_default", "", `{"region":4}`, answers(`[{"id":4}]`)},
			{"both", "with_default", "", `{"region":2,"needed":6}`, answers(`{"region":2,"given":6}`)},
			{"of two results", "place_of_several", "", `{"rack":2,"unit":8}`, answers(`{"rack":2,"unit":8}`)},
			{"capitals", "mixedCase", "", `{"owner":"ada","workSpace":"acme/prod","ID":"7"}`, answers(`{"owner":"ada","workSpace":"acme/prod","ID":"7"}`)},
		},
		"shapes and filters": {
			{"a row", "region_by_id", "", `{"id":1}`, answers(`[` + region1 + `]`)},
			{"filters", "all_regions?id=gt.2&id=lt.4&select=id", "", `{}`, refused(byQuery)},
			{"filters and limits", "all_regions?id=gt.2&id=lt.4&select=id&limit=2&offset=1", "", `{}`, refused(byQuery)},
			{"columns of rows", "region_by_id?select=id,name", "", `{"id":1}`, refused(byQuery)},
			{"columns of one row", "one_region?select=id", "", `{"id":2}`, refused(byQuery)},
			{"embedded", "region_by_id?select=id,name,provider:providers(id),deploys(id)", "", `{"id":1}`, refused(byQuery)},
			{"embedded, not exposed", "one_region?select=*,region_prices(*)", "", `{"id":1}`, refused(byQuery)},
			{"embedded, as a view", "one_region?select=id,regionPrices(ownerId)", "", `{"id":2}`, refused(byQuery)},
			{"embedded, many to many", "all_regions?select=name,deploys(name)&id=gt.2", "", `{}`, refused(byQuery)},
			{"embedded, in an empty set", "none_waiting?select=teams(*)", "", `{}`, refused(byQuery)},
			{"embedded, two deep", "all_regions?select=name,deploys(name,region:regions(name))&id=gt.2", "", `{}`, refused(byQuery)},
			{"embedded, one to one", "all_regions?select=name,network(name)", "", `{}`, refused(byQuery)},
			{"embedded, one to one, back", "all_regions?select=name,gateway(name)", "", `{}`, refused(byQuery)},
			{"an argument and a filter of one name", "regions_below?id=gt.1&select=id", "", `{"id":4}`, refused(byQuery)},
			{"not", "regions_below?id=not.gt.1&select=id", "", `{"id":4}`, refused(byQuery)},
			{"not in", "regions_below?id=not.in.(2,4)&select=id", "", `{"id":4}`, refused(byQuery)},
			{"fts", "all_regions?name=fts(english).north", "", `{}`, refused(byQuery)},
			{"plfts", "all_regions?name=plfts.north", "", `{}`, refused(byQuery)},
			{"not fts", "all_regions?name=not.fts(english).north%7Csouth", "", `{}`, refused(byQuery)},
			{"wfts", "all_regions?name=wfts.north", "", `{}`, refused(byQuery)},
			{"phfts", "all_regions?name=phfts(english).north", "", `{}`, refused(byQuery)},
			{"an argument in the query", "greeting_for?name=Ben", "", `{"name":"Ben"}`, fails(400, "PGRST100", "")},
			{"columns of the body", "greeting_for?columns=name", "", `{"name":"Ben","more":"here"}`, refused(byQuery)},
		},
		"results": {
			{"text", "greeting_for", "", `{"name":"Ada"}`, answers(`"Welcome, Ada"`).with("Content-Type", postgrest.AnswerContentType)},
			{"text beyond ASCII", "greeting_for", "", `{"name":"Åse"}`, answers(`"Welcome, Åse"`)},
			{"an array", "open_ports", "", `{}`, rows(`[22,443,8080]`, "0-0/*")},
			{"a set of scalars", "each_port", "", `{}`, rows(`[22,443,8080]`, "0-2/*")},
			{"an enum", "stage_called", "", `{"name":"plan"}`, answers(`"plan"`)},
			{"a domain", "as_slots", "", `{"number":"6"}`, answers(`6`)},
			{"a range", "port_range", "", `{"first":8000,"beyond":8010}`, answers(`"[8000,8010)"`)},
			{"a row of scalars", "one_of_each", "", `{}`, answers(`[{"region":"north","stage":"plan","slots":6,"ports":"[8000,8010)"}]`)},
			{"a composite", "where_it_is", "", `{}`, answers(`{"rack":3,"unit":12}`)},
			{"a composite of a hidden schema", "where_it_hides", "", `{}`, fails(401, "42501", "")},
			{"a domain over a composite", "own_place_of_it", "", `{}`, answers(`{"rack":3,"unit":12}`)},
			{"void", "tells_nothing", "", `{}`, wanted{status: http.StatusNoContent, header: map[string]string{"Content-Type": ""}}},
			{"null", "not_known_yet", "", `{}`, answers(`null`)},
			{"a record", "a_record", "", ``, answers(region1)},
			{"a record by arguments", "record_of", "", `{"id":1,"name":"region%"}`, answers(region1)},
			{"a set of records", "some_records", "", ``, rows(`[`+region1+`,{"id":2,"name":"region 2","provider_id":7}]`, "0-1/*")},
			{"a set of records by arguments", "records_of", "", `{"id":3,"name":"region%"}`, rows(`[{"id":3},{"id":4}]`, "0-1/*")},
			{"a column named as the function", "engine", "", `{}`, answers(`[{"engine":"opentofu","major":2}]`)},
			{"an OUT parameter", "one_out", "", `{"serial":40}`, answers(`{"next":41}`)},
			{"an OUT parameter of JSON", "json_out", "", `{"tier":2,"team":"core"}`, answers(`{"tags":{"tier":2,"team":"core"}}`)},
			{"an INOUT parameter", "one_inout", "", `{"serial":40}`, answers(`{"serial":41}`)},
			{"many OUT parameters", "one_summary", "", `{}`, answers(`{"tags":{"team":"core","tier":2},"serial":41,"owner":"ada"}`)},
			{"many INOUT parameters", "three_inout", "", `{"serial":41,"owner":"ada","locked":false}`, answers(`{"serial":41,"owner":"ada","locked":false}`)},
			{"a table of one column", "one_column", "", `{}`, answers(`[{"label":"team"}]`)},
			{"a table of two columns", "labels_of_one", "", `{}`, answers(`[{"label":"team","content":"core"}]`)},
		},
		"arguments": {
			{"of many types", "every_kind", "", varied, answers(strings.Replace(varied, "20260314", "2026-03-14", 1))},
			{"of many types, from a form", "every_kind", form, variedForm, refused(byType)},
			{"money", "price_seen", "", `{"price":12.5}`, answers(`12.50`)},
			{"JSON", "kind_of_json", "", `{"value":{"slots":2}}`, answers(`"object"`)},
			{"JSON in a string", "kind_of_json", "", `{"value":"{ \"slots\": 2 }"}`, answers(`"string"`)},
			{"an enum", "after_stage", "", `{"stage":"plan"}`, answers(`"plan, then"`)},
			{"none, and no body", "engine_of_choice", "", ``, answers(`"opentofu"`)},
			{"none", "engine_of_choice", "", `{}`, answers(`"opentofu"`)},
			{"variadic, from an array", "words", "", `{"said":["plan","then","apply"]}`, answers(`["plan","then","apply"]`)},
			{"variadic, left out", "words", "", `{}`, answers(`[]`)},
			{"variadic, one", "words", "", `{"said":["plan"]}`, answers(`["plan"]`)},
			{"variadic, left out of a form", "words", form, ``, refused(byType)},
			{"variadic, one in a form", "words", form, `said=plan`, refused(byType)},
			{"variadic, two in a form", "words", form, `said=plan&said=apply`, refused(byType)},
			{"the last of several values", "greeting_for", "", `{"name":"ignored","name":"Ada"}`, answers(`"Welcome, Ada"`)},
			{"the last of several values beside a variadic", "greet_all", "", `{"name":"ignored","name":"Ada","others":["unused"]}`, answers(`"Welcome, Ada"`)},
			{"a default of many", "three_inout", "", `{"serial":41,"owner":"ada"}`, answers(`{"serial":41,"owner":"ada","locked":true}`)},
			{"two defaults of three", "timeouts_together", "", `{"apply":30}`, answers(`45`)},
			{"objects in an array", "slots_together", "", `[{"large":2,"small":5},{"large":3,"small":8},{"large":10,"small":40}]`, refused(byArray)},
			{"an array of numbers", "slots_together", "", `[2,5]`, fails(400, "PGRST102", "")},
			{"an empty array", "engine_of_choice", "", ` [ ] `, answers(`"opentofu"`)},
			{"characters are not cut to their type's first", "char_seen", "", `{"code":"eu-north","codes":"{eu,eu-north}"}`, answers(`[{"code":"eu-north","codes":["eu","eu-north"]}]`)},
			{"characters that do not fit", "char_kept", "", `{"code":"eu-north"}`, fails(400, "22001", "value too long for type character(5)")},
			{"bits are not cut to their type's first", "bit_seen", "", `{"mask":"11001100","masks":"{110,11001100}"}`, answers(`[{"mask":"11001100","masks":["110","11001100"]}]`)},
			{"bits that do not fit", "bit_kept", "", `{"mask":"110011"}`, fails(400, "22026", "bit string length 6 does not match type bit(5)")},
		},
		"a parameter without a name": {
			{"JSON", "nameless_json", "", `{"region":"north","slots":2}`, refused(byUnnamed)},
			{"text", "nameless_text", "Content-Type: text/plain", `a few words`, refused(byUnnamed)},
			{"XML", "nameless_xml", "Content-Type: text/xml", `<note/>`, refused(byUnnamed)},
			{"XML that is none", "nameless_xml", "Content-Type: text/xml", `<`, refused(byUnnamed)},
			{"bytes", "nameless_bytes", "Content-Type: application/octet-stream", "\x1f\x8b\x08", refused(byUnnamed)},
			{"JSON for a number", "nameless_int", "", `{"large":2,"small":5}`, fails(404, "PGRST202", noneFound+"nameless_int(large, small) in the schema cache")},
			{"text for a number", "nameless_int", "Content-Type: text/plain", `a few words`, fails(404, "PGRST202", noneFound+"nameless_int in the schema cache")},
			{"XML for a number", "nameless_int", "Content-Type: text/xml", `a few words`, fails(404, "PGRST202", noneFound+"nameless_int in the schema cache")},
			{"bytes for a number", "nameless_int", "Content-Type: application/octet-stream", "\x1f\x8b\x08", fails(404, "PGRST202", noneFound+"nameless_int in the schema cache")},
			{"another without any fits", "nameless_several", "", `{}`, answers(`9`)},
			{"another with names fits", "nameless_several", "", `{"large":2,"small":5}`, answers(`7`)},
			{"no other fits JSON", "nameless_several", "", `{"region":"north","slots":2}`, refused(byUnnamed)},
			{"no other fits text", "nameless_several", "Content-Type: text/plain", `a few words`, refused(byUnnamed)},
			{"no other fits bytes", "nameless_several", "Content-Type: application/octet-stream", "\x1f\x8b\x08", refused(byUnnamed)},
			{"CSV", "nameless_several", "Content-Type: text/csv", "large,small\n2,5\n3,8", refused(byType)},
			{"JSON of two types", "nameless_json_twice", "", `{"region":"north","slots":2}`, refused(byUnnamed)},
			{"by GET with a type of text", "GET nameless_several", "Content-Type: text/plain", ``, refused(byGet)},
			{"by GET with a type of bytes", "GET nameless_several", "Content-Type: application/octet-stream", ``, refused(byGet)},
		},
		"methods": {
			{"DELETE", "DELETE greeting_for", "", "", fails(405, "PGRST101", "Cannot use the DELETE method on RPC")},
			{"PATCH", "PATCH greeting_for", "", "", fails(405, "PGRST101", "Cannot use the PATCH method on RPC")},
			{"GET of what changes something", "GET next_turn", "", "", fails(405, "25006", "")},
			{"GET of what changes something, with arguments", "GET rename_regions?lowest=1&highest=4&name=north", "", "", fails(405, "25006", "")},
			{"GET of what only reads", "GET all_regions", "", "", refused(byGet)},
			{"GET with arguments", "GET attempts_after?seen=6&latest=8", "", "", refused(byGet)},
			{"GET with a Range", "GET attempts_after?seen=6&latest=8", range11, "", refused(byGet)},
			{"GET with arguments that do not fit", "GET greeting_for?nme=Ben", "", "", refused(byGet)},
			{"HEAD", "HEAD attempts_after?seen=6&latest=8", "", "", wanted{status: 405, refused: byGet}},
			{"OPTIONS of what changes something", "OPTIONS next_turn", "", "", wanted{status: 200, header: map[string]string{"Allow": "OPTIONS,POST"}}},
			{"OPTIONS of what only reads", "OPTIONS all_regions", "", "", differs(ofOptions, wanted{status: 200, header: map[string]string{"Allow": "OPTIONS,POST"}})},
			{"OPTIONS of what does not even read", "OPTIONS regions_below", "", "", differs(ofOptions, wanted{status: 200, header: map[string]string{"Allow": "OPTIONS,POST"}})},
		},
		"media types": {
			{"an unknown type", "greeting_for", "Accept: model/stl", `{"name":"Ada"}`, fails(406, "PGRST107", noneOf+"model/stl")},
			{"text for text", "hail", "Accept: text/plain", `{}`, refused(byAccept)},
			{"HTML for text", "hail", "Accept: text/html", `{}`, refused(byAccept)},
			{"XML for XML", "some_xml", "Accept: text/xml", `{}`, refused(byAccept)},
			{"XML for text", "hail", "Accept: text/xml", `{}`, fails(406, "PGRST107", noneOf+"text/xml")},
			{"text for a set", "hail_twice", "Accept: text/plain", `{}`, fails(406, "PGRST107", noneOf+"text/plain")},
			{"bytes for rows", "all_regions", "Accept: application/octet-stream", `{}`, fails(406, "PGRST107", noneOf+"application/octet-stream")},
			{"a plan", "all_regions", "Accept: application/vnd.pgrst.plan+json", `{}`, fails(406, "PGRST107", noneOf+"application/vnd.pgrst.plan+json")},
			{"anything", "hail", "Accept: */*", `{}`, answers(`"Hail"`).with("Content-Type", postgrest.AnswerContentType)},
			{"JSON among others", "hail", "Accept: text/plain, application/json", `{}`, answers(`"Hail"`).with("Content-Type", postgrest.AnswerContentType)},
			{"an array by its name", "region_by_id", "Accept: application/vnd.pgrst.array+json", `{"id":1}`, answers(`[`+region1+`]`).with("Content-Type", postgrest.AnswerContentType)},
			{"an array without nulls", "region_by_id", "Accept: application/vnd.pgrst.array+json;nulls=stripped", `{"id":1}`, refused(byAccept)},
			{"one object of no rows", "region_by_id", singular, `{"id":404}`, refused(byAccept)},
			{"one object of a scalar", "greeting_for", singular, `{"name":"Ada"}`, refused(byAccept)},
			{"one object of one row", "region_by_id", singular, `{"id":1}`, refused(byAccept)},
			{"one object of many rows", "all_regions", singular, `{}`, refused(byAccept)},
			{"one object of rows that change", "rename_regions", singular + "\nPrefer: tx=commit", `{"lowest":1,"highest":2,"name":"changed"}`, refused(byAccept)},
			{"and nothing has changed", "region_by_id", "", `{"id":1}`, answers(`[` + region1 + `]`)},
			{"one object without nulls", "region_by_id", singular + ";nulls=stripped", `{"id":1}`, refused(byAccept)},
			{"one object of a composite", "where_it_is", singular, `{}`, refused(byAccept)},
		},
		"errors of functions": {
			{"no JSON", "greeting_for", "Accept: application/json", `no-json`, fails(400, "PGRST102", "Empty or invalid json")},
			{"RAISE", "out_of_order", "", `{}`, fails(400, "P0001", "out of order")},
			{"ASSERT", "asserts", "", `{}`, fails(500, "P0004", "")},
			{"RAISE with a status", "raises_status", "", `{}`, fails(402, "PT402", "The runs of this month are used up")},
			{"RAISE with what is no status", "raises_no_status", "", `{}`, fails(500, "PT4NO", "There is no such status")},
			{"a limit of the server", "out_of_temp", "", `{}`, fails(500, "53400", "temporary file size exceeds temp_file_limit (1kB)")},
			{"a function that anon may not call", "greet_the_few", "", `{"name":"Ben"}`, fails(401, "42501", "").with("WWW-Authenticate", "Bearer")},
			{"a constraint", "take_seat", "", ``, fails(409, "23505", seatTaken)},
			{"a deferred constraint", "take_seat", "", `{"late":true}`, fails(409, "23505", seatTaken)},
			{"a constraint, to commit", "take_seat", "Prefer: tx=commit", ``, fails(409, "23505", seatTaken)},
			{"a deferred constraint, to commit", "take_seat", "Prefer: tx=commit", `{"late":true}`, fails(409, "23505", seatTaken)},
			{"a constraint, to roll back", "take_seat", "Prefer: tx=rollback", ``, fails(409, "23505", seatTaken)},
			{"a deferred constraint, to roll back", "take_seat", "Prefer: tx=rollback", `{"late":true}`, fails(409, "23505", seatTaken)},
			{"an answer of the function's own", "raise_pgrst", "", `{"message":"{\"code\":\"Q7\",\"message\":\"the queue is full\"}","detail":"{\"status\":495,\"headers\":{\"X-Region\":\"north\"}}"}`, refused(byRaise)},
			{"an answer with hint and details", "raise_pgrst", "", `{"message":"{\"code\":\"Q7\",\"message\":\"the queue is full\",\"details\":\"40 wait\",\"hint\":\"come back later\"}","detail":"{\"status\":495,\"status_text\":\"Mine\",\"headers\":{}}"}`, refused(byRaise)},
			{"an answer with a known status", "raise_pgrst", "", `{"message":"{\"code\":\"Q7\",\"message\":\"the queue is full\"}","detail":"{\"status\":404,\"headers\":{}}"}`, refused(byRaise)},
			{"an answer with a status of another text", "raise_pgrst", "", `{"message":"{\"code\":\"Q7\",\"message\":\"the queue is full\"}","detail":"{\"status\":404,\"status_text\":\"Mine\",\"headers\":{}}"}`, refused(byRaise)},
			{"an answer whose message is no JSON", "raise_pgrst", "", `{"message":"no-json","detail":"{\"status\":495,\"headers\":{}}"}`, fails(500, "PGRST121", "")},
			{"an answer whose details are no JSON", "raise_pgrst", "", `{"message":"{\"code\":\"Q7\",\"message\":\"the queue is full\"}","detail":"no-json"}`, fails(500, "PGRST121", "")},
			{"an answer without details", "raise_pgrst", "", `{"message":"{\"code\":\"Q7\",\"message\":\"the queue is full\"}"}`, fails(500, "PGRST121", "")},
		},
		"preferences": {
			{"a sequence is set back", "turns_from", "Prefer: tx=commit", `{"number":8}`, wanted{status: 204, header: map[string]string{"Content-Type": ""}}},
			{"a function runs once", "next_turn", "", `{}`, answers(`8`)},
			{"and once more", "next_turn", "", `{}`, answers(`9`)},
			{"rows", "region_by_id", "Prefer: return=representation", `{"id":1}`, answers(`[{"id":1}]`).with("Preference-Applied", "")},
			{"rows, to commit", "region_by_id", "Prefer: return=representation, tx=commit", `{"id":1}`, answers(`[{"id":1}]`).with("Preference-Applied", "")},
			{"rows, to roll back", "region_by_id", "Prefer: return=representation, tx=rollback", `{"id":1}`, answers(`[{"id":1}]`).with("Preference-Applied", "")},
			{"a rollback is ignored", "rename_regions", "Prefer: tx=rollback", `{"lowest":4,"highest":4,"name":"region kept"}`, answers(`[{"id":4,"name":"region kept"}]`).with("Preference-Applied", "")},
			{"the change was committed", "region_by_id", "", `{"id":4}`, answers(`[{"id":4,"name":"region kept"}]`)},
			{"unknown, strict", "nameless_several", "Prefer: handling=strict, haste", `{}`, fails(400, "PGRST122", "Invalid preferences given with handling=strict")},
			{"unknown, lenient", "nameless_several", "Prefer: handling=lenient, haste", `{}`, answers(`9`).with("Preference-Applied", "handling=lenient")},
			{"strict", "nameless_several", "Prefer: handling=strict, count=exact", `{}`, answers(`9`).with("Preference-Applied", "count=exact, handling=strict")},
			{"a time zone, lenient", "nameless_several", "Prefer: handling=lenient, timezone=Nowhere/Clock", `{}`, answers(`9`).with("Preference-Applied", "handling=lenient")},
			{"no such time zone, strict", "nameless_several", "Prefer: handling=strict, timezone=Nowhere/Clock", `{}`, fails(400, "PGRST122", "")},
			{"a time zone, strict", "nameless_several", "Prefer: handling=strict, timezone=Europe/Oslo", `{}`, refused(byPreference)},
			{"too many rows", "all_regions", "Prefer: handling=strict, max-affected=2", ``, refused(byPreference)},
			{"too many rows of a table", "attempts_after", "Prefer: handling=strict, max-affected=8", `{"seen":0,"latest":12}`, refused(byPreference)},
			{"not too many rows", "all_regions", "Prefer: handling=strict, max-affected=30", ``, refused(byPreference)},
			{"not too many rows of a table", "attempts_after", "Prefer: handling=strict, max-affected=30", `{"seen":0,"latest":12}`, refused(byPreference)},
			{"rows of void", "tells_nothing", "Prefer: handling=strict, max-affected=30", ``, refused(byPreference)},
		},
		"schemas": {
			{"by its name", "slots_together", "Content-Profile: public", `{"large":2,"small":5}`, answers(`7`)},
			{"by the name for GET", "slots_together", "Accept-Profile: staging", `{"large":2,"small":5}`, answers(`7`)},
			{"another", "slots_together", "Content-Profile: staging", `{"large":2,"small":5}`, refused(bySchema)},
			{"none of that name", "slots_together", "Content-Profile: nowhere", `{"large":2,"small":5}`, fails(406, "PGRST106", "Invalid schema: nowhere")},
		},
		"request settings": {
			{"the role", "setting_value", "", `{"setting":"request.jwt.claims","field":"role"}`, answers(`"anon"`)},
			{"a header", "setting_value", "X-Region: north", `{"setting":"request.headers","field":"x-region"}`, differs(ofRequest, answers(`null`))},
			{"a standard header", "setting_value", "Origin: https://console.example", `{"setting":"request.headers","field":"origin"}`, differs(ofRequest, answers(`null`))},
			{"the token", "setting_value", "Authorization: Bearer x", `{"setting":"request.headers","field":"authorization"}`, differs(ofRequest, answers(`null`))},
			{"a cookie", "setting_value", "Cookie: taste=sweet", `{"setting":"request.cookies","field":"taste"}`, differs(ofRequest, answers(`null`))},
			{"a cookie of two", "setting_value", "Cookie: taste=sweet;other=sour", `{"setting":"request.cookies","field":"other"}`, differs(ofRequest, answers(`null`))},
			{"the method", "setting_value", "", `{"setting":"request.method"}`, differs(ofRequest, answers(`null`))},
			{"the path", "setting_value", "", `{"setting":"request.path"}`, differs(ofRequest, answers(`null`))},
			{"the JWT", "greet_the_few", "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.x", `{"name":"Ada"}`, differs(ofToken, fails(401, "42501", ""))},
		},
		"response settings": {
			{"headers", "number_with_headers", "", `{"serial":41}`, differs(ofResponse, answers(`41`).with("X-Region", ""))},
			{"headers of another form", "headers_malformed", "", `{}`, differs(ofResponse, answers(`1`))},
			{"a header twice", "two_cookies", "", `{}`, differs(ofResponse, wanted{status: 204, header: map[string]string{"Set-Cookie": ""}})},
			{"the status", "sends_403", "", `{}`, differs(ofResponse, answers(`{"message":"not for you"}`))},
			{"a status that is none", "sends_no_status", "", `{}`, differs(ofResponse, answers(`"well"`))},
			{"headers beside a filter", "number_with_headers?id=eq.3&select=id", "", `{"serial":41}`, refused(byQuery)},
		},
	}
}

// PostgREST's specification of RPC calls, asked of the gateway: the same answer, or one that is
// in the table of docs/GATEWAY.md, which says how many there are of each.
func TestSpecification(t *testing.T) {
	t.Parallel()
	own, err := os.ReadFile("testdata/specification.sql")
	if err != nil {
		t.Fatal(err)
	}
	_, functions := recorded.Documented(t)
	db := pgtest.New(t, queuetest.Migrated)
	conn := db.Conn(t)
	mustExec(t, conn, functions+string(own))
	found, err := conn.Query(t.Context(), "SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND NOT prosecdef")
	if err != nil {
		t.Fatal(err)
	}
	served, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, conn, `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO anon; REVOKE EXECUTE ON FUNCTION public.greet_the_few FROM PUBLIC, anon`)
	url := serve(t, rpcgateway.Options{DatabaseURL: db.URL, Functions: served})
	documented, err := os.ReadFile("../../../docs/GATEWAY.md")
	if err != nil {
		t.Fatal(err)
	}
	same, refusals, differences := 0, 0, 0
	for group, cases := range specification() {
		for _, c := range cases {
			row, count := c.want.refused, &refusals
			switch {
			case c.want.differs != "":
				row, count = c.want.differs, &differences
			case row == "":
				count = &same
			}
			*count++
			t.Run(group+"/"+c.name, func(t *testing.T) {
				asSpecified(t, url, c)
				if row != "" && !strings.Contains(string(documented), "\n| "+row+" |") {
					t.Errorf("docs/GATEWAY.md has no row %q", row)
				}
			})
		}
	}
	told := fmt.Sprintf("Of %d cases %d have PostgREST's answer, %d are refused, and %d differ", same+refusals+differences, same, refusals, differences)
	if !strings.Contains(string(documented), told) {
		t.Errorf("docs/GATEWAY.md does not say %q", told)
	}
}

// leftOut lists what needs something that the gateway leaves out: an agent's function ($1) that is
// not the only one of its name or has parameters without one, and a function of ours that reads
// more of the request than its claims, sets headers or status of the answer, or raises PGRST.
const leftOut = `
	SELECT format('%s is there %s times', name, count(p.oid)) FROM unnest($1::text[]) name
	LEFT JOIN pg_proc p ON p.proname = name AND p.pronamespace = 'public'::regnamespace GROUP BY name HAVING count(p.oid) <> 1
	UNION ALL SELECT proname || ' has parameters without a name' FROM pg_proc
	WHERE pronamespace = 'public'::regnamespace AND proname = ANY ($1) AND pronargs > 0 AND (proargnames IS NULL OR '' = ANY (proargnames))
	UNION ALL SELECT proname || ' is written for PostgREST alone' FROM pg_proc WHERE pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace)
	AND proname <> 'traceparent' -- of what people ask, which needs no header where trellis says it
	AND prosrc ~ 'request\.(headers|cookies|method|path)|response\.(headers|status)|SQLSTATE ''PGRST'''`

// The rows of the table in docs/GATEWAY.md that are about functions concern none of those
// that are served.
func TestServedFunctionsNeedNothingLeftOut(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t, queuetest.Migrated).Conn(t)
	offenders := func() []string {
		t.Helper()
		found, err := conn.Query(t.Context(), leftOut, rpcgateway.AgentFunctions())
		if err != nil {
			t.Fatal(err)
		}
		names, err := pgx.CollectRows(found, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(names)
		return names
	}
	if got := offenders(); len(got) > 0 {
		t.Errorf("functions that need what the gateway leaves out: %q", got)
	}
	mustExec(t, conn, `
		CREATE FUNCTION public.get_blob(json) RETURNS json LANGUAGE sql AS 'SELECT $1';
		CREATE FUNCTION tendril.tells() RETURNS text LANGUAGE sql AS $$SELECT set_config('response.status', '201', true)$$`)
	want := []string{"get_blob has parameters without a name", "get_blob is there 2 times", "tells is written for PostgREST alone"}
	if got := offenders(); !slices.Equal(got, want) {
		t.Errorf("with two that do, functions that need what is left out = %q, want %q", got, want)
	}
}

func asSpecified(t *testing.T, url string, c specified) {
	t.Helper()
	method, call, found := strings.Cut(c.call, " ")
	if !found {
		method, call = http.MethodPost, c.call
	}
	header := map[string]string{}
	for line := range strings.Lines(c.header) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		header[name] = value
	}
	got := send(t, url, recorded.Request{Method: method, Path: postgrest.RPCPath(call), Header: header, Text: c.body})
	if c.want.code == "" {
		check(t, got, recorded.Response{Status: c.want.status, Header: c.want.header, Text: c.want.body})
		return
	}
	check(t, answer{got.status, got.header, nil}, recorded.Response{Status: c.want.status, Header: c.want.header})
	var e postgrest.Error
	if err := json.Unmarshal(got.body, &e); err != nil || e.Code != c.want.code || c.want.message != "" && e.Message != c.want.message {
		t.Errorf("body = %s, want code %s, message %q", got.body, c.want.code, c.want.message)
	}
	if kind := got.header.Get("Content-Type"); kind != postgrest.AnswerContentType {
		t.Errorf("Content-Type = %q, want JSON", kind)
	}
	if c.want.refused == byGet && got.header.Get("Allow") != "OPTIONS,POST" {
		t.Errorf("Allow = %q, want OPTIONS,POST", got.header.Get("Allow"))
	}
}
