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
	"github.com/tendril-run/tendril/internal/pgtest"
	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/postgrest/recorded"
	"github.com/tendril-run/tendril/internal/queue/queuetest"
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
// of the table in docs/ARCHITECTURE.md that says how it differs.
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
	form        = "Content-Type: application/x-www-form-urlencoded"
	exactly     = "Prefer: count=exact"
	range11     = "Range-Unit: items\nRange: 1-1"
	singular    = "Accept: application/vnd.pgrst.object+json"
	allProjects = `[{"id":1},{"id":2},{"id":3},{"id":4},{"id":5}]`
	project1    = `{"id":1,"name":"project 1","client_id":1}`
	varied      = `{"double":3.1,"varchar":"hello","boolean":true,"date":"20190101","arr":["a","b","c"],"integer":43,"json":{"some key":"some value"},"jsonb":{"another key":[1,2,"3"]}}`
	variedForm  = "double=3.1&varchar=hello&boolean=true&date=20190101&arr=%7Ba,b,c%7D&integer=43&json={}&jsonb={}"
	items15     = `[{"id":1},{"id":2},{"id":3},{"id":4},{"id":5},{"id":6},{"id":7},{"id":8},{"id":9},{"id":10},{"id":11},{"id":12},{"id":13},{"id":14},{"id":15}]`
	exists1     = `duplicate key value violates unique constraint "deferrable_col_key"`
	noneOf      = "None of these media types are available: "
	noneFound   = "Could not find the function public."
)

func specification() map[string][]specified {
	return map[string][]specified{
		"sets": {
			{"rows", "getitemrange", "", `{"min":2,"max":4}`, rows(`[{"id":3},{"id":4}]`, "0-1/*")},
			{"no rows", "getitemrange", "", `{"min":2,"max":2}`, rows(`[]`, "*/*")},
			{"no rows, counted", "getitemrange", exactly, `{"min":2,"max":2}`, rows(`[]`, "*/0").with("Preference-Applied", "count=exact")},
			{"all rows of many", "getitemrange", "", `{"min":0,"max":15}`, rows(items15, "0-14/*")},
			{"no rows of scalars", "test_empty_rowset", "", `{}`, rows(`[]`, "*/*")},
			{"a Range is for GET", "getitemrange", range11, `{"min":2,"max":4}`, rows(`[{"id":3},{"id":4}]`, "0-1/*")},
			{"a Range is for GET, counted", "getitemrange", range11 + "\n" + exactly, `{"min":2,"max":4}`, rows(`[{"id":3},{"id":4}]`, "0-1/2")},
			{"limit and offset", "getitemrange?limit=1&offset=1", "", `{"min":2,"max":4}`, refused(byQuery)},
			{"limit and offset, counted", "getitemrange?limit=1&offset=1", exactly, `{"min":2,"max":4}`, refused(byQuery)},
			{"limit and offset beside a Range", "getitemrange?limit=2&offset=1", range11 + "\n" + exactly, `{"min":2,"max":5}`, refused(byQuery)},
			{"limit and offset beside a Range before them", "getitemrange?limit=2&offset=1", "Range: 0-0\n" + exactly, `{"min":2,"max":5}`, refused(byQuery)},
			{"offset without rows", "getitemrange?offset=1", exactly, `{"min":2,"max":2}`, refused(byQuery)},
			{"offset past the rows", "getitemrange?offset=100", exactly, `{"min":0,"max":15}`, refused(byQuery)},
			{"order", "getitemrange?order=id", "", `{"min":0,"max":15}`, refused(byQuery)},
			{"counted", "all_projects", exactly, `{}`, rows(allProjects, "0-4/5").with("Preference-Applied", "count=exact")},
			{"counted with what is embedded", "all_projects?select=*,clients!inner(*)&clients.id=eq.1", exactly, `{}`, refused(byQuery)},
			{"a scalar counts as one", "add_them", exactly, `{"a":3,"b":4}`, rows(`7`, "0-0/1")},
			{"a domain counts as one", "ret_domain", exactly, `{"val":8}`, rows(`8`, "0-0/1")},
			{"a composite counts as one", "ret_place", exactly, `{}`, rows(`{"x":10,"y":5}`, "0-0/1")},
			{"CSV", "getitemrange", "Accept: text/csv", `{"min":2,"max":4}`, refused(byAccept)},
		},
		"unknown functions and arguments": {
			{"no such function", "fakefunc", "", `{}`, fails(404, "PGRST202", noneFound+"fakefunc without parameters in the schema cache")},
			{"a name like another", "sayhell", "", `{}`, fails(404, "PGRST202", noneFound+"sayhell without parameters in the schema cache")},
			{"an argument is missing", "sayhello", "", `{}`, fails(404, "PGRST202", noneFound+"sayhello without parameters in the schema cache")},
			{"another argument", "sayhello", "", `{"any_arg":"value"}`, fails(404, "PGRST202", noneFound+"sayhello(any_arg) in the schema cache")},
			{"an argument's name like another", "sayhello", "", `{"nam":"Peter"}`, fails(404, "PGRST202", noneFound+"sayhello(nam) in the schema cache")},
			{"one argument more", "add_them", "", `{"a":1,"b":2,"smthelse":"blabla"}`, fails(404, "PGRST202", noneFound+"add_them(a, b, smthelse) in the schema cache")},
			{"another argument, of_several", "of_several", "", `{"wrong_arg":"value"}`, fails(404, "PGRST202", noneFound+"of_several(wrong_arg) in the schema cache")},
			{"one argument more, of_several", "of_several", "", `{"a":1,"b":2,"wrong_arg":"value"}`, fails(404, "PGRST202", noneFound+"of_several(a, b, wrong_arg) in the schema cache")},
			{"by GET", "GET fake", "", "", fails(404, "PGRST202", "")},
			{"by GET, a name like another", "GET sayhell", "", "", fails(404, "PGRST202", noneFound+"sayhell without parameters in the schema cache")},
		},
		"of_several functions": {
			{"none of the arguments", "of_several", "", `{}`, rows(`[1,2,3]`, "0-2/*")},
			{"two", "of_several", "", `{"a":1,"b":2}`, answers(`3`)},
			{"three", "of_several", "", `{"a":"1","b":"2","c":"3"}`, answers(`"123"`)},
			{"of two types", "of_two_types", "", `{"arg":"1"}`, fails(300, "PGRST203",
				"Could not choose the best candidate function between: public.of_two_types(arg => integer), public.of_two_types(arg => text, num => integer)")},
			{"none, from a form", "of_several", form, "", refused(byType)},
			{"two, from a form", "of_several", form, "a=1&b=2", refused(byType)},
			{"three, from a form", "of_several", form, "a=1&b=2&c=3", refused(byType)},
			{"a default, embedded", "with_default?select=id,name,users(name)", "", `{}`, refused(byQuery)},
			{"a default", "with_default", "", `{}`, answers(`[{"id":2}]`)},
			{"no default", "with_default", "", `{"needed":1}`, answers(`{"val":1}`)},
			{"one and a default, embedded", "with_default?select=id,name,users(name)", "", `{"a":4}`, refused(byQuery)},
			{"one and a default", "with_default", "", `{"a":4}`, answers(`[{"id":4}]`)},
			{"both", "with_default", "", `{"a":2,"needed":4}`, answers(`{"a":2,"val":4}`)},
			{"of two results", "ret_point_of_several", "", `{"x":1,"y":2}`, answers(`{"x":1,"y":2}`)},
			{"capitals", "mixedCase", "", `{"user":"ada","workSpace":"acme/prod","ID":"7"}`, answers(`{"user":"ada","workSpace":"acme/prod","ID":"7"}`)},
		},
		"shapes and filters": {
			{"a row", "project_by_id", "", `{"id":1}`, answers(`[` + project1 + `]`)},
			{"filters", "all_projects?id=gt.1&id=lt.5&select=id", "", `{}`, refused(byQuery)},
			{"filters and limits", "all_projects?id=gt.1&id=lt.5&select=id&limit=2&offset=1", "", `{}`, refused(byQuery)},
			{"columns of rows", "project_by_id?select=id,name", "", `{"id":1}`, refused(byQuery)},
			{"columns of one row", "one_project?select=id", "", `{"id":2}`, refused(byQuery)},
			{"embedded", "project_by_id?select=id,name,client:clients(id),tasks(id)", "", `{"id":1}`, refused(byQuery)},
			{"embedded, not exposed", "one_project?select=*,article_stars(*)", "", `{"id":1}`, refused(byQuery)},
			{"embedded, as a view", "one_project?select=id,articleStars(userId)", "", `{"id":2}`, refused(byQuery)},
			{"embedded, many to many", "all_projects?select=name,tasks(name)&id=gt.1", "", `{}`, refused(byQuery)},
			{"embedded, in an empty set", "test_empty_rowset?select=groups(*)", "", `{}`, refused(byQuery)},
			{"embedded, two deep", "all_projects?select=name,tasks(name,project:projects(name))&id=gt.1", "", `{}`, refused(byQuery)},
			{"embedded, one to one", "all_projects?select=name,country(name)", "", `{}`, refused(byQuery)},
			{"embedded, one to one, back", "all_projects?select=name,capital(name)", "", `{}`, refused(byQuery)},
			{"an argument and a filter of one name", "projects_below?id=gt.2&select=id", "", `{"id":5}`, refused(byQuery)},
			{"not", "projects_below?id=not.gt.2&select=id", "", `{"id":5}`, refused(byQuery)},
			{"not in", "projects_below?id=not.in.(1,3)&select=id", "", `{"id":5}`, refused(byQuery)},
			{"fts", "all_projects?name=fts(english).impossible", "", `{}`, refused(byQuery)},
			{"plfts", "all_projects?name=plfts.impossible", "", `{}`, refused(byQuery)},
			{"not fts", "all_projects?name=not.fts(english).fun%7Crat", "", `{}`, refused(byQuery)},
			{"wfts", "all_projects?name=wfts.impossible", "", `{}`, refused(byQuery)},
			{"phfts", "all_projects?name=phfts(english).impossible", "", `{}`, refused(byQuery)},
			{"an argument in the query", "sayhello?name=John", "", `{"name":"John"}`, fails(400, "PGRST100", "")},
			{"columns of the body", "sayhello?columns=name", "", `{"name":"John","smth":"here"}`, refused(byQuery)},
		},
		"results": {
			{"text", "sayhello", "", `{"name":"world"}`, answers(`"Hello, world"`).with("Content-Type", postgrest.AnswerContentType)},
			{"text beyond ASCII", "sayhello", "", `{"name":"￥"}`, answers(`"Hello, ￥"`)},
			{"an array", "ret_array", "", `{}`, rows(`[1,2,3]`, "0-0/*")},
			{"a set of scalars", "ret_setof_integers", "", `{}`, rows(`[1,2,3]`, "0-2/*")},
			{"an enum", "ret_enum", "", `{"val":"plan"}`, answers(`"plan"`)},
			{"a domain", "ret_domain", "", `{"val":"8"}`, answers(`8`)},
			{"a range", "ret_range", "", `{"low":10,"up":20}`, answers(`"[10,20)"`)},
			{"a row of scalars", "ret_scalars", "", `{}`, answers(`[{"a":"scalars","b":"plan","c":1,"d":"[10,20)"}]`)},
			{"a composite", "ret_place", "", `{}`, answers(`{"x":10,"y":5}`)},
			{"a composite of a hidden schema", "ret_place_high", "", `{}`, fails(401, "42501", "")},
			{"a domain over a composite", "ret_own_place", "", `{}`, answers(`{"x":10,"y":5}`)},
			{"void", "ret_void", "", `{}`, wanted{status: http.StatusNoContent, header: map[string]string{"Content-Type": ""}}},
			{"null", "ret_null", "", `{}`, answers(`null`)},
			{"a record", "a_record", "", ``, answers(project1)},
			{"a record by arguments", "record_of", "", `{"id":1,"name":"project%"}`, answers(project1)},
			{"a set of records", "some_records", "", ``, rows(`[`+project1+`,{"id":2,"name":"project 2","client_id":1}]`, "0-1/*")},
			{"a set of records by arguments", "records_of", "", `{"id":4,"name":"project%"}`, rows(`[{"id":4},{"id":5}]`, "0-1/*")},
			{"a column named as the function", "test", "", `{}`, answers(`[{"test":"hello","value":1}]`)},
			{"an OUT parameter", "one_out", "", `{"num":5}`, answers(`{"next":6}`)},
			{"an OUT parameter of JSON", "json_out", "", `{"a":1,"b":"two"}`, answers(`{"my_json":{"a":1,"b":"two"}}`)},
			{"an INOUT parameter", "one_inout", "", `{"num":2}`, answers(`{"num":3}`)},
			{"many OUT parameters", "many_out_params", "", `{}`, answers(`{"my_json":{"a":1,"b":"two"},"num":3,"str":"four"}`)},
			{"many INOUT parameters", "three_inout", "", `{"num":1,"str":"two","b":false}`, answers(`{"num":1,"str":"two","b":false}`)},
			{"a table of one column", "one_column", "", `{}`, answers(`[{"a":"A"}]`)},
			{"a table of two columns", "multi_column_table_return", "", `{}`, answers(`[{"a":"A","b":"B"}]`)},
		},
		"arguments": {
			{"of many types", "varied_arguments", "", varied, answers(strings.Replace(varied, "20190101", "2019-01-01", 1))},
			{"of many types, from a form", "varied_arguments", form, variedForm, refused(byType)},
			{"money", "money_argument", "", `{"money":0}`, answers(`0.00`)},
			{"JSON", "json_argument", "", `{"arg":{"key":3}}`, answers(`"object"`)},
			{"JSON in a string", "json_argument", "", `{"arg":"{ \"key\": 3 }"}`, answers(`"string"`)},
			{"an enum", "stage_argument", "", `{"stage":"plan"}`, answers(`"plan, then"`)},
			{"none, and no body", "noparamsproc", "", ``, answers(`"Return value of no parameters procedure."`)},
			{"none", "noparamsproc", "", `{}`, answers(`"Return value of no parameters procedure."`)},
			{"variadic, from an array", "words", "", `{"v":["hi","hello","there"]}`, answers(`["hi","hello","there"]`)},
			{"variadic, left out", "words", "", `{}`, answers(`[]`)},
			{"variadic, one", "words", "", `{"v":["hi"]}`, answers(`["hi"]`)},
			{"variadic, left out of a form", "words", form, ``, refused(byType)},
			{"variadic, one in a form", "words", form, `v=hi`, refused(byType)},
			{"variadic, two in a form", "words", form, `v=hi&v=there`, refused(byType)},
			{"the last of several counts", "sayhello", "", `{"name":"ignored","name":"world"}`, answers(`"Hello, world"`)},
			{"the last of several counts beside a variadic", "greet_all", "", `{"name":"ignored","name":"world","v":["unused"]}`, answers(`"Hello, world"`)},
			{"a default of many", "three_inout", "", `{"num":1,"str":"two"}`, answers(`{"num":1,"str":"two","b":true}`)},
			{"two defaults of three", "three_defaults", "", `{"b":4}`, answers(`8`)},
			{"objects in an array", "add_them", "", `[{"a":1,"b":2},{"a":4,"b":6},{"a":100,"b":200}]`, refused(byArray)},
			{"an array of numbers", "add_them", "", `[1,2]`, fails(400, "PGRST102", "")},
			{"an empty array", "noparamsproc", "", ` [ ] `, answers(`"Return value of no parameters procedure."`)},
			{"characters are not cut to their type's first", "char_seen", "", `{"char_":"abcdefg","char_arr":"{abc,abcdefg}"}`, answers(`[{"char_":"abcdefg","char_arr":["abc","abcdefg"]}]`)},
			{"characters that do not fit", "char_kept", "", `{"char_":"abcdefg"}`, fails(400, "22001", "value too long for type character(5)")},
			{"bits are not cut to their type's first", "bit_seen", "", `{"bit_":"101010","bit_arr":"{101,101010}"}`, answers(`[{"bit_":"101010","bit_arr":["101","101010"]}]`)},
			{"bits that do not fit", "bit_kept", "", `{"bit_":"101010"}`, fails(400, "22026", "bit string length 6 does not match type bit(5)")},
		},
		"a parameter without a name": {
			{"JSON", "nameless_json", "", `{"A":1,"B":2,"C":3}`, refused(byUnnamed)},
			{"text", "nameless_text", "Content-Type: text/plain", `unnamed text arg`, refused(byUnnamed)},
			{"XML", "nameless_xml", "Content-Type: text/xml", `<note/>`, refused(byUnnamed)},
			{"XML that is none", "nameless_xml", "Content-Type: text/xml", `<`, refused(byUnnamed)},
			{"bytes", "nameless_bytes", "Content-Type: application/octet-stream", "\x89PNG", refused(byUnnamed)},
			{"JSON for a number", "nameless_int", "", `{"x":1,"y":2}`, fails(404, "PGRST202", noneFound+"nameless_int(x, y) in the schema cache")},
			{"text for a number", "nameless_int", "Content-Type: text/plain", `a simple text`, fails(404, "PGRST202", noneFound+"nameless_int in the schema cache")},
			{"XML for a number", "nameless_int", "Content-Type: text/xml", `a simple text`, fails(404, "PGRST202", noneFound+"nameless_int in the schema cache")},
			{"bytes for a number", "nameless_int", "Content-Type: application/octet-stream", "\x89PNG", fails(404, "PGRST202", noneFound+"nameless_int in the schema cache")},
			{"another without any fits", "nameless_several", "", `{}`, answers(`1`)},
			{"another with names fits", "nameless_several", "", `{"x":1,"y":2}`, answers(`3`)},
			{"no other fits JSON", "nameless_several", "", `{"A":1,"B":2,"C":3}`, refused(byUnnamed)},
			{"no other fits text", "nameless_several", "Content-Type: text/plain", `unnamed text arg`, refused(byUnnamed)},
			{"no other fits bytes", "nameless_several", "Content-Type: application/octet-stream", "\x89PNG", refused(byUnnamed)},
			{"CSV", "nameless_several", "Content-Type: text/csv", "a,b\n1,2\n4,6", refused(byType)},
			{"JSON of two types", "nameless_json_twice", "", `{"A":1,"B":2,"C":3}`, refused(byUnnamed)},
			{"by GET with a type of text", "GET nameless_several", "Content-Type: text/plain", ``, refused(byGet)},
			{"by GET with a type of bytes", "GET nameless_several", "Content-Type: application/octet-stream", ``, refused(byGet)},
		},
		"methods": {
			{"DELETE", "DELETE sayhello", "", "", fails(405, "PGRST101", "Cannot use the DELETE method on RPC")},
			{"PATCH", "PATCH sayhello", "", "", fails(405, "PGRST101", "Cannot use the PATCH method on RPC")},
			{"GET of what changes something", "GET next_turn", "", "", fails(405, "25006", "")},
			{"GET of what changes something, with arguments", "GET rename_projects?first_id=1&last_id=5&name=FreeBSD", "", "", fails(405, "25006", "")},
			{"GET of what only reads", "GET all_projects", "", "", refused(byGet)},
			{"GET with arguments", "GET getitemrange?min=2&max=4", "", "", refused(byGet)},
			{"GET with a Range", "GET getitemrange?min=2&max=4", range11, "", refused(byGet)},
			{"GET with arguments that do not fit", "GET sayhello?nam=Peter", "", "", refused(byGet)},
			{"HEAD", "HEAD getitemrange?min=2&max=4", "", "", wanted{status: 405, refused: byGet}},
			{"OPTIONS of what changes something", "OPTIONS next_turn", "", "", wanted{status: 200, header: map[string]string{"Allow": "OPTIONS,POST"}}},
			{"OPTIONS of what only reads", "OPTIONS all_projects", "", "", differs(ofOptions, wanted{status: 200, header: map[string]string{"Allow": "OPTIONS,POST"}})},
			{"OPTIONS of what does not even read", "OPTIONS projects_below", "", "", differs(ofOptions, wanted{status: 200, header: map[string]string{"Allow": "OPTIONS,POST"}})},
		},
		"media types": {
			{"an unknown type", "sayhello", "Accept: audio/mpeg3", `{"name":"world"}`, fails(406, "PGRST107", noneOf+"audio/mpeg3")},
			{"text for text", "hail", "Accept: text/plain", `{}`, refused(byAccept)},
			{"HTML for text", "hail", "Accept: text/html", `{}`, refused(byAccept)},
			{"XML for XML", "some_xml", "Accept: text/xml", `{}`, refused(byAccept)},
			{"XML for text", "hail", "Accept: text/xml", `{}`, fails(406, "PGRST107", noneOf+"text/xml")},
			{"text for a set", "hail_twice", "Accept: text/plain", `{}`, fails(406, "PGRST107", noneOf+"text/plain")},
			{"bytes for rows", "all_projects", "Accept: application/octet-stream", `{}`, fails(406, "PGRST107", noneOf+"application/octet-stream")},
			{"a plan", "all_projects", "Accept: application/vnd.pgrst.plan+json", `{}`, fails(406, "PGRST107", noneOf+"application/vnd.pgrst.plan+json")},
			{"anything", "hail", "Accept: */*", `{}`, answers(`"Hail"`).with("Content-Type", postgrest.AnswerContentType)},
			{"JSON among others", "hail", "Accept: text/plain, application/json", `{}`, answers(`"Hail"`).with("Content-Type", postgrest.AnswerContentType)},
			{"an array by its name", "project_by_id", "Accept: application/vnd.pgrst.array+json", `{"id":1}`, answers(`[`+project1+`]`).with("Content-Type", postgrest.AnswerContentType)},
			{"an array without nulls", "project_by_id", "Accept: application/vnd.pgrst.array+json;nulls=stripped", `{"id":1}`, refused(byAccept)},
			{"one object of no rows", "project_by_id", singular, `{"id":9999999}`, refused(byAccept)},
			{"one object of a scalar", "sayhello", singular, `{"name":"world"}`, refused(byAccept)},
			{"one object of one row", "project_by_id", singular, `{"id":1}`, refused(byAccept)},
			{"one object of many rows", "all_projects", singular, `{}`, refused(byAccept)},
			{"one object of rows that change", "rename_projects", singular + "\nPrefer: tx=commit", `{"first_id":1,"last_id":2,"name":"changed"}`, refused(byAccept)},
			{"and nothing has changed", "project_by_id", "", `{"id":1}`, answers(`[` + project1 + `]`)},
			{"one object without nulls", "project_by_id", singular + ";nulls=stripped", `{"id":1}`, refused(byAccept)},
			{"one object of a composite", "ret_place", singular, `{}`, refused(byAccept)},
		},
		"errors of functions": {
			{"no JSON", "sayhello", "Accept: application/json", `sdfsdf`, fails(400, "PGRST102", "Empty or invalid json")},
			{"RAISE", "problem", "", `{}`, fails(400, "P0001", "out of order")},
			{"ASSERT", "assert", "", `{}`, fails(500, "P0004", "")},
			{"RAISE with a status", "raise_pt402", "", `{}`, fails(402, "PT402", "Payment Required")},
			{"RAISE with what is no status", "raise_bad_pt", "", `{}`, fails(500, "PT40A", "Wrong")},
			{"a limit of the server", "out_of_temp", "", `{}`, fails(500, "53400", "temporary file size exceeds temp_file_limit (1kB)")},
			{"a function that anon may not call", "greet_the_few", "", `{"name":"anonymous"}`, fails(401, "42501", "").with("WWW-Authenticate", "Bearer")},
			{"a constraint", "break_constraint", "", ``, fails(409, "23505", exists1)},
			{"a deferred constraint", "break_constraint", "", `{"deferred":true}`, fails(409, "23505", exists1)},
			{"a constraint, to commit", "break_constraint", "Prefer: tx=commit", ``, fails(409, "23505", exists1)},
			{"a deferred constraint, to commit", "break_constraint", "Prefer: tx=commit", `{"deferred":true}`, fails(409, "23505", exists1)},
			{"a constraint, to roll back", "break_constraint", "Prefer: tx=rollback", ``, fails(409, "23505", exists1)},
			{"a deferred constraint, to roll back", "break_constraint", "Prefer: tx=rollback", `{"deferred":true}`, fails(409, "23505", exists1)},
			{"an answer of the function's own", "raise_pgrst", "", `{"message":"{\"code\":\"123\",\"message\":\"ABC\"}","detail":"{\"status\":332,\"headers\":{\"X-Header\":\"str\"}}"}`, refused(byRaise)},
			{"an answer with hint and details", "raise_pgrst", "", `{"message":"{\"code\":\"123\",\"message\":\"ABC\",\"details\":\"DEF\",\"hint\":\"XYZ\"}","detail":"{\"status\":332,\"status_text\":\"Mine\",\"headers\":{}}"}`, refused(byRaise)},
			{"an answer with a known status", "raise_pgrst", "", `{"message":"{\"code\":\"123\",\"message\":\"ABC\"}","detail":"{\"status\":404,\"headers\":{}}"}`, refused(byRaise)},
			{"an answer with a status of another text", "raise_pgrst", "", `{"message":"{\"code\":\"123\",\"message\":\"ABC\"}","detail":"{\"status\":404,\"status_text\":\"Mine\",\"headers\":{}}"}`, refused(byRaise)},
			{"an answer whose message is no JSON", "raise_pgrst", "", `{"message":"INVALID","detail":"{\"status\":332,\"headers\":{}}"}`, fails(500, "PGRST121", "")},
			{"an answer whose details are no JSON", "raise_pgrst", "", `{"message":"{\"code\":\"123\",\"message\":\"ABC\"}","detail":"INVALID"}`, fails(500, "PGRST121", "")},
			{"an answer without details", "raise_pgrst", "", `{"message":"{\"code\":\"123\",\"message\":\"ABC\"}"}`, fails(500, "PGRST121", "")},
		},
		"preferences": {
			{"a sequence is set back", "reset_sequence", "Prefer: tx=commit", `{"name":"public.turns_seq","value":1}`, wanted{status: 204, header: map[string]string{"Content-Type": ""}}},
			{"a function runs once", "next_turn", "", `{}`, answers(`1`)},
			{"and once more", "next_turn", "", `{}`, answers(`2`)},
			{"rows", "project_by_id", "Prefer: return=representation", `{"id":1}`, answers(`[{"id":1}]`).with("Preference-Applied", "")},
			{"rows, to commit", "project_by_id", "Prefer: return=representation, tx=commit", `{"id":1}`, answers(`[{"id":1}]`).with("Preference-Applied", "")},
			{"rows, to roll back", "project_by_id", "Prefer: return=representation, tx=rollback", `{"id":1}`, answers(`[{"id":1}]`).with("Preference-Applied", "")},
			{"a rollback is ignored", "rename_projects", "Prefer: tx=rollback", `{"first_id":5,"last_id":5,"name":"project kept"}`, answers(`[{"id":5,"name":"project kept"}]`).with("Preference-Applied", "")},
			{"the change was committed", "project_by_id", "", `{"id":5}`, answers(`[{"id":5,"name":"project kept"}]`)},
			{"unknown, strict", "nameless_several", "Prefer: handling=strict, anything", `{}`, fails(400, "PGRST122", "Invalid preferences given with handling=strict")},
			{"unknown, lenient", "nameless_several", "Prefer: handling=lenient, anything", `{}`, answers(`1`).with("Preference-Applied", "handling=lenient")},
			{"strict", "nameless_several", "Prefer: handling=strict, count=exact", `{}`, answers(`1`).with("Preference-Applied", "count=exact, handling=strict")},
			{"a time zone, lenient", "nameless_several", "Prefer: handling=lenient, timezone=Invalid/Timezone", `{}`, answers(`1`).with("Preference-Applied", "handling=lenient")},
			{"no such time zone, strict", "nameless_several", "Prefer: handling=strict, timezone=Invalid/Timezone", `{}`, fails(400, "PGRST122", "")},
			{"a time zone, strict", "nameless_several", "Prefer: handling=strict, timezone=America/Los_Angeles", `{}`, refused(byPreference)},
			{"too many rows", "all_projects", "Prefer: handling=strict, max-affected=1", ``, refused(byPreference)},
			{"too many rows of a table", "getitemrange", "Prefer: handling=strict, max-affected=10", `{"min":0,"max":15}`, refused(byPreference)},
			{"not too many rows", "all_projects", "Prefer: handling=strict, max-affected=20", ``, refused(byPreference)},
			{"not too many rows of a table", "getitemrange", "Prefer: handling=strict, max-affected=20", `{"min":0,"max":15}`, refused(byPreference)},
			{"rows of void", "ret_void", "Prefer: handling=strict, max-affected=20", ``, refused(byPreference)},
		},
		"schemas": {
			{"by its name", "add_them", "Content-Profile: public", `{"a":1,"b":2}`, answers(`3`)},
			{"by the name for GET", "add_them", "Accept-Profile: other", `{"a":1,"b":2}`, answers(`3`)},
			{"another", "add_them", "Content-Profile: v2", `{"a":1,"b":2}`, refused(bySchema)},
			{"none of that name", "add_them", "Content-Profile: unknown", `{"a":1,"b":2}`, fails(406, "PGRST106", "Invalid schema: unknown")},
		},
		"request settings": {
			{"the role", "setting_value", "", `{"prefix":"request.jwt.claims","name":"role"}`, answers(`"anon"`)},
			{"a header", "setting_value", "Custom-Header: test", `{"prefix":"request.headers","name":"custom-header"}`, differs(ofRequest, answers(`null`))},
			{"a standard header", "setting_value", "Origin: http://example.com", `{"prefix":"request.headers","name":"origin"}`, differs(ofRequest, answers(`null`))},
			{"the token", "setting_value", "Authorization: Bearer x", `{"prefix":"request.headers","name":"authorization"}`, differs(ofRequest, answers(`null`))},
			{"a cookie", "setting_value", "Cookie: taste=sweet", `{"prefix":"request.cookies","name":"taste"}`, differs(ofRequest, answers(`null`))},
			{"a cookie of two", "setting_value", "Cookie: taste=sweet;other=sour", `{"prefix":"request.cookies","name":"other"}`, differs(ofRequest, answers(`null`))},
			{"the method", "setting_value", "", `{"name":"request.method"}`, differs(ofRequest, answers(`null`))},
			{"the path", "setting_value", "", `{"name":"request.path"}`, differs(ofRequest, answers(`null`))},
			{"the JWT", "greet_the_few", "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.x", `{"name":"jdoe"}`, differs(ofToken, fails(401, "42501", ""))},
		},
		"response settings": {
			{"headers", "number_with_headers", "", `{"num":1}`, differs(ofResponse, answers(`1`).with("X-Test", ""))},
			{"headers of another form", "headers_malformed", "", `{}`, differs(ofResponse, answers(`1`))},
			{"a header twice", "two_cookies", "", `{}`, differs(ofResponse, wanted{status: 204, header: map[string]string{"Set-Cookie": ""}})},
			{"the status", "sends_403", "", `{}`, differs(ofResponse, answers(`{"message":"not for you"}`))},
			{"a status that is none", "sends_no_status", "", `{}`, differs(ofResponse, answers(`"bad"`))},
			{"headers beside a filter", "number_with_headers?id=eq.2&select=id", "", `{"num":1}`, refused(byQuery)},
		},
	}
}

// PostgREST's specification of RPC calls, asked of the gateway: the same answer, or one that is
// in the table of docs/ARCHITECTURE.md, which says how many there are of each.
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
	documented, err := os.ReadFile("../../../docs/ARCHITECTURE.md")
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
					t.Errorf("docs/ARCHITECTURE.md has no row %q", row)
				}
			})
		}
	}
	told := fmt.Sprintf("Of %d cases %d have PostgREST's answer, %d are refused, and %d differ", same+refusals+differences, same, refusals, differences)
	if !strings.Contains(string(documented), told) {
		t.Errorf("docs/ARCHITECTURE.md does not say %q", told)
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
	AND prosrc ~ 'request\.(headers|cookies|method|path)|response\.(headers|status)|SQLSTATE ''PGRST'''`

// The rows of the table in docs/ARCHITECTURE.md that are about functions concern none of those
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
