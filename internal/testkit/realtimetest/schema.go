package realtimetest

import _ "embed" // the schema

// Schema makes what Realtime has in a project's database; the roles anon, authenticated and
// service_role must exist.
//
//go:embed schema.sql
var Schema string
