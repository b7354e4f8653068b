package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
)

// call is one that an agent has made of a function of the contract.
type call struct {
	function string
	body     []byte
	args     struct {
		Claim  string `json:"p_claim_id"`
		Kind   string `json:"p_kind"`
		Status string `json:"p_status"`
		Detail struct {
			Stage      string          `json:"stage"`
			PlanDigest string          `json:"plan_digest"`
			Code       string          `json:"error_code"`
			Message    string          `json:"error_message"`
			Resources  json.RawMessage `json:"resources"`
			Outputs    map[string]struct {
				Sealed string `json:"sealed"`
			} `json:"outputs"`
		} `json:"p_detail"`
	}
	status int
	answer string
}

// step names what the call is in the course of a run; "" for what comes at any time.
func (c call) step() string {
	switch c.function {
	case "fetch_next_provision", "insert_provision_log":
		return c.function
	case "get_blob", "put_blob":
		return c.function + " " + c.args.Kind
	case "update_provision_status":
		if c.args.Detail.Stage != "" {
			return c.args.Status + " " + c.args.Detail.Stage
		}
		switch {
		case c.args.Status != "PROCESSING":
			return c.args.Status
		case c.args.Detail.Resources != nil:
			return "PROCESSING resources"
		}
		return "PROCESSING"
	}
	return ""
}

// assigned says that the call was answered with work.
func (c call) assigned() bool {
	return c.function == "fetch_next_provision" && c.status == http.StatusOK && strings.Contains(c.answer, "provision_id")
}

// between stands between an agent and its queue, and has the test act before the first
// call of each step of a run.
type between struct {
	gateway http.Handler
	// passing is held by each call; who takes it alone finds none under way.
	passing sync.RWMutex

	turn sync.Mutex // one call after the other is acted before
	// alone is what an act takes that wants no other call under way.
	alone sync.RWMutex
	mu    sync.Mutex
	// half is "plan" until the plan is approved, then "apply"; "": no run is watched.
	half   string
	before func(step string, c call)
	met    map[string]bool
	made   []call
	beat   call
}

func (b *between) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the agent has gone
	}
	c := call{function: path.Base(r.URL.Path), body: body}
	_ = json.Unmarshal(body, &c.args) // what has no such arguments has none of interest
	b.passing.RLock()
	defer b.passing.RUnlock()
	if act, step := b.meets(c); act != nil {
		b.turn.Lock()
		act(step, c)
		b.turn.Unlock()
	}
	b.alone.RLock()
	defer b.alone.RUnlock()
	r.Header.Del("Prefer") // a call that is held would keep alterations waiting
	r.Body = io.NopCloser(bytes.NewReader(body))
	answered := httptest.NewRecorder()
	b.gateway.ServeHTTP(answered, r)
	c.status, c.answer = answered.Code, answered.Body.String()
	b.mu.Lock()
	b.made = append(b.made, c)
	if c.function == "agent_heartbeat" {
		b.beat = c
	}
	b.mu.Unlock()
	maps.Copy(w.Header(), answered.Header())
	w.WriteHeader(answered.Code)
	_, _ = w.Write(answered.Body.Bytes()) // an agent that has gone asks again
}

// meets answers what is to be done before a call, nil for nothing.
func (b *between) meets(c call) (act func(string, call), step string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	step = c.step()
	if b.half == "" || step == "" {
		return nil, ""
	}
	if step = b.half + ": " + step; b.met[step] {
		return nil, ""
	}
	b.met[step] = true
	return b.before, step
}

// begin acts while no call is under way, and begins a half of a run.
func (b *between) begin(half string, act func() error) error {
	b.passing.Lock()
	defer b.passing.Unlock()
	err := act()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.half = half
	return err
}

// watch begins a run: before is called for each of its steps.
func (b *between) watch(before func(step string, c call)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.half, b.before, b.met, b.made = "", before, map[string]bool{}, nil
}

// since are the calls that were made from the nth on.
func (b *between) since(n int) []call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.made[n:])
}

// idle counts how often in a row, and last, the agent has asked for work and got none:
// one of a single slot asks only when it has nothing in hand.
func idle(calls []call) (times int) {
	for _, c := range slices.Backward(calls) {
		if c.assigned() {
			break
		}
		if c.function == "fetch_next_provision" {
			times++
		}
	}
	return times
}

// failing counts the calls of a run that were answered by an error.
func failing(calls []call) (times int) {
	for _, c := range calls {
		if c.step() != "" && c.function != "fetch_next_provision" && c.status >= 300 {
			times++
		}
	}
	return times
}

// lastBeat is the agent's last heartbeat.
func (b *between) lastBeat() call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.beat
}
