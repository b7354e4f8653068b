// Command hello is the least that a Go program can be.
package main

import "os"

func main() { _, _ = os.Stdout.WriteString("hello\n") }
