// Package pgtest gives tests a real PostgreSQL: one server for all packages under make
// test, else one for a test process, started when the first test asks for it; and one
// database for each test, copied from a template so that migrations run once.
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestClaim(t *testing.T) {
//		t.Parallel()
//		db := pgtest.New(t, pgtest.WithSetup("sql", sql.Migrate))
//		pool := db.Pool(t)
//		…
//	}
//
// The server gives up durability for speed and lies in memory where there is room. A test
// that stops it, changes its settings or makes roles whose names are not its own takes
// OwnServer. It must not know what the databases hold.
//
// TENDRIL_TEST_POSTGRES_BIN names the directory of the programs to use when
// those that are found by themselves are not the wanted ones.
package pgtest
