package postgrest_test

import (
	"testing"

	"github.com/tendril-run/tendril/internal/postgrest"
)

func TestStatusOf(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]int{
		// PostgREST's documentation, "HTTP Status Codes", each row.
		"08006": 503, "09000": 500, "0L000": 403, "0P000": 403, "23503": 409, "23505": 409, "25006": 405, "25001": 500, "28000": 403,
		"2D000": 500, "38000": 500, "39000": 500, "3B000": 500, "40001": 500, "53400": 500, "53300": 503, "54000": 500, "55P03": 500,
		"57014": 500, "58030": 500, "F0000": 500, "HV000": 500, "P0001": 400, "P0004": 500, "XX000": 500, "42883": 404, "42P01": 404,
		"42P17": 500, "42501": 401, "23502": 400, "22P02": 400, "22023": 400, "21000": 500, "57P01": 503,
		// "RAISE errors with HTTP Status Codes".
		"PT402": 402, "PT409": 409, "PT503": 503, "PT4NO": 500,
		// What is no SQLSTATE, and what would be no answer.
		"": 400, "PT": 500, "PT100": 500, "PT199": 500, "PT600": 500, "PT-10": 500, "PT+40": 500, "5": 400, "08": 400,
	} {
		if got := postgrest.StatusOf(state); got != want {
			t.Errorf("StatusOf(%q) = %d, want %d", state, got, want)
		}
	}
}

func TestFunctionOf(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		postgrest.RPCPath("register_agent"): "register_agent",
		"/rest/v1/rpc/":                     "",
		"/rest/v1/rpc":                      "",
		"/rest/v1/rpc/a/b":                  "",
		"/rest/v1/rpc//a":                   "",
		"/rest/v1/rpc/a/":                   "",
		"/rpc/a":                            "",
		"rest/v1/rpc/a":                     "",
	} {
		got, ok := postgrest.FunctionOf(path)
		if (want != "") != ok || ok && got != want {
			t.Errorf("FunctionOf(%q) = %q, %v, want %q", path, got, ok, want)
		}
	}
}
