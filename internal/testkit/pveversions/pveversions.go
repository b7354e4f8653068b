// Package pveversions has what servers of Proxmox VE 6, 7, 8 and 9 answered, as
// github.com/luthermonson/go-proxmox has it in its own tests.
//
//	go-proxmox's mocks ──► gock's list ──► Of(major) ──► Serve: a server that answers with them
//
// Of PVE 6 there is GET /version and nothing else. Some answers are of real servers (nodes,
// resources, a running machine's status), some are copied from one version to the next (the
// privileges of 9 are those of 7), and some are written by hand (tasks, what the guest agent says).
// They are no proof of how a version behaves; they show what its answers look like.
//
// Beside reads the recordings of 9.2 that lie beside the repository.
//
// gock takes over http.DefaultTransport while mocks are added, so all of them are read when this
// package is initialised, before any test runs. The package must not know the driver or the
// simulator.
package pveversions

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/h2non/gock"
	"github.com/luthermonson/go-proxmox/tests/mocks"
	"github.com/luthermonson/go-proxmox/tests/mocks/config"
)

// Majors are the versions that there are answers of.
var Majors = []int{6, 7, 8, 9}

// Answer is one recorded answer.
type Answer struct {
	// Name is the request: method, path and the parameters that the answer is for.
	Name, Method, Path string
	Status             int
	Body               []byte

	request *gock.Request
}

var answers = load()

func load() map[int][]*Answer {
	defer gock.Off()
	out := map[int][]*Answer{}
	for i, mock := range []func(config.Config){mocks.ProxmoxVE6x, mocks.ProxmoxVE7x, mocks.ProxmoxVE8x, mocks.ProxmoxVE9x} {
		gock.Off()
		mock(config.Config{URI: "http://recorded.invalid"})
		for _, m := range gock.GetAll() {
			r := m.Request()
			path := strings.TrimSuffix(strings.TrimPrefix(r.URLStruct.Path, "^"), "$")
			name := strings.TrimSpace(r.Method + " " + path + " " + r.URLStruct.RawQuery)
			out[Majors[i]] = append(out[Majors[i]], &Answer{Name: name, Method: r.Method, Path: path, Status: m.Response().StatusCode, Body: bytes.Clone(m.Response().BodyBuffer), request: r})
		}
	}
	return out
}

// Of are the answers of a major version.
func Of(major int) []*Answer { return answers[major] }

// fits returns how many parameters of the request the answer is for, or -1 if it is none to it.
func (a *Answer) fits(r *http.Request) int {
	for _, match := range []gock.MatchFunc{gock.MatchMethod, gock.MatchPath, gock.MatchQueryParams} {
		if ok, err := match(r, a.request); err != nil || !ok {
			return -1
		}
	}
	return len(a.request.URLStruct.Query())
}

// Asked reports whether the answer is to a request with such parameters, or without any.
func (a *Answer) Asked(parameters url.Values) bool {
	for name, values := range a.request.URLStruct.Query() {
		if parameters.Has(name) && !slices.Equal(parameters[name], values) {
			return false
		}
	}
	return true
}

// Server answers with what was recorded of one version, and with 501 where nothing was.
type Server struct {
	// URL is where it is, and CA its certificate in PEM.
	URL, CA string

	answers []*Answer
	mu      sync.Mutex
	given   map[string]int
}

// Serve starts a server of a major version that ends with the test.
func Serve(t testing.TB, major int) *Server {
	t.Helper()
	s := &Server{answers: Of(major), given: map[string]int{}}
	listening := httptest.NewTLSServer(http.StripPrefix("/api2/json", http.HandlerFunc(s.answer)))
	t.Cleanup(listening.Close)
	s.URL = listening.URL
	s.CA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: listening.Certificate().Raw}))
	return s
}

// Given is how often the answer with that name was given.
func (s *Server) Given(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given[name]
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	best, most := (*Answer)(nil), -1
	for _, a := range s.answers {
		if n := a.fits(r); n > most {
			best, most = a, n
		}
	}
	if best == nil {
		http.Error(w, "not recorded", http.StatusNotImplemented)
		return
	}
	s.mu.Lock()
	s.given[best.Name]++
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json;charset=UTF-8")
	w.WriteHeader(best.Status)
	_, _ = w.Write(best.For(r.URL.Query()))
}

// For is the answer's body to a request with parameters. Where it was recorded without any, rows of
// other types or content are left out, and privileges are those at one path, where 1 says that
// they reach the paths below.
func (a *Answer) For(asked url.Values) []byte {
	var body struct {
		Data any `json:"data"`
	}
	if len(a.request.URLStruct.Query()) > 0 || json.Unmarshal(a.Body, &body) != nil {
		return a.Body
	}
	switch all := body.Data.(type) {
	case []any:
		body.Data = slices.DeleteFunc(all, func(row any) bool { return !wanted(row, asked) })
	case map[string]any:
		if a.Path != "/access/permissions" || !asked.Has("path") {
			return a.Body
		}
		body.Data = map[string]any{asked.Get("path"): privileges(all, asked.Get("path"))}
	default:
		return a.Body
	}
	out, err := json.Marshal(body)
	if err != nil {
		return a.Body
	}
	return out
}

// wanted reports whether a row of a list is among those that were asked for.
func wanted(row any, asked url.Values) bool {
	fields, _ := row.(map[string]any)
	for parameter, field := range map[string]string{"type": "type", "typefilter": "type", "content": "content"} {
		want, has := asked.Get(parameter), strings.Split(fmt.Sprint(fields[field]), ",")
		if want == "vm" && (slices.Contains(has, "qemu") || slices.Contains(has, "lxc")) {
			continue
		}
		if want != "" && !slices.Contains(has, want) {
			return false
		}
	}
	return true
}

// privileges are those at path: what is said of it, or of the nearest above it and propagates.
func privileges(all map[string]any, path string) map[string]any {
	out := map[string]any{}
	for at := path; ; at = at[:strings.LastIndex(at, "/")] {
		if at == "" {
			at = "/"
		}
		if found, ok := all[at].(map[string]any); ok {
			for name, propagates := range found {
				if at == path || propagates == 1.0 {
					out[name] = propagates
				}
			}
			return out
		}
		if !strings.Contains(at, "/") || at == "/" {
			return out
		}
	}
}
