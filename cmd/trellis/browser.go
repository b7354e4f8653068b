package main

import (
	"errors"
	"os/exec"
	"runtime"
)

// openBrowser shows a page in the person's browser, without a shell between. It
// does not wait: some of these programs go on as long as the browser.
func openBrowser(url string) error {
	opener := "xdg-open"
	switch runtime.GOOS {
	case "darwin":
		opener = "open"
	case "linux":
	default:
		return errors.New("it is not known how a browser is opened here")
	}
	cmd := exec.Command(opener, url) //nolint:noctx // one argument; it outlives us
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}
