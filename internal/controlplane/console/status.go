package console

import "strings"

// sign is how a state is shown: a word and an icon, so that nobody has to tell
// colours apart. The colour is the style sheet's, by the state itself.
type sign struct{ Status, Word, Icon string }

var signs = map[string]sign{
	"QUEUED":            {Word: "Queued", Icon: "waiting"},
	"PROCESSING":        {Word: "Running", Icon: "running"},
	"AWAITING_APPROVAL": {Word: "Awaiting approval", Icon: "hand"},
	"SUCCESS":           {Word: "Succeeded", Icon: "ok"},
	"FAILED":            {Word: "Failed", Icon: "failed"},
	"CANCELLED":         {Word: "Cancelled", Icon: "stopped"},

	"ONLINE":   {Word: "Online", Icon: "ok"},
	"STALE":    {Word: "Stale", Icon: "waiting"},
	"OFFLINE":  {Word: "Offline", Icon: "failed"},
	"PAUSED":   {Word: "Paused", Icon: "pause"},
	"LOCKED":   {Word: "Locked", Icon: "lock"},
	"HELD":     {Word: "Held", Icon: "warning"},
	"RUNNING":  {Word: "Running", Icon: "running"},
	"RESERVED": {Word: "Reserved", Icon: "hand"},
	"DRIFTED":  {Word: "Drifted", Icon: "drift"},
	"IN_SYNC":  {Word: "In sync", Icon: "ok"},
	"OUTDATED": {Word: "Outdated", Icon: "warning"},
	"READY":    {Word: "Ready", Icon: "ok"},
}

// signOf is the sign of a state; one that is not known here is shown in its own
// words.
func signOf(status any) sign {
	name := text(status)
	s, ok := signs[name]
	if !ok {
		s = sign{Word: sentence(name), Icon: "info"}
	}
	s.Status = name
	return s
}

// sentence turns a stable word such as "agent_lost" into "Agent lost".
func sentence(word any) string {
	words := strings.ToLower(strings.ReplaceAll(text(word), "_", " "))
	words = strings.ReplaceAll(words, " api ", " API ")
	if words == "" {
		return ""
	}
	return strings.ToUpper(words[:1]) + words[1:]
}
