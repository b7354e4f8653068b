package terraform

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"strings"

	"github.com/hashicorp/hc-install/product"
	"github.com/hashicorp/hc-install/releases"
)

// fetch has hc-install download, verify and unpack.
func (s *search) fetch(ctx context.Context, dir string) (string, error) {
	var key string
	if s.cfg.PublicKeyFile != "" {
		armoured, err := os.ReadFile(s.cfg.PublicKeyFile)
		if err != nil {
			return "", fmt.Errorf("the signing key cannot be read: %w", err)
		}
		key = string(armoured)
	}
	mirror := strings.TrimRight(s.cfg.MirrorURL, "/")
	var source interface {
		SetLogger(*log.Logger)
		Install(context.Context) (string, error)
	} = &releases.LatestVersion{
		Product: product.Terraform, Constraints: s.allowed(), InstallDir: dir, Timeout: s.timeout, ApiBaseURL: mirror, ArmoredPublicKey: key,
	}
	if s.want != nil {
		source = &releases.ExactVersion{
			Product: product.Terraform, Version: s.want, InstallDir: dir, Timeout: s.timeout, ApiBaseURL: mirror, ArmoredPublicKey: key,
		}
	}
	var heard strings.Builder
	source.SetLogger(log.New(&heard, "", 0))
	binary, err := source.Install(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return "", lost(heard.String())
	}
	return binary, err
}

// lost is the error of a download. hc-install loses every one of them, a wrong
// checksum among them, and stumbles over the missing binary. (In a directory
// that had one, it would call that a success.) Its log knows better.
func lost(heard string) error {
	for line := range strings.Lines(heard) {
		if strings.HasPrefix(line, "checksum does not match") {
			return errors.New("the archive's checksum is not the signed one, so it was damaged or exchanged on its way")
		}
		if rest, ok := strings.CutPrefix(line, "failed to calculate hash of "); ok {
			_, cause, _ := strings.Cut(rest, ": ")
			return fmt.Errorf("the download broke off: %s", strings.TrimSpace(cause))
		}
	}
	return errors.New("the archive is incomplete or damaged")
}

// reason is an installer's error in one line.
func (s *search) reason(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "unable to verify checksums signature"):
		return "the signature of its checksums does not match the signing key"
	case strings.Contains(text, context.DeadlineExceeded.Error()):
		return fmt.Sprintf("it did not come within %s", s.timeout)
	}
	return strings.Join(strings.Fields(text), " ")
}
