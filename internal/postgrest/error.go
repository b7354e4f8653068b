package postgrest

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
