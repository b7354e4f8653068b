package pvesim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// call is one request on its way through the API.
type call struct {
	s       *Server
	request *http.Request
	raw     []byte
	record  *Request
	fault   *fault

	user   string // root@pam, or user@realm!token
	path   []string
	values map[string][]string // as they came
	params map[string]string
	lists  map[string][]string // of parameters that are lists
	node   *Node
	vmid   int
	total  int // beside data, if not negative
}

// apiError is an answer that is no success.
type apiError struct {
	status int
	text   string
	fields map[string]string
}

func (e *apiError) Error() string { return e.text }

func failed(format string, args ...any) error {
	return &apiError{status: 500, text: fmt.Sprintf(format, args...)}
}

func refused(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if text != "" {
		text = " (" + text + ")"
	}
	return &apiError{status: 403, text: "Permission check failed" + text}
}

func wrong(field, format string, args ...any) error {
	return &apiError{status: 400, text: "Parameter verification failed.", fields: map[string]string{field: fmt.Sprintf(format, args...)}}
}

// handle does all of one request.
func (c *call) handle() answer {
	switch c.request.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
	default:
		return answer{status: 501, reason: fmt.Sprintf("method '%s' not available", c.request.Method)}
	}
	rest, ok := strings.CutPrefix(c.request.URL.Path, "/api2/json")
	if !ok {
		format, path, _ := strings.Cut(strings.TrimPrefix(c.request.URL.Path, "/api2/"), "/")
		text := fmt.Sprintf("no formatter for uri /%s, %s", path, format)
		return answer{status: 501, reason: text, text: text}
	}
	for _, part := range strings.Split(rest, "/") {
		if part != "" {
			c.path = append(c.path, part)
		}
	}
	if (c.request.Method == http.MethodGet || c.request.Method == http.MethodDelete) && len(c.raw) > 0 {
		text := fmt.Sprintf("Unexpected content for method '%s'", c.request.Method)
		return answer{status: 501, reason: text, text: text}
	}
	if len(c.raw) > 512<<10 {
		return answer{status: 501, reason: "for data too large", text: "for data too large"}
	}
	reason, ok := c.authenticate()
	if !ok {
		c.s.wait(c.s.context, 3*time.Second)
		return answer{status: 401, reason: reason}
	}
	if a, ok := c.parse(); !ok {
		return a
	}
	c.record.Values, c.record.Token = c.values, c.user
	m, uri := find(c.request.Method, c.path)
	if m == nil {
		return c.failure(&apiError{status: 501, text: fmt.Sprintf("Method '%s /%s' not implemented", c.request.Method, strings.Join(c.path, "/"))})
	}
	c.total = -1
	data, err := c.run(m, uri)
	if err != nil {
		return c.failure(err)
	}
	if raw, ok := data.(answer); ok {
		return raw
	}
	body := map[string]any{"data": data}
	if c.total >= 0 {
		body["total"] = c.total
	}
	return answer{status: 200, reason: "OK", body: body}
}

func (c *call) failure(err error) answer {
	var known *apiError
	if !errors.As(err, &known) {
		known = &apiError{status: 500, text: err.Error()}
	}
	a := answer{status: known.status, reason: known.text, body: map[string]any{"data": nil, "message": known.text + "\n"}}
	if known.fields != nil {
		a.body["errors"] = known.fields
	}
	switch known.status {
	case 501:
		a.body["message"] = known.text
	case 595, 596:
		a.body = nil
	}
	return a
}

// parse reads the parameters of the query and the body.
func (c *call) parse() (answer, bool) {
	c.values = c.request.URL.Query()
	kind, _, _ := strings.Cut(c.request.Header.Get("Content-Type"), ";")
	broken := func(text string) (answer, bool) { return answer{status: 500, reason: text, text: text + "\n"}, false }
	switch kind {
	case "", "application/x-www-form-urlencoded":
		form, _ := url.ParseQuery(string(c.raw))
		for k, v := range form {
			c.values[k] = append(c.values[k], v...)
		}
	case "application/json":
		const at = ` at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line `
		var document any
		if len(c.raw) == 0 {
			return broken(`malformed JSON string, neither tag, array, object, number, string or atom, at character offset 0 (before "(end of string)")` + at + "934.")
		}
		if err := json.Unmarshal(c.raw, &document); err != nil {
			return broken(fmt.Sprintf(`, or } expected while parsing object/hash, at character offset %d (before "(end of string)")`, len(c.raw)) + at + "934.")
		}
		switch object := document.(type) {
		case nil:
		case map[string]any:
			for k, v := range object {
				c.values[k] = append(c.values[k], scalars(v)...)
			}
		default:
			return broken("Not a HASH reference" + at + "978.")
		}
	default:
		text := fmt.Sprintf("upload 'Content-Type '%s' not implemented", kind)
		return answer{status: 506, reason: text, text: text}, false
	}
	return answer{}, true
}

// scalars are a JSON value as a form would have it.
func scalars(v any) []string {
	switch v := v.(type) {
	case bool:
		if v {
			return []string{"1"}
		}
		return []string{"0"}
	case float64:
		return []string{strconv.FormatFloat(v, 'f', -1, 64)}
	case string:
		return []string{v}
	case []any:
		var all []string
		for _, e := range v {
			all = append(all, scalars(e)...)
		}
		return all
	case nil:
		return []string{""}
	}
	return []string{"HASH(0x55d0c0ffee00)"}
}

// method is one that the API has.
type method struct {
	verb   string
	path   []string // {x}: any
	allow  func(c *call) error
	params map[string]field
	do     func(c *call) (any, error)
}

func find(verb string, path []string) (*method, map[string]string) {
	for i := range methods {
		m := &methods[i]
		if m.verb != verb {
			continue
		}
		if uri, ok := m.match(path); ok {
			return m, uri
		}
	}
	return nil, nil
}

func (m *method) match(path []string) (map[string]string, bool) {
	last := len(m.path) - 1
	if len(path) > len(m.path) && last >= 0 && m.path[last] == "{volume}" { // volume ids have slashes
		path = append(slices.Clone(path[:last]), strings.Join(path[last:], "/"))
	}
	if len(path) != len(m.path) {
		return nil, false
	}
	uri := map[string]string{}
	for i, part := range m.path {
		if strings.HasPrefix(part, "{") {
			uri[strings.Trim(part, "{}")] = path[i]
		} else if part != path[i] {
			return nil, false
		}
	}
	return uri, true
}

// run is: may the caller, is the node there, are the parameters right, and then the method.
func (c *call) run(m *method, uri map[string]string) (any, error) {
	c.params = map[string]string{}
	for k, v := range c.values {
		c.params[k] = v[len(v)-1]
	}
	for k, v := range uri {
		c.params[k] = v
	}
	c.vmid, _ = strconv.Atoi(uri["vmid"])
	if m.allow != nil {
		if err := m.allow(c); err != nil {
			return nil, err
		}
	}
	if name, ok := uri["node"]; ok {
		if c.node = c.s.node(name); c.node == nil {
			return nil, failed("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
		}
		if c.node.Offline {
			return nil, &apiError{status: 595, text: "No route to host"}
		}
	}
	if err := c.check(m, uri); err != nil {
		return nil, err
	}
	if c.s.noQuorum && m.verb != http.MethodGet && !strings.Contains(c.request.URL.Path, "/agent/") {
		return nil, failed("cluster not ready - no quorum?")
	}
	if err := c.backed(m); err != nil {
		return nil, err
	}
	return m.do(c)
}

// check compares the parameters with what the method takes, and says all that is wrong.
func (c *call) check(m *method, uri map[string]string) error {
	bad := map[string]string{}
	c.lists = map[string][]string{}
	for name, value := range uri {
		f, known := m.params[name]
		if !known && name == "vmid" {
			f, known = field{check: vmidCheck}, true
		}
		if known {
			if text := f.check(value); text != "" {
				bad[name] = text
			}
		}
	}
	for name, all := range c.values {
		f, known := m.field(name)
		switch {
		case uri[name] != "":
			if all[0] != uri[name] {
				bad[name] = "duplicate parameter (already defined in URI) with conflicting values!"
			}
		case !known:
			bad[name] = "property is not defined in schema and the schema does not allow additional properties"
		case f.list:
			c.lists[name] = all
		case len(all) > 1:
			bad[name] = "type check ('string') failed - got ARRAY"
		default:
			if text := f.check(all[0]); text != "" {
				bad[name] = text
			}
		}
	}
	for name, f := range m.params {
		if _, given := c.values[name]; f.required && !given && uri[name] == "" {
			bad[name] = "property is missing and it is not optional"
		}
	}
	if len(bad) > 0 {
		return &apiError{status: 400, text: "Parameter verification failed.", fields: bad}
	}
	return nil
}

func (m *method) field(name string) (field, bool) {
	if f, ok := m.params[name]; ok {
		return f, true
	}
	if _, ok := m.params["*config"]; ok {
		return configField(name)
	}
	return field{}, false
}

// has reports whether a boolean parameter is set.
func (c *call) has(name string) bool { return c.params[name] == "1" }

// number reads an optional integer that was checked.
func (c *call) number(name string, otherwise int) int {
	if n, err := strconv.Atoi(c.params[name]); err == nil {
		return n
	}
	return otherwise
}

// log and sleep let a request wait for a lock file as a task does.
func (c *call) log(string) {}

func (c *call) sleep(d time.Duration) error {
	if !c.s.wait(context.WithoutCancel(c.s.context), d) || c.s.context.Err() != nil {
		return errInterrupted
	}
	return nil
}

// names makes the answer of an index.
func names(key string, all ...string) []map[string]any {
	out := []map[string]any{}
	for _, n := range all {
		out = append(out, map[string]any{key: n})
	}
	return out
}
