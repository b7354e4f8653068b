//go:build linux

package main

import (
	"github.com/spf13/pflag"

	"github.com/tendril-run/tendril/internal/controlplane/notify"
	"github.com/tendril-run/tendril/internal/controlplane/site"
)

// webhookFlags say how webhooks are served.
type webhookFlags struct {
	keyFile string
	allow   []string
}

func (f *webhookFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.keyFile, "key-file", "", "file with this control plane's own key, 32 random bytes in base64, the same for all of its processes: without it there are no webhooks")
	flags.StringSliceVar(&f.allow, "webhook-allow", nil, "host, address or network of your own that webhooks may reach, also without TLS (repeatable, or with commas)")
}

func (f *webhookFlags) apply(o *site.Options) (err error) {
	if o.Notify.Allowed, err = notify.ParseAllowed(f.allow); err != nil {
		return wrongUsage("--webhook-allow: %v", err)
	}
	if f.keyFile != "" {
		o.Notify.Key, err = notify.ReadKey(f.keyFile)
	}
	return err
}
