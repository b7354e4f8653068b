// Package policyhook asks a program of the operator's whether a plan may be
// carried out: conftest, opa, checkov, or a script. The program gets the plan's
// JSON on its stdin and answers with its exit status.
//
// The plan holds sensitive values, so it is in no file and no argument; and the
// program gets no credentials, for it is to judge and not to act. Package
// policyhook must not know what made the plan or what happens after it.
package policyhook
