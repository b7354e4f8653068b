package main

// allowed are the licences, by their SPDX names, under which something may be
// shipped within our programs: they ask for no more than their text and the
// names in it, which the file of all texts has. The MPL asks for the source of
// its own files besides, which are anybody's to fetch, for we change none.
//
// Not here, and never to be: the GPL and its kin, for they would be ours then;
// the Business Source License, for it says who may use what.
var allowed = map[string]bool{
	"0BSD": true, "Apache-2.0": true, "BSD-2-Clause": true, "BSD-3-Clause": true,
	"CC0-1.0": true, "ISC": true, "MIT": true, "MPL-2.0": true, "Unlicense": true, "Zlib": true,
	publicDomain:       true,
	"Unicode-DFS-2016": true, // of Unicode's tables
}

// spdx are the names of those that the classifier calls otherwise.
var spdx = map[string]string{"BSD-0-Clause": "0BSD"}

const publicDomain = "public domain"

// readByPeople are texts that the classifier does not know, or takes for
// others, by their SHA-256, and what they are. A text that changes is read anew.
var readByPeople = map[string]string{}
