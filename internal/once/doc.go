// Package once is the simple form of a provisioner: the program reads one JSON document on
// stdin, writes one on stdout and exits. A shell script of ten lines can do that.
//
//	{"action":"provision", "contract_id":…, "offering":…}    ──► program
//	{"success":true, "instance":{"external_id":…}}           ◄── program
//
// The field names are those of the product's first design, which calls a machine's id the
// contract id. testdata has its documents as they were printed there.
//
// The form has no plan, no intents and no steps: the caller records its intent before it
// asks. A program that was killed before it answered can't say what it made. Ask it again
// with the same contract id only if the template declares it idempotent.
//
// The package starts and ends no process. It must not know queues, spools or templates.
// docs/PROVISIONERS.md specifies the form.
package once
