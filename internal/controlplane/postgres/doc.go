// Package postgres runs a private PostgreSQL server for one data directory:
// what `trellis up` stores its queue in when it is given no database of its
// own, and what tests run against.
//
// The server listens on a Unix socket in a directory that only it and its
// starter may enter, never on TCP, with a random password. It does not outlive
// the program that started it: it is stopped by Stop, by the death of its
// parent (Linux), and at the latest by the next Start on the same directory.
//
// What a data directory holds:
//
//	lock          flock'ed by the Server that owns the directory; its pid inside
//	password      the superuser's password, 0600
//	postgres.log  what the server says
//	data/         PGDATA; made as data.new and renamed when complete
//	run/          the socket; a symlink to a directory elsewhere where the path is too long
//	postgres-bin/ binaries that were downloaded because none were installed
//
// The package knows nothing of what is stored in the database: no schema, no
// migration, no role but the superuser.
package postgres
