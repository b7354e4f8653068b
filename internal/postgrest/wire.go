package postgrest

import "strings"

// rpcPath is where functions are called, as Supabase serves PostgREST.
const rpcPath = "/rest/v1/rpc/"

// RPCPath is the path at which a function is called.
func RPCPath(function string) string { return rpcPath + function }

// FunctionOf returns the function that a path calls; false when it is none.
func FunctionOf(path string) (string, bool) {
	function, ok := strings.CutPrefix(path, rpcPath)
	return function, ok && function != "" && !strings.Contains(function, "/")
}

// ContentType is what bodies are, in answers with the character set that
// PostgREST names.
const (
	ContentType       = "application/json"
	AnswerContentType = "application/json; charset=utf-8"
)

// Headers that are not in net/http's own vocabulary.
const (
	// APIKey carries the project's public key. Supabase's own front door asks
	// for it, before PostgREST sees the request.
	APIKey = "Apikey"
	// ContentProfile names the schema of a POST.
	ContentProfile = "Content-Profile"
)

// Schema is the only one that is served.
const Schema = "public"
