// Package scripts tries the scripts beside it.
package scripts
