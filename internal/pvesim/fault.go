package pvesim

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What a fault does to a request.
const (
	cutBefore  = "lost"  // the connection ends before the request is carried out
	cutAfter   = "cut"   // the connection ends after it was carried out
	slow       = "slow"  // slow DURATION: it takes longer, in the cluster's time
	drip       = "drip"  // its answer comes byte by byte, one a second
	status     = "error" // error STATUS TEXT: an answer of the API
	proxyFails = "proxy" // proxy STATUS TEXT: an answer without a body, as of 595 and 596
	redirect   = "redirect"
	flood      = "flood" // flood MIB: an answer of that size
	taskDies   = "dies"  // dies TEXT: the task that it starts fails
	taskHangs  = "hangs" // hangs [TEXT]: the task that it starts goes on for ever, logging TEXT
)

// fault is one line of the grammar.
type fault struct {
	method, pattern string
	from, to        int // which of the requests that match, from 1; to 0: all that follow
	action, text    string
	status          int
	takes           time.Duration
	counted         func(path string) bool // which requests count; nil: all that match
	seen            int
}

// Faults sets what goes wrong, one fault a line; it replaces those set before.
//
//	METHOD PATTERN [#N | #N-M]: ACTION [ARGUMENTS]
//
// METHOD is a verb or *. PATTERN is as path.Match takes it, below /api2/json, and a * at its
// end stands for slashes as well. Without #N all requests that match are meant.
func (s *Server) Faults(grammar string) error {
	var all []*fault
	for _, line := range strings.Split(grammar, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		f, err := parseFault(line)
		if err != nil {
			return fmt.Errorf("fault %q: %w", line, err)
		}
		all = append(all, f)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = all
	return nil
}

func parseFault(line string) (*fault, error) {
	head, tail, ok := strings.Cut(line, ": ")
	where := strings.Fields(head)
	if !ok || len(where) < 2 || len(where) > 3 {
		return nil, fmt.Errorf("write METHOD PATTERN [#N]: ACTION")
	}
	f := &fault{method: where[0], pattern: where[1], from: 1}
	if _, err := path.Match(f.pattern, ""); err != nil {
		return nil, err
	}
	if len(where) == 3 {
		first, last, isRange := strings.Cut(strings.TrimPrefix(where[2], "#"), "-")
		var err error
		if f.from, err = strconv.Atoi(first); err != nil {
			return nil, err
		}
		if f.to = f.from; isRange {
			if f.to, err = strconv.Atoi(last); err != nil {
				return nil, err
			}
		}
	}
	f.action, f.text, _ = strings.Cut(tail, " ")
	var err error
	switch f.action {
	case slow:
		f.takes, err = time.ParseDuration(f.text)
	case flood:
		f.status, err = strconv.Atoi(f.text)
	case status, proxyFails:
		number, text, _ := strings.Cut(f.text, " ")
		f.text = text
		f.status, err = strconv.Atoi(number)
	case cutBefore, cutAfter, drip, redirect, taskDies, taskHangs:
	default:
		err = fmt.Errorf("there is no action %q", f.action)
	}
	return f, err
}

// CutRequest has the n-th request from now of those that counted chooses lose its connection:
// before it was carried out, or after.
func (s *Server) CutRequest(n int, after bool, counted func(path string) bool) {
	action := cutBefore
	if after {
		action = cutAfter
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = []*fault{{method: "*", pattern: "*", from: n, to: n, action: action, counted: counted}}
}

// Met reports whether one of the faults that were set has been met.
func (s *Server) Met() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.faults, func(f *fault) bool { return f.seen >= f.from })
}

// fault is the one that a request meets.
func (s *Server) fault(method, p string) *fault {
	p = strings.TrimPrefix(p, "/api2/json")
	var met *fault
	for _, f := range s.faults {
		if f.method != "*" && f.method != method || !f.matches(p) || f.counted != nil && !f.counted(p) {
			continue
		}
		if f.seen++; met == nil && f.seen >= f.from && (f.to == 0 && f.from == 1 || f.seen <= f.to) {
			met = f
		}
	}
	return met
}

func (f *fault) matches(p string) bool {
	if prefix, ok := strings.CutSuffix(f.pattern, "*"); ok && !strings.Contains(prefix, "*") {
		return strings.HasPrefix(p, prefix)
	}
	ok, _ := path.Match(f.pattern, p)
	return ok
}

// Quorum says whether the cluster has it.
func (s *Server) Quorum(has bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noQuorum = !has
}
