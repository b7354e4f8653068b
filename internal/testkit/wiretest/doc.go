// Package wiretest stands between an agent and PostgreSQL, or a server that
// speaks HTTPS, and does to their connections what networks do: it cuts,
// refuses, slows, stalls and swallows. It reads along far enough to know which
// function is called, so that it can lose the reply to one call, or the request.
//
//	wire := wiretest.New(t, url)
//	agent(wire.URL(url))
//	wire.Judge(func(c wiretest.Call) wiretest.Fate { … })
//	wire.BlackHole()
//
// It must not know what the functions mean.
package wiretest
