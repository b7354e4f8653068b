// Package browsertest gives tests a real browser: one Chromium for a test
// process, started when the first test asks for it, and a tab with cookies of
// its own for each.
//
//	func TestMain(m *testing.M) { pgtest.Main(browsertest.With(m)) }
//
//	func TestHome(t *testing.T) {
//		t.Parallel()
//		tab := browsertest.Open(t, server.URL, browsertest.Dark)
//		tab.Click("Deploy")
//		tab.WaitText("Choose a cluster")
//		tab.Screenshot("deploy")
//		tab.Axe()
//	}
//
// What a page must never do fails its test: errors in the console, what its
// Content-Security-Policy blocks, exceptions that nobody catches, requests to
// its own server that fail. Allow names those that are meant.
//
// It must not know what the pages are.
//
// TENDRIL_TEST_CHROMIUM names the program, where it is none of those that are
// found by themselves; TENDRIL_TEST_ARTIFACTS the directory for screenshots, of
// which there are else those of failures alone, in dist/screenshots.
package browsertest
