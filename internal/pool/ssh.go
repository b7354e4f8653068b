package pool

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/pool/sshrun"
)

// Keys are what commands in a new machine run by over SSH. They are private keys in PEM, made for
// one machine and for the time of its making, and secrets.
type Keys struct {
	// Login is the key that signs in, Host the one that the machine shows.
	Login, Host string
}

// NewKeys makes the keys of one machine.
func NewKeys() (keys Keys, err error) {
	for _, to := range []*string{&keys.Login, &keys.Host} {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return Keys{}, fmt.Errorf("make a key: %w", err)
		}
		block, err := ssh.MarshalPrivateKey(private, "")
		if err != nil {
			return Keys{}, fmt.Errorf("make a key: %w", err)
		}
		*to = string(pem.EncodeToMemory(block))
	}
	return keys, nil
}

// Public is the public half of one of the keys, as a line of authorized_keys; "" for none.
func (k *Keys) Public(private string) string {
	signer, err := ssh.ParsePrivateKey([]byte(private))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
}

// Login is how commands run in a machine over SSH.
type Login struct {
	User string
	Key  string // a private key in PEM
	Port int    // 0: 22
	// HostKeys are by what the machine is known, as lines of authorized_keys.
	HostKeys []string
	// Settles says that a machine at its first start may have shown its hypervisor other host
	// keys than it has now, so that Login is to be asked again.
	Settles bool
}

// sshAddresses are those of a machine at which it may be called: within the pool's ranges, where
// it has some, and never this computer's own or its link's, unless the operator wrote them down.
func sshAddresses(c Config, found Found, port int) (all []netip.AddrPort) {
	for _, address := range found.Addresses {
		address = address.Unmap()
		within := slices.ContainsFunc(c.Ranges, func(r Range) bool { return r.Contains(address) })
		if c.Kind == "static" || within || len(c.Ranges) == 0 && address.IsGlobalUnicast() && address.Zone() == "" {
			all = append(all, netip.AddrPortFrom(address, uint16(port)))
		}
	}
	return all
}

// dial signs in to a machine that was made.
func (m *Maker) dial(ctx context.Context, p Opened, ref Ref, spec Spec, found Found) (*sshrun.Client, error) {
	login, err := p.Driver.Login(ctx, ref, spec.Init)
	if err != nil {
		return nil, err
	}
	if login.Port == 0 {
		login.Port = 22
	}
	if spec.Address.IsValid() { // whatever a guest says of itself
		found.Addresses = []netip.Addr{spec.Address.Addr()}
	}
	addresses := sshAddresses(p.Config, found, login.Port)
	if len(addresses) == 0 {
		return nil, fmt.Errorf("it has no address that may be called: it has %v, and the pool %s allows %s. Let it wait for its address (cloud_init { wait = \"address\" }), or give the pool addresses", found.Addresses, p.Config.Name, rangesOf(p.Config))
	}
	limits := sshrun.Limits{Dial: p.Config.Timeout}
	if spec.Init.Keys != nil {
		limits.Refused = firstStart
	}
	client, err := sshrun.Dial(ctx, sshrun.Target{
		Addresses: addresses, User: login.User, Key: login.Key, Fixed: !login.Settles,
		HostKeys: func(ctx context.Context) ([]string, error) {
			if !login.Settles {
				return login.HostKeys, nil
			}
			again, err := p.Driver.Login(ctx, ref, spec.Init)
			return again.HostKeys, err
		},
	}, limits)
	if err != nil {
		return nil, fmt.Errorf("as %s: %w", login.User, err)
	}
	return client, nil
}

// rangesOf are a pool's ranges of addresses for people.
func rangesOf(c Config) string {
	if len(c.Ranges) == 0 {
		return "all but loopback and link-local ones"
	}
	var all []string
	for _, r := range c.Ranges {
		all = append(all, r.From.String()+"-"+r.To.String())
	}
	return strings.Join(all, ", ")
}

// firstStart is how long a machine that was just made may refuse our key: its SSH server may start
// before cloud-init writes the keys.
const firstStart = 2 * time.Minute

// forgetTime is how long it may take to take our key out of a machine.
const forgetTime = 30 * time.Second

// forget takes our key out of the user's file, also where the run is being ended. Afterwards its
// private half is in older versions of the sealed state alone.
func forget(ctx context.Context, client *sshrun.Client, keys *Keys, progress Progress) {
	fields := strings.Fields(keys.Public(keys.Login))
	if len(fields) < 2 {
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTime)
	defer cancel()
	lines := Lines{Progress: progress}
	// The file is replaced whole: a machine without grep, or with a full disk, keeps its keys.
	status, err := client.Run(limited, `f="$HOME/.ssh/authorized_keys"; test -f "$f" || exit 0; umask 077; grep -vF '`+fields[1]+`' "$f" > "$f.tendril"; if test $? -le 1; then mv "$f.tendril" "$f"; else rm -f "$f.tendril"; exit 1; fi`, &lines)
	lines.End()
	if err != nil || status != 0 {
		progress.Log("the key of this run stays in the machine's authorized_keys, because it could not be taken out (status %d): take the line that ends in %s out", status, fields[len(fields)-1])
	}
}
