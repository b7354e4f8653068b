// Package providers keeps the provider packages that engines download, so that
// workspaces share them and each is downloaded once. It knows the engine's
// directory layout and lock file; it must not know jobs, queues or how an
// engine is run.
//
// The engine's own cache (TF_PLUGIN_CACHE_DIR) is not safe for two inits at a
// time: init unpacks into the entries in place, while others hash and execute
// them. So no engine ever sees a directory that another one uses:
//
//	store/HOST/NAMESPACE/TYPE/VERSION/OS_ARCH/H1   a package, never changed
//	private/HOST/…/OS_ARCH -> store/…/OS_ARCH/H1   what one init is given
//
// H1 is the package's checksum as the lock file has it, in hexadecimal. With it
// as the name, a package and its checksum appear by one rename, packages of one
// version that differ live side by side, and what is damaged can be told.
//
// The engine gets the private directory as its cache. It writes through links,
// in place, when it does not accept what it finds behind them. Two rules keep
// it from finding such a link:
//
//   - With a lock file, only packages whose checksum is locked are linked, after
//     their content was hashed. The engine accepts those. A lock file without
//     the checksum of this platform's package has the engine download it and
//     verify the archive, each time.
//   - Without one, the engine is told to accept whatever is in the cache
//     (TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE), and the newest package
//     of each version is linked, for the providers that the workspace needed
//     last time. The engine hashes the ones it selects, and writes the
//     checksums into the lock file it makes: they must be those of the store,
//     or the package goes and init runs again. The flag spoils only that lock
//     file, which goes with the checkout.
//
// After a successful init new packages move to the store, and links replace them.
// A killed init leaves nothing there, and a checksum reveals a torn package.
//
// A checksum tells damage, not who made a package. What a template could have
// made is therefore not stored: packages it ships, and, where runs have uids of
// their own, anything after its first command has run (Options.AsStore fails
// then). Where runs share one uid a template can write here, and a workspace
// without a lock file is given what it finds: only a lock file protects it then.
package providers
