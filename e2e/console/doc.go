// Package console tries the web console as a person uses it: in a real browser,
// against all of Tendril as `trellis up` runs it, with a real Terraform.
// Screenshots of what was seen are kept, see package browsertest.
package console
