// Package provisioner helps to write a provisioner for Tendril in Go: a program that
// creates, changes and destroys machines when Tendril's agent asks it to.
//
// Tendril starts the program once for each request. The request is the first line on
// stdin. The program answers with lines on stdout, of which the last is a result.
//
//	agent    {"type":"apply", …}   {"type":"ack", "id":"1", "ok":true}
//	             │                        │
//	             ▼                        ▼
//	program  {"type":"intent", "id":"1", …}   {"type":"machine", …}   {"type":"result", "ok":true}
//
// [Serve] reads and writes these lines and calls one function of a [Handler] for the
// request. docs/PROVISIONERS.md in Tendril's repository is the specification, and
// "tendril provisioner test COMMAND" checks a program against it.
//
// The package must not import anything but the standard library, so that a provisioner
// depends on nothing else of Tendril.
package provisioner
