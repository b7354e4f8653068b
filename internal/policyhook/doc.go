// Package policyhook asks the operator's program whether a plan may be applied:
// conftest, opa, checkov, or a script. The program gets the plan's
// JSON on its stdin and answers with its exit status.
//
// The plan holds sensitive values, so it is in no file and no argument; and the
// program gets no credentials, for it is to judge and not to act. Package
// policyhook must not know what made the plan or what happens after it.
//
// Only exit status 0 is a yes. A hook that is missing, is killed or takes too long
// says no, so breaking the hook is no way past it. It runs in a new empty
// directory with a fixed PATH: conftest, checkov and others read configuration and
// code from their directory and home, and a template could leave some there. For
// the same reason nothing that the template started is alive by then, and nobody
// who runs templates may be able to write to the program or its arguments.
package policyhook
