package postgrest

import (
	"net/http"
	"strconv"
	"strings"
)

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
