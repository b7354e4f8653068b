package postgrest

import (
	"net/http"
	"strconv"
	"strings"
)

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

// Codes of PostgREST's own errors. All others are SQLSTATEs.
const (
	CodeNoConnection   = "PGRST000" // the database cannot be reached
	CodeLostConnection = "PGRST001" // the connection broke during the call
	CodeNoSchema       = "PGRST002" // it could not be read which functions there are
	CodePoolTimeout    = "PGRST003" // no connection became free in time
	CodeBadQuery       = "PGRST100" // a query string that is not understood
	CodeBadMethod      = "PGRST101" // functions take GET and POST only
	CodeBadBody        = "PGRST102" // the body is no JSON, or of another type
	CodeNoSuchProfile  = "PGRST106" // a schema that is not served
	CodeNotAcceptable  = "PGRST107" // no type that the client accepts
	CodeBadRaise       = "PGRST121" // RAISE SQLSTATE 'PGRST' that is not understood
	CodeBadPreference  = "PGRST122" // a preference that is not honoured, under handling=strict
	CodeBadPath        = "PGRST125" // a path that leads nowhere
	CodeNoRoot         = "PGRST126" // the API describes itself to nobody
	CodeNoFunction     = "PGRST202" // no function of that name and arguments
	CodeManyFunctions  = "PGRST203" // several functions of that name and arguments
	CodeNoTable        = "PGRST205" // no table of that name
)

// BodyTooLarge is the details of what refuses a body for its size before anything
// is known of it: the gateway's answer, and what an agent makes of a proxy's.
// The database's own limits have words of their own.
const BodyTooLarge = "body_too_large"

// Error is the body of every answer that is no success.
type Error struct {
	// Code is a SQLSTATE or one of the codes above. Supabase's front door
	// sends none.
	Code    string `json:"code"`
	Message string `json:"message"`
	// Details is the DETAIL of the SQL error: for one of the contract's own
	// refusals, the stable word that programs go by.
	Details *string `json:"details"`
	Hint    *string `json:"hint"`
}

// NewError makes an Error whose details and hint are null where they are empty,
// as PostgreSQL has them.
func NewError(code, message, details, hint string) Error {
	return Error{Code: code, Message: message, Details: orNull(details), Hint: orNull(hint)}
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// statuses is PostgREST's table of "HTTP Status Codes" in its documentation of
// errors. The longest entry that a SQLSTATE begins with counts; what has none
// is the client's own fault.
var statuses = map[string]int{
	"08":    http.StatusServiceUnavailable,  // connection
	"09":    http.StatusInternalServerError, // triggered action
	"0L":    http.StatusForbidden,           // grantor
	"0P":    http.StatusForbidden,           // role specification
	"21000": http.StatusInternalServerError, // cardinality
	"23503": http.StatusConflict,            // foreign key
	"23505": http.StatusConflict,            // uniqueness
	"25006": http.StatusMethodNotAllowed,    // read-only transaction
	"25":    http.StatusInternalServerError, // transaction state
	"28":    http.StatusForbidden,           // authorization specification
	"2D":    http.StatusInternalServerError, // transaction termination
	"38":    http.StatusInternalServerError, // external routine
	"39":    http.StatusInternalServerError, // external routine invocation
	"3B":    http.StatusInternalServerError, // savepoint
	"40":    http.StatusInternalServerError, // transaction rollback
	"53400": http.StatusInternalServerError, // configuration limit
	"53":    http.StatusServiceUnavailable,  // resources
	"54":    http.StatusInternalServerError, // too complex
	"55":    http.StatusInternalServerError, // object's state
	"57P01": http.StatusServiceUnavailable,  // administrator's shutdown
	"57":    http.StatusInternalServerError, // operator intervention
	"58":    http.StatusInternalServerError, // system
	"F0":    http.StatusInternalServerError, // configuration file
	"HV":    http.StatusInternalServerError, // foreign data
	"P0001": http.StatusBadRequest,          // RAISE without a code
	"P0":    http.StatusInternalServerError, // PL/pgSQL
	"XX":    http.StatusInternalServerError, // internal
	"42883": http.StatusNotFound,            // undefined function
	"42P01": http.StatusNotFound,            // undefined table
	"42P17": http.StatusInternalServerError, // infinite recursion
	"42501": http.StatusUnauthorized,        // privilege: nobody here is signed in
}

// sqlStateLength is how many characters each SQLSTATE has.
const sqlStateLength = 5

// StatusOf is the HTTP status of a SQL error that an anonymous caller gets.
// PTxyz is the status xyz; where xyz is no status, 500.
func StatusOf(sqlState string) int {
	if digits, custom := strings.CutPrefix(sqlState, "PT"); custom {
		// 1xx would not end the answer, and above 599 no client knows what to do.
		if status, err := strconv.Atoi(digits); err == nil && len(digits) == 3 && 200 <= status && status <= 599 {
			return status
		}
		return http.StatusInternalServerError
	}
	if len(sqlState) == sqlStateLength {
		for n := sqlStateLength; n >= 2; n -= sqlStateLength - 2 {
			if status, ok := statuses[sqlState[:n]]; ok {
				return status
			}
		}
	}
	return http.StatusBadRequest
}
